/* AWS Signature Version 4 in the Authorization header, for service s3. */
#define _GNU_SOURCE
#include "cs_base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int cs_fail(struct cs_why *why, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why->text, sizeof why->text, format, args);
	va_end(args);
	for (char *c = why->text; *c; c++) /* a node's own words may be in it, and it goes to terminals */
		if (*c < ' ' || *c > '~')
			*c = '?';
	return -1;
}

void cs_date(time_t now, char text[CS_DATE])
{
	struct tm t;

	text[0] = 0;
	if (gmtime_r(&now, &t))
		strftime(text, CS_DATE, "%Y%m%dT%H%M%SZ", &t);
}

static void add(struct cs_sha256 *h, const char *text)
{
	cs_sha256_add(h, text, strlen(text));
}

/* canonical makes the sum of the canonical request. */
static void canonical(const struct cs_signing *what, char text[2 * CS_SUM + 1])
{
	struct cs_sha256 h;
	uint8_t sum[CS_SUM];

	cs_sha256_start(&h);
	add(&h, what->method);
	add(&h, "\n");
	add(&h, what->path);
	add(&h, "\n");
	add(&h, what->query);
	add(&h, "\n");
	for (size_t i = 0; i < what->count; i++) {
		add(&h, what->headers[i].name);
		add(&h, ":");
		add(&h, what->headers[i].value);
		add(&h, "\n");
	}
	add(&h, "\n");
	for (size_t i = 0; i < what->count; i++) {
		add(&h, i > 0 ? ";" : "");
		add(&h, what->headers[i].name);
	}
	add(&h, "\n");
	add(&h, what->payload);
	cs_sha256_end(&h, sum);
	cs_hex(sum, sizeof sum, text);
}

/* derive makes the key of one day, region and service, step by step. */
static void derive(const char *secret, const struct cs_signing *what, uint8_t key[CS_SUM])
{
	char first[CS_MAX_KEY + 4];
	const struct cs_part steps[] = {
		{what->date, 8}, {what->region, strlen(what->region)}, {"s3", 2}, {"aws4_request", 12}};
	struct cs_part with = {first, (size_t)snprintf(first, sizeof first, "AWS4%s", secret)};

	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		cs_hmac(&with, &steps[i], 1, key);
		with = (struct cs_part){key, CS_SUM};
	}
	cs_wipe(first, sizeof first);
}

int cs_sign(const struct cs_credentials *c, const struct cs_signing *what, char *text, size_t size)
{
	char request[2 * CS_SUM + 1], scope[128], names[512] = "", plain[512];
	uint8_t key[CS_SUM], sum[CS_SUM];
	size_t used = 0;

	if (strlen(what->date) != CS_DATE - 1 || strlen(c->secret) >= CS_MAX_KEY)
		return -1;
	for (size_t i = 0; i < what->count; i++) {
		int n = snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ";" : "", what->headers[i].name);

		if (n < 0 || (size_t)n >= sizeof names - used)
			return -1;
		used += (size_t)n;
	}
	int n = snprintf(scope, sizeof scope, "%.8s/%s/s3/aws4_request", what->date, what->region);

	if (n < 0 || (size_t)n >= sizeof scope)
		return -1;
	canonical(what, request);
	n = snprintf(plain, sizeof plain, "AWS4-HMAC-SHA256\n%s\n%s\n%s", what->date, scope, request);
	if (n < 0 || (size_t)n >= sizeof plain)
		return -1;
	derive(c->secret, what, key);
	cs_hmac(&(struct cs_part){key, sizeof key}, &(struct cs_part){plain, (size_t)n}, 1, sum);
	cs_wipe(key, sizeof key);
	cs_hex(sum, sizeof sum, request);
	n = snprintf(text, size, "AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s", c->access, scope,
		     names, request);
	return n < 0 || (size_t)n >= size ? -1 : 0;
}
