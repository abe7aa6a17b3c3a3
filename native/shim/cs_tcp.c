/* tcp: the receivers place the server's frames in granted windows: docs/wire.md §9. */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
	MAX_TRANSFERS = 1024,     /* begun and not ended on a connection: docs/wire.md §12 */
	SEND_BUFFER = 512 << 10   /* what the node uses: more leaves the cache before it is read */
};

int cs_tcp_connect(const char *address, int64_t deadline, struct cs_why *why)
{
	char host[CS_MAX_HOST];
	const char *colon = strrchr(address, ':'), *from = address, *end = colon;
	int size = SEND_BUFFER;

	if (!colon || colon == address || colon[1] == 0)
		return cs_fail(why, "the address of tcp has no port");
	if (*from == '[' && end[-1] == ']') {
		from++;
		end--;
	}
	memcpy(host, from, (size_t)(end - from));
	host[end - from] = 0;
	int fd = cs_connect(host, colon + 1, deadline, why);

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size); /* a wish */
	if (cs_blocking(fd) == 0)
		return fd;
	cs_close_fd(fd);
	return cs_fail(why, "the socket does not block");
}

static struct cs_transfer *find(struct cs_link *l, uint64_t id)
{
	for (struct cs_transfer *t = l->transfers; t; t = t->next)
		if (t->id == id)
			return t;
	return NULL;
}

/* begin checks a START against the grants; the first for a token is the only one. */
static int begin(struct cs_link *l, const struct cs_frame *f)
{
	struct cs_session *s = l->session;
	struct cs_transfer *t;

	if (find(l, f->id) || l->count >= MAX_TRANSFERS)
		return cs_broke(s, "number of a transfer in use, or too many");
	t = calloc(1, sizeof *t);
	if (!t) {
		cs_end(s, "no memory");
		return -1;
	}
	t->id = f->id;
	t->next = l->transfers;
	l->transfers = t;
	l->count++;
	pthread_mutex_lock(&s->mu);
	struct cs_token *g = s->grants;

	while (g && ((uint64_t)g->number << 32 | g->region) != f->region)
		g = g->next_grant;
	if (g && !g->begun && f->status == (g->put ? CS_STATUS_PUT : CS_STATUS_GET) && f->offset <= g->size &&
	    f->size <= g->size - f->offset) {
		g->begun = 1;
		t->token = g;
		t->window = g->window + f->offset;
		t->size = f->size;
	}
	pthread_mutex_unlock(&s->mu);
	return t->token ? 0 : cs_write(l, &(struct cs_frame){.type = CS_DENY, .id = f->id}, NULL);
}

/* enter allows one access to n bytes at the frame's offset. 1: the transfer is denied. */
static int enter(struct cs_link *l, struct cs_transfer *t, uint64_t offset, uint64_t n, int put)
{
	struct cs_session *s = l->session;

	if (!t)
		return cs_broke(s, "unknown transfer");
	if (!t->token)
		return 1;
	if (t->token->put != put || n > t->size || offset > t->size - n)
		return cs_broke(s, "outside of the window, or the wrong direction");
	pthread_mutex_lock(&s->mu);
	int ended = atomic_load(&s->ended);

	if (!ended)
		t->token->touching++;
	pthread_mutex_unlock(&s->mu);
	return ended ? -1 : 0;
}

static void leave(struct cs_link *l, struct cs_transfer *t)
{
	struct cs_session *s = l->session;

	pthread_mutex_lock(&s->mu);
	t->token->touching--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
}

static int throw_away(struct cs_link *l, size_t size)
{
	char bytes[16 << 10];
	int bad = 0;

	while (!bad && size > 0) {
		size_t n = size < sizeof bytes ? size : sizeof bytes;

		bad = cs_read(l, bytes, n);
		size -= n;
	}
	return bad;
}

static int place(struct cs_link *l, const struct cs_frame *f)
{
	struct cs_transfer *t = find(l, f->id);
	int state = enter(l, t, f->offset, f->length, 0);

	if (state)
		return state > 0 ? throw_away(l, f->length) : -1;
	int bad = cs_read(l, t->window + f->offset, f->length);

	leave(l, t);
	t->placed += f->length;
	return bad;
}

static int serve(struct cs_link *l, const struct cs_frame *f)
{
	struct cs_transfer *t = find(l, f->id);

	if (f->size == 0 || f->size > CS_MAX_PAYLOAD)
		return cs_broke(l->session, "a READ of this size");
	int state = enter(l, t, f->offset, f->size, 1);

	if (state)
		return state > 0 ? 0 : -1;
	struct cs_frame payload = {.type = CS_PAYLOAD, .id = f->id, .offset = f->offset, .length = (uint32_t)f->size};
	int bad = cs_write(l, &payload, t->window + f->offset);

	leave(l, t);
	return bad;
}

/* discard forgets a transfer; of the window nothing is touched any more. */
static void discard(struct cs_link *l, struct cs_transfer *t)
{
	struct cs_session *s = l->session;

	for (struct cs_transfer **at = &l->transfers; *at; at = &(*at)->next) {
		if (*at == t) {
			*at = t->next;
			break;
		}
	}
	l->count--;
	if (t->token) {
		pthread_mutex_lock(&s->mu);
		t->token->finished = 1;
		pthread_cond_broadcast(&s->changed);
		pthread_mutex_unlock(&s->mu);
	}
	free(t);
}

static int finish(struct cs_link *l, const struct cs_frame *f)
{
	struct cs_transfer *t = find(l, f->id);

	if (!t)
		return cs_broke(l->session, "unknown transfer");
	struct cs_frame ack = {.type = CS_ACK, .id = f->id, .size = t->placed};

	discard(l, t);
	return cs_write(l, &ack, NULL);
}

int cs_tcp_take(struct cs_link *l, const struct cs_frame *f)
{
	switch (f->type) {
	case CS_START:
		return begin(l, f);
	case CS_DATA:
		return place(l, f);
	case CS_READ:
		return serve(l, f);
	case CS_DONE:
		return finish(l, f);
	}
	return cs_broke(l->session, "a frame that is not for tcp");
}

/* cs_tcp_drop runs when the receiver is at its end. Tokens of its transfers may be gone afterwards. */
void cs_tcp_drop(struct cs_link *l)
{
	while (l->transfers)
		discard(l, l->transfers);
}
