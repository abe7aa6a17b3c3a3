/*
 * What the protocol parts of the shim share: sums, signatures, JSON, connections, HTTP. Every function may be called
 * by any thread. Functions that can fail return 0 or -1, unless they say otherwise, and put a reason, which
 * never holds a secret, into a struct cs_why.
 */
#ifndef CS_BASE_H
#define CS_BASE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Why something did not work, for people. */
struct cs_why {
	char text[256];
};

/* cs_fail writes the reason and returns -1. */
int cs_fail(struct cs_why *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sums (cs_hash.c). */
enum { CS_SUM = 32, CS_BLOCK = 64 };

struct cs_sha256 {
	uint32_t state[8];
	uint64_t bytes;
	uint8_t block[CS_BLOCK];
};

struct cs_part {
	const void *data;
	size_t size;
};

void cs_sha256_start(struct cs_sha256 *h);
void cs_sha256_add(struct cs_sha256 *h, const void *data, size_t size);
void cs_sha256_end(struct cs_sha256 *h, uint8_t sum[CS_SUM]);
void cs_sha256(const void *data, size_t size, uint8_t sum[CS_SUM]);
void cs_hmac(const struct cs_part *key, const struct cs_part *parts, size_t count, uint8_t sum[CS_SUM]);

/* cs_same compares in constant time. */
int cs_same(const uint8_t *a, const uint8_t *b, size_t size);

/* cs_wipe overwrites secrets; the compiler does not leave it out. */
void cs_wipe(void *data, size_t size);

/* cs_hex writes 2 * size lower case digits and a NUL. cs_unhex takes exactly 2 * size digits. */
void cs_hex(const uint8_t *data, size_t size, char *text);
int cs_unhex(const char *text, uint8_t *data, size_t size);

/* Signatures (cs_sign.c). */
enum {
	CS_MAX_KEY = 256,   /* access and secret keys: those of S3 servers have up to 128 bytes */
	CS_MAX_TOKEN = 4096 /* session tokens: those of AWS have up to about 2 KiB */
};

struct cs_credentials {
	char access[CS_MAX_KEY], secret[CS_MAX_KEY];
	char token[CS_MAX_TOKEN]; /* empty: none */
};

struct cs_header {
	const char *name, *value; /* name in lower case */
};

struct cs_signing {
	const char *method, *path, *query; /* path and query in canonical form */
	const char *region;
	const struct cs_header *headers; /* all that are signed, in the order of their names */
	size_t count;
	const char *payload; /* hash of the body, as text */
	const char *date;    /* value of x-amz-date */
};

/* cs_sign writes the value of the Authorization header by AWS Signature Version 4 for service s3. */
int cs_sign(const struct cs_credentials *c, const struct cs_signing *what, char *text, size_t size);

/* cs_date writes the time as x-amz-date has it. */
enum { CS_DATE = 17 };
void cs_date(time_t now, char text[CS_DATE]);

/* JSON (cs_json.c): values are slices of the text, nothing is copied or allocated. */
enum cs_kind { CS_NOTHING, CS_OBJECT, CS_ARRAY, CS_STRING, CS_NUMBER, CS_TRUE, CS_FALSE, CS_NULL };

struct cs_value {
	enum cs_kind kind;
	const char *text; /* with its quotes or brackets */
	size_t size;
};

/* cs_json reads the one value that the text must be. */
int cs_json(const char *text, size_t size, struct cs_value *value);

/* cs_member finds a member of an object by its name, the last where there are several. cs_next gives the elements of an
 * array one by one: *at is 0 at first. Both work on values of cs_json, and return -1 where there is none. */
int cs_member(const struct cs_value *object, const char *name, struct cs_value *value);
int cs_next(const struct cs_value *array, size_t *at, struct cs_value *value);

/* cs_string decodes a string of fewer than size bytes without NUL. cs_number takes whole numbers below 2^63. */
int cs_string(const struct cs_value *value, char *text, size_t size);
int cs_number(const struct cs_value *value, int64_t *number);

/* Time, threads and connections (cs_net.c). Times are those of CLOCK_MONOTONIC in milliseconds. */
int64_t cs_now(void);

/* cs_until makes a time for pthread_cond_timedwait of conditions that cs_condition has made. */
void cs_condition(pthread_cond_t *c);
struct timespec cs_until(int64_t deadline);

/* cs_share is the deadline of the next of count attempts that follow each other. */
int64_t cs_share(int64_t deadline, unsigned count);

/* cs_thread starts one that takes no signal of the application and that nobody waits for. */
int cs_thread(void *(*run)(void *), void *argument, size_t stack);

/* cs_until_ready waits for the socket; 0: it is ready. */
int cs_until_ready(int fd, short events, int64_t deadline);

/* cs_connect opens a stream to host and port that does not survive exec; -1: not before the deadline. */
int cs_connect(const char *host, const char *port, int64_t deadline, struct cs_why *why);

int cs_blocking(int fd); /* makes it a blocking one */

void cs_net_forked(void); /* in a forked child */

/* HTTP (cs_http.c). */
enum {
	CS_MAX_HOST = 256,
	CS_MAX_BODY = 64 << 10, /* of the control plane, docs/wire.md §6 */
	CS_MAX_HEAD = 16 << 10  /* of an answer: some dozens of short lines */
};

struct cs_endpoint {
	char host[CS_MAX_HOST]; /* name or address, without brackets */
	char port[8];
	char named[CS_MAX_HOST]; /* as the Host header has it */
};

/* cs_endpoint reads http://host[:port][/]. */
int cs_endpoint(const char *url, struct cs_endpoint *e, struct cs_why *why);

struct cs_answer {
	int status;
	size_t size;
	char body[CS_MAX_BODY + 1];
};

/* cs_exchange sends what is in head and body over a connection of its own and reads the answer. */
int cs_exchange(const struct cs_endpoint *e, const struct cs_part request[2], int64_t deadline, struct cs_answer *a,
		struct cs_why *why);

/* cs_parse reads a whole answer; end: the server has closed the connection. 1: there is more to come. */
int cs_parse(const char *text, size_t size, int end, struct cs_answer *a);

/* Streams with deadlines: whole or not at all. They work on sockets of either kind; flags are those of send. */
int cs_send(int fd, const void *data, size_t size, int flags, int64_t deadline);
int cs_receive(int fd, void *data, size_t size, int64_t deadline);

#endif
