/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104). */
#include "cs_base.h"

#include <string.h>

static const uint32_t rounds[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, unsigned n)
{
	return x >> n | x << (32 - n);
}

static void compress(uint32_t state[8], const uint8_t block[CS_BLOCK])
{
	uint32_t w[64], v[8];

	for (unsigned i = 0; i < 16; i++)
		w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
		       (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
	for (unsigned i = 16; i < 64; i++) {
		uint32_t a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
		uint32_t b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;

		w[i] = w[i - 16] + a + w[i - 7] + b;
	}
	memcpy(v, state, sizeof v);
	for (unsigned i = 0; i < 64; i++) {
		uint32_t e = turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25);
		uint32_t a = turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22);
		uint32_t first = v[7] + e + ((v[4] & v[5]) ^ (~v[4] & v[6])) + rounds[i] + w[i];
		uint32_t second = a + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

		memmove(v + 1, v, 7 * sizeof *v);
		v[4] += first;
		v[0] = first + second;
	}
	for (unsigned i = 0; i < 8; i++)
		state[i] += v[i];
	cs_wipe(w, sizeof w); /* it may have been a key */
}

void cs_sha256_start(struct cs_sha256 *h)
{
	static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
					    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

	memcpy(h->state, initial, sizeof initial);
	h->bytes = 0;
}

void cs_sha256_add(struct cs_sha256 *h, const void *data, size_t size)
{
	const uint8_t *from = data;

	while (size > 0) {
		size_t used = h->bytes % CS_BLOCK, n = CS_BLOCK - used;

		if (n > size)
			n = size;
		memcpy(h->block + used, from, n);
		h->bytes += n;
		from += n;
		size -= n;
		if (used + n == CS_BLOCK)
			compress(h->state, h->block);
	}
}

void cs_sha256_end(struct cs_sha256 *h, uint8_t sum[CS_SUM])
{
	static const uint8_t padding[CS_BLOCK] = {0x80};
	uint64_t bits = h->bytes * 8;
	size_t used = h->bytes % CS_BLOCK;
	uint8_t length[8];

	for (unsigned i = 0; i < 8; i++)
		length[i] = (uint8_t)(bits >> (56 - 8 * i));
	cs_sha256_add(h, padding, used < 56 ? 56 - used : 120 - used);
	cs_sha256_add(h, length, sizeof length);
	for (unsigned i = 0; i < CS_SUM; i++)
		sum[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
	cs_wipe(h, sizeof *h);
}

void cs_sha256(const void *data, size_t size, uint8_t sum[CS_SUM])
{
	struct cs_sha256 h;

	cs_sha256_start(&h);
	cs_sha256_add(&h, data, size);
	cs_sha256_end(&h, sum);
}

void cs_hmac(const struct cs_part *key, const struct cs_part *parts, size_t count, uint8_t sum[CS_SUM])
{
	uint8_t inner[CS_BLOCK] = {0}, outer[CS_BLOCK];
	struct cs_sha256 h;

	if (key->size > CS_BLOCK)
		cs_sha256(key->data, key->size, inner);
	else if (key->size > 0)
		memcpy(inner, key->data, key->size);
	for (unsigned i = 0; i < CS_BLOCK; i++) {
		outer[i] = inner[i] ^ 0x5c;
		inner[i] ^= 0x36;
	}
	cs_sha256_start(&h);
	cs_sha256_add(&h, inner, sizeof inner);
	for (size_t i = 0; i < count; i++)
		cs_sha256_add(&h, parts[i].data, parts[i].size);
	cs_sha256_end(&h, sum);
	cs_sha256_start(&h);
	cs_sha256_add(&h, outer, sizeof outer);
	cs_sha256_add(&h, sum, CS_SUM);
	cs_sha256_end(&h, sum);
	cs_wipe(inner, sizeof inner);
	cs_wipe(outer, sizeof outer);
}

int cs_same(const uint8_t *a, const uint8_t *b, size_t size)
{
	uint8_t differ = 0;

	for (size_t i = 0; i < size; i++)
		differ |= a[i] ^ b[i];
	return differ == 0;
}

void cs_wipe(void *data, size_t size)
{
	memset(data, 0, size);
	__asm__ volatile("" : : "r"(data) : "memory");
}

void cs_hex(const uint8_t *data, size_t size, char *text)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < size; i++) {
		text[2 * i] = digits[data[i] >> 4];
		text[2 * i + 1] = digits[data[i] & 15];
	}
	text[2 * size] = 0;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int cs_unhex(const char *text, uint8_t *data, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);

		if (low < 0)
			return -1;
		data[i] = (uint8_t)(high << 4 | low);
	}
	return text[2 * size] == 0 ? 0 : -1;
}
