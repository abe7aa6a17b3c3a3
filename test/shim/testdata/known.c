/*
 * Answers questions about the shim's sums, signatures, JSON, HTTP and ports, one a line; the Go test that runs it under the
 * address sanitizer knows the right ones. Texts come as hex digits, "-" stands for an empty one.
 */
#define _GNU_SOURCE
#include "cs_rc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
	char *bytes; /* as long as the text, so that the sanitizer sees a step beyond it */
	size_t size;
};

static struct text decode(const char *hex)
{
	struct text t = {NULL, 0};

	if (strcmp(hex, "-") != 0)
		t.size = strlen(hex) / 2;
	t.bytes = malloc(t.size ? t.size : 1);
	if (t.size && cs_unhex(hex, (uint8_t *)t.bytes, t.size))
		exit(3);
	return t;
}

static void sums(const char *key, const char *message)
{
	struct text k = decode(key), m = decode(message);
	struct cs_part parts[] = {{m.bytes, m.size / 2}, {m.bytes + m.size / 2, m.size - m.size / 2}};
	uint8_t sum[CS_SUM];
	char plain[2 * CS_SUM + 1], keyed[2 * CS_SUM + 1];
	struct cs_sha256 h;

	cs_sha256_start(&h);
	cs_sha256_add(&h, parts[0].data, parts[0].size);
	cs_sha256_add(&h, parts[1].data, parts[1].size);
	cs_sha256_end(&h, sum);
	cs_hex(sum, sizeof sum, plain);
	cs_hmac(&(struct cs_part){k.bytes, k.size}, parts, 2, sum);
	cs_hex(sum, sizeof sum, keyed);
	printf("%s %s\n", plain, keyed);
	free(k.bytes);
	free(m.bytes);
}

/* walk reads every value, so that each function meets each text. */
static void walk(const struct cs_value *v)
{
	struct cs_value inner;
	char small[4], large[512];
	int64_t n;
	size_t at = 0;

	cs_string(v, small, sizeof small);
	if (cs_string(v, large, sizeof large) == 0 && strlen(large) >= sizeof large)
		exit(4);
	cs_number(v, &n);
	if (cs_member(v, "a", &inner) == 0)
		walk(&inner);
	while (cs_next(v, &at, &inner) == 0)
		walk(&inner);
}

static void json(const char *hex)
{
	struct text t = decode(hex);
	struct cs_value v, inner;
	char text[512] = "";
	int64_t n = -1;

	if (cs_json(t.bytes, t.size, &v)) {
		puts("refused");
	} else {
		walk(&v);
		if (cs_member(&v, "a", &inner) == 0) {
			cs_string(&inner, text, sizeof text);
			cs_number(&inner, &n);
		}
		char shown[2 * sizeof text + 1];

		cs_hex((uint8_t *)text, strlen(text), shown);
		printf("kind %d a %s %lld\n", v.kind, shown[0] ? shown : "-", (long long)n);
	}
	free(t.bytes);
}

static void http(const char *hex, int end)
{
	struct text t = decode(hex);
	struct cs_answer *a = calloc(1, sizeof *a);
	int state = cs_parse(t.bytes, t.size, end, a);

	if (state)
		puts(state > 0 ? "more" : "refused");
	else
		printf("%d %zu\n", a->status, a->size);
	free(a);
	free(t.bytes);
}

static void endpoint(const char *hex)
{
	struct text t = decode(hex);
	char url[1024] = "";
	struct cs_endpoint e;
	struct cs_why why;

	memcpy(url, t.bytes, t.size);
	if (cs_endpoint(url, &e, &why))
		printf("refused %s\n", why.text);
	else
		printf("%s %s %s\n", e.host, e.port, e.named);
	free(t.bytes);
}

/* sign: date, region, payload hash, method, path, query ("-": none), then pairs of name and value. */
static void sign(char **words, size_t count)
{
	struct cs_credentials c = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
	struct cs_header headers[8];
	struct cs_signing what = {.date = words[0], .region = words[1], .payload = words[2], .method = words[3],
				  .path = words[4], .query = strcmp(words[5], "-") ? words[5] : "",
				  .headers = headers};
	char text[1024], value[8][128];

	for (size_t i = 6; i + 1 < count && what.count < 8; i += 2) {
		struct text t = decode(words[i + 1]);

		snprintf(value[what.count], sizeof *value, "%.*s", (int)t.size, t.bytes);
		free(t.bytes);
		headers[what.count] = (struct cs_header){words[i], value[what.count]};
		what.count++;
	}
	puts(cs_sign(&c, &what, text, sizeof text) ? "refused" : text);
	puts(cs_sign(&c, &what, text, 40) ? "too small" : "overflow");
}

/* rank: GID and kind of the port, bits of its prefix, GID and LID of the rail. */
static void rank(char **words)
{
	struct cs_port port = {.infiniband = (uint8_t)atoi(words[1]), .bits = (unsigned)atoi(words[2])};
	struct cs_rail rail = {.lid = (uint16_t)atoi(words[4])};

	if (cs_unhex(words[0], port.gid, sizeof port.gid) || cs_unhex(words[3], rail.gid, sizeof rail.gid))
		exit(3);
	printf("%d\n", cs_rc_rank(&port, &rail));
}

int main(void)
{
	static char line[1 << 20];

	while (fgets(line, sizeof line, stdin)) {
		char *words[32];
		size_t count = 0;

		for (char *w = strtok(line, " \n"); w && count < 32; w = strtok(NULL, " \n"))
			words[count++] = w;
		if (count == 3 && strcmp(words[0], "sums") == 0)
			sums(words[1], words[2]);
		else if (count == 2 && strcmp(words[0], "json") == 0)
			json(words[1]);
		else if (count == 3 && strcmp(words[0], "http") == 0)
			http(words[1], atoi(words[2]));
		else if (count == 2 && strcmp(words[0], "endpoint") == 0)
			endpoint(words[1]);
		else if (count == 6 && strcmp(words[0], "rank") == 0)
			rank(words + 1);
		else if (count == 2 && strcmp(words[0], "date") == 0) {
			char date[CS_DATE];

			cs_date((time_t)atoll(words[1]), date);
			puts(date);
		} else if (count > 7 && strcmp(words[0], "sign") == 0)
			sign(words + 1, count - 1);
		else
			return 2;
	}
	return 0;
}
