/* One session with a node: its connections and receivers, questions about regions, the proof that memory is free. */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	TCP_CONNS = 4,        /* a transfer uses one; more gain nothing on one link */
	WRITE_MS = 15000,     /* a server that takes nothing for so long is lost: docs/wire.md §9.5 has the same limit */
	SLICE = 256 << 10,    /* what is sent within WRITE_MS: a slow link is not lost */
	REGION_MS = 5000,     /* for REGION_OK */
	FENCE_MS = 3000,      /* docs/wire.md §8.4: the server needs up to 2 s */
	SLACK_MS = 2000,      /* beyond a request's deadline, for FORGOTTEN */
	PINGS = 3,            /* to each idle time: two may be lost */
	STACK = 256 << 10
};

void cs_ref(struct cs_session *s)
{
	atomic_fetch_add(&s->refs, 1);
}

void cs_unref(struct cs_session *s)
{
	if (atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	for (uint32_t i = 0; i < s->count; i++)
		cs_close_fd(s->links[i].fd);
	if (s->server >= 0)
		close(s->server);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->mu);
	free(s);
}

/* cs_end shuts the connections, which wakes the receivers. A child's copies do not keep them alive. */
void cs_end(struct cs_session *s, const char *why)
{
	pthread_mutex_lock(&s->mu);
	if (!atomic_load(&s->ended)) {
		snprintf(s->why.text, sizeof s->why.text, "%s", why);
		atomic_store(&s->ended, 1);
		for (uint32_t i = 0; i < s->count; i++)
			shutdown(s->links[i].fd, SHUT_RDWR);
	}
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
}

int cs_broke(struct cs_session *s, const char *what)
{
	char text[128];

	snprintf(text, sizeof text, "the server broke the protocol: %s", what);
	cs_end(s, text);
	return -1;
}

/* wait waits for a change until the deadline; 0 when it has passed. The session is locked. */
static int wait_for_change(struct cs_session *s, int64_t deadline)
{
	struct timespec until = cs_until(deadline);

	return pthread_cond_timedwait(&s->changed, &s->mu, &until) != ETIMEDOUT;
}

/* turn waits until no other frame is on its way out of the link; -1: not before the deadline, or the session ended. */
static int turn(struct cs_link *l, int64_t deadline)
{
	struct cs_session *s = l->session;

	pthread_mutex_lock(&s->mu);
	while (l->writing && !atomic_load(&s->ended) && wait_for_change(s, deadline))
		;
	int bad = l->writing || atomic_load(&s->ended);

	if (!bad)
		l->writing = 1;
	pthread_mutex_unlock(&s->mu);
	return bad ? -1 : 0;
}

static void end_turn(struct cs_link *l)
{
	pthread_mutex_lock(&l->session->mu);
	l->writing = 0;
	pthread_cond_broadcast(&l->session->changed);
	pthread_mutex_unlock(&l->session->mu);
}

/* write_by writes a frame whose header is out by the deadline. */
static int write_by(struct cs_link *l, const struct cs_frame *f, const void *body, int64_t deadline)
{
	uint8_t header[CS_HEADER];
	const char *from = body;
	size_t left = f->length;

	if (turn(l, deadline)) {
		cs_end(l->session, "the data connection takes no frames");
		return -1;
	}
	cs_encode(f, header);
	int bad = cs_send(l->fd, header, sizeof header, left ? MSG_MORE : 0, deadline);

	while (!bad && left > 0) {
		size_t n = left < SLICE ? left : SLICE;

		bad = cs_send(l->fd, from, n, 0, cs_now() + WRITE_MS);
		from += n;
		left -= n;
	}
	end_turn(l);
	if (bad)
		cs_end(l->session, "the data connection takes no frames");
	return bad;
}

int cs_write(struct cs_link *l, const struct cs_frame *f, const void *body)
{
	return write_by(l, f, body, cs_now() + WRITE_MS);
}

/* cs_read reads all of it, or fails at the end of the connection. In the times between it keeps the session alive. */
int cs_read(struct cs_link *l, void *data, size_t size)
{
	char *to = data;

	while (size > 0) {
		ssize_t n = recv(l->fd, to, size, MSG_WAITALL);

		if (n > 0) {
			to += n;
			size -= (size_t)n;
		} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
			return -1;
		} else if (errno == EAGAIN && l->index == 0 &&
			   cs_write(l, &(struct cs_frame){.type = CS_PING}, NULL)) {
			return -1;
		}
	}
	return 0;
}

/* answer gives a frame to the one who waits for it. */
static int answer(struct cs_session *s, enum cs_type question, const struct cs_frame *f)
{
	int twice = 0;

	pthread_mutex_lock(&s->mu);
	for (struct cs_waiter *w = s->waiters; w; w = w->next) {
		if (w->question != question || w->region != f->region)
			continue;
		twice = w->done;
		w->answer = *f;
		w->done = 1;
		break;
	}
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
	return twice ? cs_broke(s, "two answers to one question") : 0; /* nobody waits: it was given up */
}

static int confirm(struct cs_session *s)
{
	pthread_mutex_lock(&s->mu);
	int good = s->closing && !s->confirmed;

	s->confirmed |= good;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
	return good ? 0 : cs_broke(s, "CLOSED without a CLOSE");
}

static int take(struct cs_link *l, const struct cs_frame *f)
{
	struct cs_session *s = l->session;

	switch (f->type) {
	case CS_REGION_OK:
	case CS_REGION_REFUSED:
		return answer(s, CS_REGION, f);
	case CS_FORGOTTEN:
		return answer(s, CS_FORGET, f);
	case CS_ASK:
	case CS_ATTACHED:
		return answer(s, CS_ATTACH, f);
	case CS_CLOSED:
		return s->shm ? confirm(s) : cs_broke(s, "CLOSED on tcp");
	case CS_PONG:
		return 0;
	}
	return s->shm ? cs_broke(s, "a frame that is not for shm") : cs_tcp_take(l, f);
}

static void *receiver(void *argument)
{
	struct cs_link *l = argument;
	struct cs_session *s = l->session;
	uint8_t header[CS_HEADER];
	struct cs_frame f;

	while (cs_read(l, header, sizeof header) == 0) {
		if (cs_decode(header, &f)) {
			cs_broke(s, "no frame of a server");
			break;
		}
		if (take(l, &f))
			break;
	}
	cs_end(s, "the data connection ended");
	cs_tcp_drop(l);
	pthread_mutex_lock(&s->mu);
	s->receivers--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
	cs_unref(s);
	return NULL;
}

static int start(struct cs_link *l)
{
	struct cs_session *s = l->session;

	cs_ref(s);
	pthread_mutex_lock(&s->mu);
	s->receivers++;
	pthread_mutex_unlock(&s->mu);
	int bad = cs_thread(receiver, l, STACK);

	if (bad) {
		pthread_mutex_lock(&s->mu);
		s->receivers--;
		pthread_mutex_unlock(&s->mu);
		cs_unref(s);
	}
	return bad;
}

/* join opens and proves one more data connection. */
static int join_link(struct cs_session *s, const struct cs_offer *o, int64_t deadline, struct cs_why *why)
{
	struct cs_ready ready;
	int fd = s->shm ? cs_shm_connect(o->address, deadline, &s->server, why)
			: cs_tcp_connect(o->address, deadline, why);

	if (fd < 0)
		return -1;
	cs_keep_fd(fd);
	struct cs_link *l = &s->links[s->count];

	*l = (struct cs_link){.session = s, .fd = fd, .index = s->count};
	if (cs_handshake(fd, o, l->index, deadline, &ready, why)) {
		cs_close_fd(fd);
		return -1;
	}
	int64_t ping = ready.idle_ms / PINGS > 0 ? ready.idle_ms / PINGS : 1;
	struct timeval idle = {.tv_sec = (time_t)(ping / 1000), .tv_usec = (suseconds_t)(ping % 1000) * 1000};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
	if (s->count == 0)
		s->limits = ready;
	s->count++;
	return 0;
}

static int open_on(const struct cs_config *c, int shm, const struct cs_node *n, int64_t deadline,
		   struct cs_session **out, struct cs_why *why)
{
	struct cs_offer o;
	struct cs_session *s;

	s = calloc(1, sizeof *s);
	if (!s)
		return cs_fail(why, "no memory");
	if (cs_ask_session(c, shm ? "shm" : "tcp", deadline, &o, why)) {
		cs_wipe(&o, sizeof o);
		free(s);
		return -1;
	}
	atomic_store(&s->refs, 1);
	s->shm = shm;
	s->server = -1;
	s->wait_ms = n->deadline_ms + SLACK_MS;
	memcpy(s->id, o.session, sizeof s->id);
	pthread_mutex_init(&s->mu, NULL);
	cs_condition(&s->changed);
	int bad = 0;

	for (uint32_t want = shm ? 1 : TCP_CONNS; !bad && s->count < want;) {
		bad = join_link(s, &o, deadline, why);
		if (!bad && s->limits.conns < want)
			want = s->limits.conns ? s->limits.conns : 1;
	}
	cs_wipe(&o, sizeof o);
	for (uint32_t i = 0; !bad && i < s->count; i++)
		bad = start(&s->links[i]) ? cs_fail(why, "no thread") : 0;
	if (!bad && shm)
		bad = cs_shm_attach(s, deadline, why);
	if (bad) {
		cs_end(s, "not opened");
		cs_unref(s);
		return -1;
	}
	*out = s;
	return 0;
}

int cs_open(const struct cs_config *c, int64_t deadline, struct cs_session **s, struct cs_why *why)
{
	struct cs_why shm = {"not asked for"};
	struct cs_node n;

	if (cs_ask_node(c, cs_share(deadline, 2), &n, why))
		return -1;
	if (c->choice != CS_TCP) {
		if (!n.shm)
			cs_fail(&shm, "%s", n.shm_not);
		else if (open_on(c, 1, &n, c->choice == CS_AUTO ? cs_share(deadline, 2) : deadline, s, &shm) == 0)
			return 0;
		if (c->choice == CS_SHM)
			return cs_fail(why, "shm cannot be used: %.200s", shm.text);
	}
	if (!n.tcp)
		return cs_fail(why, "no fabric: tcp is down or off, shm: %.150s", shm.text);
	return open_on(c, 0, &n, deadline, s, why);
}

int cs_question(struct cs_session *s, const struct cs_frame *f, struct cs_frame *a, int64_t deadline, struct cs_why *why)
{
	struct cs_waiter w = {.question = f->type == CS_PRESENT ? CS_ATTACH : (enum cs_type)f->type,
			      .region = (uint32_t)f->region};
	int bad;

	pthread_mutex_lock(&s->mu);
	w.next = s->waiters;
	s->waiters = &w;
	pthread_mutex_unlock(&s->mu);
	write_by(&s->links[0], f, NULL, deadline); /* whoever waits holds up the application */
	pthread_mutex_lock(&s->mu);
	while (!w.done && !atomic_load(&s->ended) && wait_for_change(s, deadline))
		;
	for (struct cs_waiter **at = &s->waiters; *at; at = &(*at)->next) {
		if (*at == &w) {
			*at = w.next;
			break;
		}
	}
	*a = w.answer;
	if (w.done)
		bad = 0;
	else
		bad = atomic_load(&s->ended) ? cs_fail(why, "session lost: %.200s", s->why.text)
					     : cs_fail(why, "the server did not answer in time");
	pthread_mutex_unlock(&s->mu);
	return bad;
}

int cs_grant(struct cs_token *t, char text[CS_TEXT], struct cs_why *why)
{
	struct cs_session *s = t->session;
	struct cs_frame f = {.type = CS_REGION, .size = t->size}, a;
	char id[2 * CS_SESSION + 1];

	pthread_mutex_lock(&s->mu);
	int spent = s->last_region == UINT32_MAX || s->last_token == UINT32_MAX;

	t->region = spent ? 0 : ++s->last_region;
	t->number = spent ? 0 : ++s->last_token;
	pthread_mutex_unlock(&s->mu);
	if (spent) {
		cs_end(s, "the session has no numbers left");
		return cs_fail(why, "the session has no numbers left: try again");
	}
	f.region = t->region;
	if (s->shm) {
		f.status = CS_FOREIGN;
		f.offset = (uint64_t)(uintptr_t)t->window;
	}
	if (cs_question(s, &f, &a, cs_now() + REGION_MS, why)) {
		/* Nobody has its token. The fence brings the windows of the session's other tokens back. */
		cs_fence(s, cs_now() + FENCE_MS);
		return -1;
	}
	if (a.type != CS_REGION_OK || a.status != CS_OK)
		return cs_fail(why, "the server refused the memory with status %u (docs/wire.md, section 7)", a.status);
	cs_hex(s->id, sizeof s->id, id);
	snprintf(text, CS_TEXT, "ps1:%s:%s:%08x%08x:%016x:%016zx", s->shm ? "shm" : "tcp", id, t->number,
		 t->region, 0, t->size);
	pthread_mutex_lock(&s->mu);
	t->next_grant = s->grants;
	s->grants = t;
	pthread_mutex_unlock(&s->mu);
	return 0;
}

/* quiet waits until no receiver is inside the window and the transfer of the token is over. */
static int quiet(struct cs_token *t, int64_t deadline)
{
	struct cs_session *s = t->session;
	int busy;

	pthread_mutex_lock(&s->mu);
	while ((busy = t->touching > 0 || (t->begun && !t->finished)) && !atomic_load(&s->ended) &&
	       wait_for_change(s, deadline))
		;
	pthread_mutex_unlock(&s->mu);
	return busy ? -1 : 0;
}

int cs_take_back(struct cs_token *t, struct cs_why *why)
{
	struct cs_session *s = t->session;
	struct cs_frame f = {.type = CS_FORGET, .region = t->region}, a;
	int64_t deadline = cs_now() + s->wait_ms;

	pthread_mutex_lock(&s->mu);
	for (struct cs_token **at = &s->grants; *at; at = &(*at)->next_grant) {
		if (*at == t) {
			*at = t->next_grant;
			break;
		}
	}
	pthread_mutex_unlock(&s->mu);
	if (!atomic_load(&s->ended) && cs_question(s, &f, &a, deadline, why) == 0 && a.status == CS_OK &&
	    quiet(t, deadline) == 0)
		return 0;
	if (cs_fence(s, cs_now() + FENCE_MS) == 0)
		return 0;
	return cs_fail(why, "the memory must not be reused: the server did not confirm that it lets go of it");
}

/* gone tells whether the server's process has ended, and with it all that it could do to this process's memory. */
static int gone(const struct cs_session *s, int64_t deadline)
{
	int64_t left = deadline - cs_now();
	struct pollfd p = {s->server, POLLIN, 0};

	return s->server >= 0 && poll(&p, 1, left > 0 ? (int)left : 0) > 0 && (p.revents & POLLIN) != 0;
}

int cs_fence(struct cs_session *s, int64_t deadline)
{
	pthread_mutex_lock(&s->mu);
	int ask = s->shm && !s->closing && !atomic_load(&s->ended);

	s->closing |= ask;
	pthread_mutex_unlock(&s->mu);
	if (ask)
		cs_write(&s->links[0], &(struct cs_frame){.type = CS_CLOSE}, NULL);
	if (s->shm) {
		pthread_mutex_lock(&s->mu);
		while (!s->confirmed && !atomic_load(&s->ended) && wait_for_change(s, deadline))
			;
		int confirmed = s->confirmed;

		if (s->patience == 0)
			s->patience = deadline;
		if (deadline > s->patience)
			deadline = s->patience;
		pthread_mutex_unlock(&s->mu);
		cs_end(s, "ended by this side");
		return confirmed || gone(s, deadline) ? 0 : -1;
	}
	cs_end(s, "ended by this side");
	pthread_mutex_lock(&s->mu);
	while (s->receivers > 0 && wait_for_change(s, deadline))
		;
	int left = s->receivers;

	pthread_mutex_unlock(&s->mu);
	return left ? -1 : 0;
}
