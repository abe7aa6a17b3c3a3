/* Frames and the handshake of data connections: docs/wire.md §7. */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <string.h>
#include <sys/random.h>

/* MAX_NUMBER bounds offsets and sizes, so that sums do not overflow. */
#define MAX_NUMBER ((uint64_t)1 << 62)

enum { HELLO = 64, READY = 56, INDEX = 4, RAIL = 24, RAILS = 8, PATH = 40 };

static void put(uint8_t *to, uint64_t n, unsigned size)
{
	for (unsigned i = 0; i < size; i++)
		to[i] = (uint8_t)(n >> (8 * i));
}

static uint64_t get(const uint8_t *from, unsigned size)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < size; i++)
		n |= (uint64_t)from[i] << (8 * i);
	return n;
}

void cs_encode(const struct cs_frame *f, uint8_t bytes[CS_HEADER])
{
	bytes[0] = f->type;
	bytes[1] = f->status;
	put(bytes + 2, 0, 2);
	put(bytes + 4, f->length, 4);
	put(bytes + 8, f->id, 8);
	put(bytes + 16, f->region, 8);
	put(bytes + 24, f->offset, 8);
	put(bytes + 32, f->size, 8);
}

static int body_fits(const struct cs_frame *f)
{
	switch (f->type) {
	case CS_CHALLENGE:
		return f->length == CS_NONCE;
	case CS_READY:
		return f->length == READY;
	case CS_RAILS:
		return f->length % RAIL == 0 && f->length <= RAILS * RAIL;
	case CS_PATH_OK:
		return f->length == PATH;
	case CS_DATA:
		return f->length >= 1 && f->length <= CS_MAX_PAYLOAD;
	}
	return f->length == 0;
}

int cs_decode(const uint8_t bytes[CS_HEADER], struct cs_frame *f)
{
	*f = (struct cs_frame){
		.type = bytes[0],
		.status = bytes[1],
		.length = (uint32_t)get(bytes + 4, 4),
		.id = get(bytes + 8, 8),
		.region = get(bytes + 16, 8),
		.offset = get(bytes + 24, 8),
		.size = get(bytes + 32, 8),
	};
	if (bytes[2] || bytes[3] || f->type == 0 || f->type > CS_LAST_TYPE || f->status > CS_LAST_STATUS)
		return -1;
	return f->offset > MAX_NUMBER || f->size > MAX_NUMBER || !body_fits(f) ? -1 : 0;
}

static int send_frame(int fd, enum cs_type type, const void *body, uint32_t size, int64_t deadline)
{
	uint8_t bytes[CS_HEADER + HELLO];

	cs_encode(&(struct cs_frame){.type = (uint8_t)type, .length = size}, bytes);
	memcpy(bytes + CS_HEADER, body, size);
	return cs_send(fd, bytes, CS_HEADER + size, 0, deadline);
}

static int receive_frame(int fd, enum cs_type type, void *body, int64_t deadline, struct cs_why *why)
{
	uint8_t bytes[CS_HEADER];
	struct cs_frame f;

	if (cs_receive(fd, bytes, sizeof bytes, deadline))
		return cs_fail(why, "the data connection ended in its handshake, or nothing came");
	if (cs_decode(bytes, &f))
		return cs_fail(why, "what listens for data connections is no such server");
	if (f.type == CS_REFUSED)
		return cs_fail(why, "data connection refused with status %u", f.status);
	if (f.type != type || cs_receive(fd, body, f.length, deadline))
		return cs_fail(why, "the server broke the protocol of the handshake");
	return 0;
}

/* proof is the sum of a label, the session and nonces. */
static void prove(const uint8_t key[CS_SUM], const char *label, const struct cs_offer *o, const struct cs_part nonces[2],
		  uint8_t sum[CS_SUM])
{
	const struct cs_part parts[] = {{label, strlen(label)}, {o->session, CS_SESSION}, nonces[0], nonces[1]};

	cs_hmac(&(struct cs_part){key, CS_SUM}, parts, 4, sum);
}

/* greet is the handshake with the key of the connection. */
static int greet(int fd, const struct cs_offer *o, uint32_t index, const uint8_t key[CS_SUM], int64_t deadline,
		 struct cs_ready *r, struct cs_why *why)
{
	uint8_t hello[HELLO] = {'P', 'N', 'S', 'T', 'K', 0, 0, 1}, *nonce = hello + 8 + CS_SESSION;
	uint8_t challenge[CS_NONCE], sum[CS_SUM], ready[READY];
	const struct cs_part none = {"", 0};

	if (getrandom(nonce, CS_NONCE, 0) != CS_NONCE)
		return cs_fail(why, "the kernel gave no random bytes");
	memcpy(hello + 8, o->session, CS_SESSION);
	put(nonce + CS_NONCE, index, INDEX);
	if (send_frame(fd, CS_HELLO, hello, sizeof hello, deadline))
		return cs_fail(why, "the data connection ended in its handshake");
	if (receive_frame(fd, CS_CHALLENGE, challenge, deadline, why))
		return -1;
	prove(key, "penstock data connection, client proof v1", o, (struct cs_part[]){{challenge, CS_NONCE}, none}, sum);
	if (send_frame(fd, CS_PROOF, sum, sizeof sum, deadline))
		return cs_fail(why, "the data connection ended in its handshake");
	if (receive_frame(fd, CS_READY, ready, deadline, why))
		return -1;
	prove(key, "penstock data connection, server proof v1", o,
	      (struct cs_part[]){{nonce, CS_NONCE}, {challenge, CS_NONCE}}, sum);
	if (!cs_same(sum, ready, CS_SUM))
		return cs_fail(why, "the server did not prove that it knows the session");
	*r = (struct cs_ready){
		.region_bytes = get(ready + 32, 8),
		.regions = (uint32_t)get(ready + 40, 4),
		.conns = (uint32_t)get(ready + 44, 4),
		.payload = (uint32_t)get(ready + 48, 4),
		.idle_ms = (uint32_t)get(ready + 52, 4),
	};
	return 0;
}

int cs_handshake(int fd, const struct cs_offer *o, uint32_t index, int64_t deadline, struct cs_ready *r,
		 struct cs_why *why)
{
	uint8_t key[CS_SUM], number[INDEX];

	put(number, index, INDEX);
	memcpy(key, o->secret, CS_SUM);
	if (index > 0)
		prove(o->secret, "penstock data connection, ticket v1", o,
		      (struct cs_part[]){{number, INDEX}, {"", 0}}, key);
	int bad = greet(fd, o, index, key, deadline, r, why);

	cs_wipe(key, sizeof key);
	return bad;
}
