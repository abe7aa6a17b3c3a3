/* The environment, and the two requests of the control plane: docs/wire.md §6. */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *variable(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* text copies what goes into a header: printable, and not too long. */
static int text(char *to, size_t size, const char *from, const char *what, struct cs_why *why)
{
	size_t n = strlen(from);

	if (n >= size)
		return cs_fail(why, "%s is too long", what);
	for (size_t i = 0; i < n; i++)
		if (from[i] <= ' ' || from[i] >= 0x7f)
			return cs_fail(why, "%s has a character that does not belong there", what);
	memcpy(to, from, n + 1);
	return 0;
}

static char *trim(char *line)
{
	char *end = line + strlen(line);

	while (end > line && strchr(" \t\r\n", end[-1]))
		*--end = 0;
	return line + strspn(line, " \t");
}

/* from_file reads one profile of a file in the form of the AWS shared credentials file. */
static int from_file(struct cs_credentials *c, const char *name, const char *profile, struct cs_why *why)
{
	char line[CS_MAX_TOKEN + 128], buffer[BUFSIZ];
	int inside = 0, bad = 0;
	FILE *f = fopen(name, "re");

	if (!f)
		return cs_fail(why, "no keys: neither AWS_ACCESS_KEY_ID nor a readable credentials file");
	setvbuf(f, buffer, _IOFBF, sizeof buffer); /* so that it can be wiped */
	while (!bad && fgets(line, sizeof line, f)) {
		char *at = trim(line), *equals = strchr(at, '=');

		if (*at == '[') {
			at[strcspn(at, "]")] = 0;
			inside = strcmp(trim(at + 1), profile) == 0;
		} else if (inside && equals) {
			*equals = 0;
			char *key = trim(at), *value = trim(equals + 1);

			if (strcmp(key, "aws_access_key_id") == 0)
				bad = text(c->access, sizeof c->access, value, "the access key", why);
			else if (strcmp(key, "aws_secret_access_key") == 0)
				bad = text(c->secret, sizeof c->secret, value, "the secret key", why);
			else if (strcmp(key, "aws_session_token") == 0)
				bad = text(c->token, sizeof c->token, value, "the session token", why);
		}
	}
	fclose(f);
	cs_wipe(line, sizeof line);
	cs_wipe(buffer, sizeof buffer);
	if (bad)
		return -1;
	return *c->access && *c->secret ? 0 : cs_fail(why, "the credentials file has no keys for profile %s", profile);
}

static int credentials(struct cs_credentials *c, struct cs_why *why)
{
	const char *access = variable("AWS_ACCESS_KEY_ID"), *secret = variable("AWS_SECRET_ACCESS_KEY");
	const char *token = variable("AWS_SESSION_TOKEN"), *file = variable("AWS_SHARED_CREDENTIALS_FILE");
	const char *profile = variable("AWS_PROFILE"), *home = variable("HOME");
	char name[4096];

	memset(c, 0, sizeof *c);
	if (access && secret)
		return text(c->access, sizeof c->access, access, "the access key", why) ||
				       text(c->secret, sizeof c->secret, secret, "the secret key", why) ||
				       (token && text(c->token, sizeof c->token, token, "the session token", why))
			       ? -1
			       : 0;
	if (access || secret)
		return cs_fail(why, "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set");
	if (!file)
		snprintf(name, sizeof name, "%s/.aws/credentials", home ? home : "");
	return from_file(c, file ? file : name, profile ? profile : "default", why);
}

int cs_configure(struct cs_config *c, struct cs_why *why)
{
	const char *url = variable("PENSTOCK_CUOBJ_ENDPOINT"), *fabric = variable("PENSTOCK_CUOBJ_FABRIC");
	const char *region = variable("AWS_REGION"), *devices = variable("PENSTOCK_CUOBJ_DEVICES");

	if (!url)
		url = variable("AWS_ENDPOINT_URL_S3");
	if (!url)
		url = variable("AWS_ENDPOINT_URL");
	if (!url)
		return cs_fail(why, "none of PENSTOCK_CUOBJ_ENDPOINT, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL is set");
	c->https = strncasecmp(url, "https://", 8) == 0;
	if (cs_endpoint(url, &c->endpoint, why) || credentials(&c->credentials, why) ||
	    text(c->region, sizeof c->region, region ? region : "us-east-1", "AWS_REGION", why))
		return -1;
	if (!fabric || strcmp(fabric, "auto") == 0)
		c->choice = CS_AUTO;
	else if (strcmp(fabric, "shm") == 0)
		c->choice = CS_SHM;
	else if (strcmp(fabric, "rc") == 0)
		c->choice = CS_RC;
	else if (strcmp(fabric, "tcp") == 0)
		c->choice = CS_TCP;
	else
		return cs_fail(why, "PENSTOCK_CUOBJ_FABRIC is none of auto, shm, rc, tcp");
	if (devices && strlen(devices) >= sizeof c->devices)
		return cs_fail(why, "PENSTOCK_CUOBJ_DEVICES is too long");
	strcpy(c->devices, devices ? devices : "");
	return 0;
}

/* code finds the word for the error in an S3 error document. */
static void code(const char *body, char *word, size_t size)
{
	const char *from = strstr(body, "<Code>");
	size_t n = 0;

	if (from)
		for (from += 6; n + 1 < size && ((*from | 32) >= 'a' && (*from | 32) <= 'z'); from++)
			word[n++] = *from;
	word[n] = 0;
}

/* control sends one signed request; only 200 is an answer. */
static int control(const struct cs_config *c, const char *path, const char *body, int64_t deadline, struct cs_answer *a,
		   struct cs_why *why)
{
	enum { ROOM = CS_MAX_TOKEN + 4096 };
	const char *method = *body ? "POST" : "GET";
	char head[ROOM], authorization[1024], payload[2 * CS_SUM + 1], date[CS_DATE], word[40];
	uint8_t sum[CS_SUM];
	struct cs_header headers[] = {{"host", c->endpoint.named}, {"x-amz-content-sha256", payload}, {"x-amz-date", date},
				      {"x-amz-security-token", c->credentials.token}};
	int token = *c->credentials.token != 0;
	struct cs_signing what = {.method = method, .path = path, .query = "", .region = c->region, .headers = headers,
				  .count = token ? 4 : 3, .payload = payload, .date = date};

	cs_sha256(body, strlen(body), sum);
	cs_hex(sum, sizeof sum, payload);
	cs_date(time(NULL), date);
	if (cs_sign(&c->credentials, &what, authorization, sizeof authorization))
		return cs_fail(why, "a request could not be signed");
	int n = snprintf(head, sizeof head,
			 "%s %s HTTP/1.1\r\nHost: %s\r\nx-amz-content-sha256: %s\r\nx-amz-date: %s\r\n%s%s%s"
			 "Authorization: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
			 method, path, c->endpoint.named, payload, date, token ? "x-amz-security-token: " : "",
			 c->credentials.token, token ? "\r\n" : "", authorization, strlen(body));

	if (n < 0 || n >= ROOM)
		return cs_fail(why, "a request is too long");
	const struct cs_part request[] = {{head, (size_t)n}, {body, strlen(body)}};

	int bad = cs_exchange(&c->endpoint, request, deadline, a, why);

	cs_wipe(head, sizeof head);
	if (bad)
		return -1;
	if (a->status == 200)
		return 0;
	code(a->body, word, sizeof word);
	return cs_fail(why, "%s answers %d %s to %s", c->endpoint.named, a->status, word, path);
}

/* quoted adds a file in the form that the id of a host is made from: docs/wire.md §6. */
static int quoted(struct cs_sha256 *h, const char *name)
{
	static const char odd[] = "\n\r\t\"\\", letters[] = "nrt\"\\";
	char bytes[256];
	size_t n = 0;
	FILE *f = fopen(name, "re");

	if (f) {
		n = fread(bytes, 1, sizeof bytes, f);
		fclose(f);
	}
	cs_sha256_add(h, "\"", 1);
	for (size_t i = 0; i < n; i++) {
		const char *at = bytes[i] ? strchr(odd, bytes[i]) : NULL;
		char pair[2] = {'\\', at ? letters[at - odd] : 0};

		cs_sha256_add(h, at ? pair : &bytes[i], at ? 2 : 1);
	}
	cs_sha256_add(h, "\"\n", 2);
	return f != NULL;
}

/* same_host compares the node's host with this one. */
static int same_host(const char *host)
{
	static const char label[] = "penstock host id v1\n";
	enum { ID = 16 };
	struct cs_sha256 h;
	uint8_t sum[CS_SUM];
	char own[2 * ID + 1];

	cs_sha256_start(&h);
	cs_sha256_add(&h, label, sizeof label - 1);
	int known = quoted(&h, "/etc/machine-id");

	known |= quoted(&h, "/proc/sys/kernel/random/boot_id");
	cs_sha256_end(&h, sum);
	cs_hex(sum, ID, own);
	return known && strcmp(own, host) == 0;
}

static int member_is(const struct cs_value *object, const char *name, enum cs_kind kind)
{
	struct cs_value v;

	return cs_member(object, name, &v) == 0 && v.kind == kind;
}

static void look(const struct cs_value *fabric, int here, struct cs_node *n)
{
	struct cs_value v;
	char name[16] = "", reason[40] = "";

	if (cs_member(fabric, "name", &v) == 0)
		cs_string(&v, name, sizeof name);
	if (cs_member(fabric, "foreign_reason", &v) == 0)
		cs_string(&v, reason, sizeof reason);
	int up = member_is(fabric, "up", CS_TRUE);

	if (strcmp(name, "tcp") == 0)
		n->tcp = up;
	if (strcmp(name, "rc") == 0)
		n->rc = up;
	if (strcmp(name, "shm") != 0)
		return;
	n->shm = up && here && member_is(fabric, "foreign", CS_TRUE);
	snprintf(n->shm_not, sizeof n->shm_not, "%s",
		 !up ? "shm is down" : !here ? "another host" : *reason ? reason : "no foreign memory");
}

int cs_ask_node(const struct cs_config *c, int64_t deadline, struct cs_node *n, struct cs_why *why)
{
	enum { DEFAULT_MS = 8000, LEAST_MS = 1000, MOST_MS = 12000 }; /* a caller's wait has a bound, whatever the node says */
	struct cs_answer *a = calloc(1, sizeof *a);
	struct cs_value top, v, fabric;
	char host[64] = "";
	size_t at = 0;

	if (!a)
		return cs_fail(why, "no memory");
	*n = (struct cs_node){.shm_not = "no such fabric", .deadline_ms = DEFAULT_MS};
	int bad = control(c, "/.penstock/fabric/v1", "", deadline, a, why);

	if (!bad && cs_json(a->body, a->size, &top))
		bad = cs_fail(why, "%s did not list its fabrics", c->endpoint.named);
	if (!bad) {
		if (cs_member(&top, "host", &v) == 0)
			cs_string(&v, host, sizeof host);
		int here = same_host(host);

		if (cs_member(&top, "fabrics", &v) == 0)
			while (cs_next(&v, &at, &fabric) == 0)
				look(&fabric, here, n);
		if (cs_member(&top, "limits", &v) == 0 && cs_member(&v, "deadline_ms", &v) == 0)
			cs_number(&v, &n->deadline_ms);
		if (n->deadline_ms < LEAST_MS)
			n->deadline_ms = LEAST_MS;
		if (n->deadline_ms > MOST_MS)
			n->deadline_ms = MOST_MS;
	}
	free(a);
	return bad;
}

static int field(const struct cs_value *top, const char *name, char *to, size_t size)
{
	struct cs_value v;

	return cs_member(top, name, &v) || cs_string(&v, to, size) ? -1 : 0;
}

int cs_ask_session(const struct cs_config *c, const char *fabric, int64_t deadline, struct cs_offer *o,
		   struct cs_why *why)
{
	struct cs_answer *a = calloc(1, sizeof *a);
	char body[64], session[2 * CS_SESSION + 1], secret[2 * CS_SUM + 1];
	struct cs_value top;

	if (!a)
		return cs_fail(why, "no memory");
	snprintf(body, sizeof body, "{\"fabric\":\"%s\"}", fabric);
	int bad = control(c, "/.penstock/fabric/v1/sessions", body, deadline, a, why);

	if (!bad && (cs_json(a->body, a->size, &top) || field(&top, "session", session, sizeof session) ||
		     field(&top, "secret", secret, sizeof secret) || cs_unhex(session, o->session, CS_SESSION) ||
		     cs_unhex(secret, o->secret, CS_SUM) || field(&top, "fabric", o->fabric, sizeof o->fabric) ||
		     field(&top, "network", o->network, sizeof o->network) ||
		     field(&top, "address", o->address, sizeof o->address) || strcmp(o->fabric, fabric) != 0 ||
		     strcmp(o->network, strcmp(fabric, "shm") == 0 ? "unix" : "tcp") != 0))
		bad = cs_fail(why, "%s did not offer a session", c->endpoint.named);
	cs_wipe(secret, sizeof secret);
	cs_wipe(a, sizeof *a);
	free(a);
	return bad;
}
