/* One session with a node: its connections and their receivers. */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	TCP_CONNS = 4,        /* a transfer uses one; more gain nothing on one link */
	WRITE_MS = 15000,     /* a server that takes nothing for so long is lost: docs/wire.md §9.5 has the same limit */
	SLICE = 256 << 10,    /* what is sent within WRITE_MS: a slow link is not lost */
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
	if (s->rc)
		cs_rc_free(s->rc);
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

int cs_wait(struct cs_session *s, int64_t deadline)
{
	struct timespec until = cs_until(deadline);

	return pthread_cond_timedwait(&s->changed, &s->mu, &until) != ETIMEDOUT;
}

/* turn waits until no other frame is on its way out of the link; -1: not before the deadline, or the session ended. */
static int turn(struct cs_link *l, int64_t deadline)
{
	struct cs_session *s = l->session;

	pthread_mutex_lock(&s->mu);
	while (l->writing && !atomic_load(&s->ended) && cs_wait(s, deadline))
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

/* cs_write_by writes a frame whose header is out by the deadline. */
int cs_write_by(struct cs_link *l, const struct cs_frame *f, const void *body, int64_t deadline)
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
	return cs_write_by(l, f, body, cs_now() + WRITE_MS);
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
		return cs_answer(s, CS_REGION, f);
	case CS_FORGOTTEN:
		return cs_answer(s, CS_FORGET, f);
	case CS_ASK:
	case CS_ATTACHED:
		return cs_answer(s, CS_ATTACH, f);
	case CS_CLOSED:
		return s->shm ? confirm(s) : cs_broke(s, "CLOSED, but not on shm");
	case CS_PONG:
		return 0;
	}
	if (s->shm)
		return cs_broke(s, "a frame that is not for shm");
	return s->rc ? cs_rc_take(l, f) : cs_tcp_take(l, f);
}

static void *receiver(void *argument)
{
	struct cs_link *l = argument;
	struct cs_session *s = l->session;
	uint8_t header[CS_HEADER];
	struct cs_frame f;

	while ((!s->rc || cs_rc_wait(l) == 0) && cs_read(l, header, sizeof header) == 0) {
		if (cs_decode(header, &f)) {
			cs_broke(s, "no frame of a server");
			break;
		}
		if (take(l, &f))
			break;
	}
	cs_end(s, "the data connection ended");
	if (s->rc)
		cs_rc_drop(l);
	else
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

	l->ping_ms = ping;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
	if (s->count == 0)
		s->limits = ready;
	s->count++;
	return 0;
}

static const char *const names[] = {[CS_SHM] = "shm", [CS_RC] = "rc", [CS_TCP] = "tcp"};

/* connect_all opens the data connections of an offer, and starts their receivers. */
static int connect_all(struct cs_session *s, const struct cs_offer *o, int64_t deadline, struct cs_why *why)
{
	int bad = 0, one = s->shm || s->rc;

	for (uint32_t want = one ? 1 : TCP_CONNS; !bad && s->count < want;) {
		bad = join_link(s, o, deadline, why);
		if (!bad && s->limits.conns < want)
			want = s->limits.conns ? s->limits.conns : 1;
	}
	for (uint32_t i = 0; !bad && i < s->count; i++)
		bad = start(&s->links[i]) ? cs_fail(why, "no thread") : 0;
	return bad;
}

static int open_on(const struct cs_config *c, enum cs_choice fabric, const struct cs_node *n, int64_t deadline,
		   struct cs_session **out, struct cs_why *why)
{
	struct cs_rc *rc = NULL;
	struct cs_offer o;
	struct cs_session *s;

	if (fabric == CS_RC && cs_rc_new(c->devices, &rc, why))
		return -1;
	s = calloc(1, sizeof *s);
	if (!s || cs_ask_session(c, names[fabric], deadline, &o, why)) {
		if (!s)
			cs_fail(why, "no memory");
		if (rc)
			cs_rc_free(rc);
		cs_wipe(&o, sizeof o);
		free(s);
		return -1;
	}
	atomic_store(&s->refs, 1);
	s->shm = fabric == CS_SHM;
	s->rc = rc;
	s->server = -1;
	s->wait_ms = n->deadline_ms + SLACK_MS;
	memcpy(s->id, o.session, sizeof s->id);
	pthread_mutex_init(&s->mu, NULL);
	cs_condition(&s->changed);
	int bad = connect_all(s, &o, deadline, why);

	cs_wipe(&o, sizeof o);
	if (!bad && s->shm)
		bad = cs_shm_attach(s, deadline, why);
	if (!bad && s->rc)
		bad = cs_rc_open(s, deadline, why);
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
	static const enum cs_choice order[] = {CS_SHM, CS_RC, CS_TCP};
	enum { COUNT = sizeof order / sizeof order[0] };
	struct cs_node n;
	char text[sizeof why->text] = "";

	if (cs_ask_node(c, cs_share(deadline, 2), &n, why))
		return -1;
	const int there[] = {[CS_SHM] = n.shm, [CS_RC] = n.rc, [CS_TCP] = n.tcp};

	for (unsigned i = 0; i < COUNT; i++) {
		enum cs_choice fabric = order[i];
		struct cs_why not = {"down or off"};
		size_t used = strlen(text);

		if (c->choice != CS_AUTO && c->choice != fabric)
			continue;
		if (fabric == CS_SHM && !there[fabric])
			cs_fail(&not, "%s", n.shm_not);
		if (there[fabric] && open_on(c, fabric, &n, cs_share(deadline, c->choice == CS_AUTO ? COUNT - i : 1), s, &not) == 0)
			return 0;
		snprintf(text + used, sizeof text - used, "%s%s: %.110s", used ? "; " : "", names[fabric], not.text);
	}
	return cs_fail(why, "no fabric can be used: %s", text);
}
