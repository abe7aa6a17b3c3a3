/* rc: the receiver's turns between the server's frames, and the keys of windows: docs/wire.md §10. */
#define _GNU_SOURCE
#include "cs_rc.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LOOK_MS = 5000,    /* between two looks without a reason */
	PATHLESS_MS = 2000 /* a session lives without a path: a rail that comes back within it costs no new session */
};

int cs_rc_new(const char *names, struct cs_rc **out, struct cs_why *why)
{
	struct cs_rc *rc = calloc(1, sizeof *rc);

	if (!rc)
		return cs_fail(why, "no memory");
	cs_fail(&rc->refusal, "no rail of the server is up and reached by a port of this machine");
	if (cs_verbs_open(&rc->lib, why)) {
		free(rc);
		return -1;
	}
	if (cs_rc_look(rc, names, why)) {
		cs_rc_free(rc);
		return -1;
	}
	*out = rc;
	return 0;
}

/* What a driver does not let go stays, with what it was made from. */
void cs_rc_free(struct cs_rc *rc)
{
	for (uint32_t i = 0; i < rc->adapter_count; i++) {
		struct cs_adapter *a = &rc->adapters[i];

		if (nv_cq_close(a->cq).err == 0 && nv_pd_close(a->pd).err == 0)
			nv_device_close(a->device);
	}
	nv_release(rc->lib);
	free(rc);
}

int cs_rc_open(struct cs_session *s, int64_t deadline, struct cs_why *why)
{
	int bad = 0;

	pthread_mutex_lock(&s->mu);
	while (!s->rc->decided && !atomic_load(&s->ended) && cs_wait(s, deadline))
		;
	if (atomic_load(&s->ended))
		bad = cs_fail(why, "session lost: %.200s", s->why.text);
	else if (s->rc->decided == 0)
		bad = cs_fail(why, "no path came up in time");
	else if (s->rc->decided < 0)
		bad = cs_fail(why, "%.200s", s->rc->refusal.text);
	pthread_mutex_unlock(&s->mu);
	return bad;
}

int cs_rc_dead(struct cs_session *s)
{
	pthread_mutex_lock(&s->mu);
	int dead = s->rc->drained && s->rc->stuck == 0;

	pthread_mutex_unlock(&s->mu);
	return dead;
}

static int live(const struct cs_rc *rc)
{
	int n = 0;

	for (int i = 0; i < CS_MAX_PATHS; i++)
		n += rc->paths[i].state != CS_PATH_FREE;
	return n;
}

static int joined(const struct cs_rc *rc, uint8_t rail, uint32_t port)
{
	for (int i = 0; i < CS_MAX_PATHS; i++)
		if (rc->paths[i].state != CS_PATH_FREE && rc->paths[i].rail == rail && rc->paths[i].port == port)
			return 1;
	return 0;
}

/* usable tells whether a path from the port may be offered: the session's adapters do not change once it is decided. */
static int usable(const struct cs_rc *rc, const struct cs_port *p)
{
	if (!p->up || p->strange)
		return 0;
	for (uint32_t i = 0; i < rc->adapter_count; i++)
		if (strcmp(rc->adapters[i].name, p->device) == 0)
			return !atomic_load(&rc->adapters[i].lost);
	return !rc->decided && rc->adapter_count < CS_MAX_KEYS;
}

/*
 * choose finds the port for a rail: in its subnet first, then the one with the fewest paths, then the first. A pair that
 * failed is left out until it is due; while the session opens, each is tried once. -1: none.
 */
static int choose(const struct cs_rc *rc, const struct cs_rail *r, const int counts[CS_MAX_PORTS], int64_t now)
{
	int best = -1, most = 0;

	for (uint32_t i = 0; i < rc->port_count; i++) {
		int rank = cs_rc_rank(&rc->ports[i], r);
		int64_t due = cs_rc_due(rc, r->index, i);

		if (rank == 0 || !usable(rc, &rc->ports[i]))
			continue;
		if (!joined(rc, r->index, i) && due > 0 && (!rc->decided || now < due))
			continue;
		if (best < 0 || rank > most || (rank == most && counts[i] < counts[best])) {
			best = (int)i;
			most = rank;
		}
	}
	return best;
}

/* offer_all offers what is wanted: each rail that is up shall have a path from the port that reaches it best. */
static int offer_all(struct cs_link *l, int64_t now)
{
	struct cs_rc *rc = l->session->rc;
	int counts[CS_MAX_PORTS] = {0};

	for (uint32_t i = 0; i < rc->rail_count && rc->decided >= 0; i++) {
		if (!rc->rails[i].up)
			continue;
		for (uint32_t tries = 0; tries < rc->port_count; tries++) {
			int port = choose(rc, &rc->rails[i], counts, now);

			if (port < 0)
				break;
			if (!joined(rc, rc->rails[i].index, (uint32_t)port)) {
				if (live(rc) >= CS_MAX_PATHS)
					return 0;
				if (cs_rc_offer(l, i, (uint32_t)port))
					return -1;
				if (!joined(rc, rc->rails[i].index, (uint32_t)port))
					continue; /* the adapter refused: the next one */
			}
			counts[port]++;
			break;
		}
	}
	return 0;
}

static void decide(struct cs_session *s, int how)
{
	pthread_mutex_lock(&s->mu);
	s->rc->decided = how;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
}

/* judge tells who opens the session, ends one without a path, and says when to look again; -1: the session has ended. */
static int64_t judge(struct cs_session *s, int64_t now)
{
	struct cs_rc *rc = s->rc;
	int64_t again = now + LOOK_MS;
	int up = 0, any = live(rc);

	for (int i = 0; i < CS_MAX_PATHS; i++)
		up |= rc->paths[i].state == CS_PATH_IS_UP;
	if (rc->listed && !rc->decided && (up || !any))
		decide(s, up ? 1 : -1);
	for (uint32_t i = 0; i < rc->delay_count; i++)
		if (rc->delays[i].until >= now && rc->delays[i].until < again)
			again = rc->delays[i].until;
	if (rc->ping < again)
		again = rc->ping;
	if (any || rc->decided <= 0) {
		rc->pathless = 0;
		return again;
	}
	if (rc->pathless == 0)
		rc->pathless = now;
	if (now - rc->pathless >= PATHLESS_MS) {
		char text[sizeof rc->refusal.text + 32];

		snprintf(text, sizeof text, "no path is left: %.200s", rc->refusal.text);
		cs_end(s, text);
		return -1;
	}
	return rc->pathless + PATHLESS_MS < again ? rc->pathless + PATHLESS_MS : again;
}

/* strike ends the paths that an adapter's event has ended. Of one that is not up the server is told when it has answered. */
static int strike(struct cs_link *l, uint32_t on, const struct nv_event *e)
{
	struct cs_rc *rc = l->session->rc;
	int bad = 0;

	for (int i = 0; i < CS_MAX_PATHS; i++) {
		struct cs_path *p = &rc->paths[i];

		if (p->state == CS_PATH_FREE || p->on != on)
			continue;
		if (e->type == NV_EVENT_PORT_DOWN ? rc->ports[p->port].number != e->port
						  : e->type == NV_EVENT_QP_FATAL ? nv_qp_number(p->qp) != e->qpn
										: e->type != NV_EVENT_DEVICE_FATAL)
			continue;
		if (p->state == CS_PATH_OFFERED)
			p->doomed = 1;
		else
			bad |= cs_rc_retire(l, p, 1);
	}
	return bad;
}

/* events takes what an adapter has to tell. */
static int events(struct cs_link *l, uint32_t on)
{
	enum { MOST = 64 }; /* in one turn */
	struct cs_adapter *a = &l->session->rc->adapters[on];
	int bad = 0;

	for (int i = 0; !bad && i < MOST; i++) {
		struct nv_event e = {0};
		struct nv_status status = nv_device_event(a->device, &e);

		if (status.err == EAGAIN || status.err == EINTR)
			break;
		if (status.err) /* an adapter of which nothing would be heard any more */
			e.type = NV_EVENT_DEVICE_FATAL;
		if (e.type == NV_EVENT_DEVICE_FATAL)
			atomic_store(&a->lost, 1);
		bad = strike(l, on, &e);
		if (status.err)
			break;
	}
	if (!bad && !atomic_load(&a->lost))
		cs_rc_refresh(l->session->rc, a);
	return bad;
}

int cs_rc_wait(struct cs_link *l)
{
	struct cs_session *s = l->session;
	struct cs_rc *rc = s->rc;
	struct pollfd all[1 + CS_MAX_KEYS];
	uint32_t which[CS_MAX_KEYS];

	for (;;) {
		int64_t now = cs_now(); /* one for both: what is not due yet for the first is waited for by the second */

		if (atomic_load(&s->ended) || offer_all(l, now))
			return -1;
		int64_t again = judge(s, now), left = again - cs_now();
		nfds_t count = 1;

		if (again < 0)
			return -1;
		all[0] = (struct pollfd){.fd = l->fd, .events = POLLIN};
		for (uint32_t i = 0; i < rc->adapter_count; i++) {
			if (atomic_load(&rc->adapters[i].lost))
				continue;
			which[count - 1] = i;
			all[count++] = (struct pollfd){.fd = nv_device_fd(rc->adapters[i].device), .events = POLLIN};
		}
		if (poll(all, count, left > 0 ? (int)left : 0) < 0 && errno != EINTR)
			return -1;
		for (nfds_t i = 1; i < count; i++)
			if (all[i].revents && events(l, which[i - 1]))
				return -1;
		if (cs_now() >= rc->ping) {
			rc->ping = cs_now() + l->ping_ms;
			if (cs_write(l, &(struct cs_frame){.type = CS_PING}, NULL))
				return -1;
		}
		if (all[0].revents)
			return 0;
	}
}

/* list takes the server's rails as they are now. Paths of rails that are down are the server's to end. */
static int list(struct cs_link *l, const struct cs_frame *f)
{
	struct cs_rc *rc = l->session->rc;
	uint8_t body[CS_MAX_RAILS * CS_RAIL_BYTES];

	if (cs_read(l, body, f->length))
		return -1;
	rc->rail_count = f->length / CS_RAIL_BYTES;
	rc->listed = 1;
	for (uint32_t i = 0; i < rc->rail_count; i++) {
		const uint8_t *b = body + i * CS_RAIL_BYTES;
		struct cs_rail *r = &rc->rails[i];

		*r = (struct cs_rail){.index = b[0], .up = b[1], .mtu = b[2], .lid = (uint16_t)(b[4] | b[5] << 8)};
		memcpy(r->gid, b + 8, sizeof r->gid);
		int bad = b[1] > 1 || b[3] || b[6] || b[7] || r->mtu < 1 || r->mtu > 5;

		for (uint32_t other = 0; other < i; other++)
			bad |= rc->rails[other].index == r->index;
		if (bad)
			return cs_broke(l->session, "rails that cannot be");
	}
	return 0;
}

static struct cs_path *find(struct cs_rc *rc, uint64_t id)
{
	for (int i = 0; i < CS_MAX_PATHS; i++)
		if (rc->paths[i].state != CS_PATH_FREE && rc->paths[i].id == id)
			return &rc->paths[i];
	return NULL;
}

static int reject(struct cs_link *l, const struct cs_frame *f, struct cs_path *p)
{
	enum { NOT_OURS = 20 }; /* docs/wire.md §7: the GID is not known to belong to the client */
	struct cs_rc *rc = l->session->rc;

	cs_fail(&rc->refusal, "the server refused a path with status %u (docs/wire.md, section 7)", f->status);
	if (f->status == NOT_OURS)
		rc->ports[p->port].strange = 1;
	p->since = 0;
	return cs_rc_retire(l, p, 0);
}

int cs_rc_take(struct cs_link *l, const struct cs_frame *f)
{
	struct cs_rc *rc = l->session->rc;
	uint8_t body[CS_PATH_BYTES];
	struct cs_path *p;

	switch (f->type) {
	case CS_RAILS:
		return list(l, f);
	case CS_PATH_OK:
	case CS_PATH_REFUSED:
		if (f->type == CS_PATH_OK && cs_read(l, body, sizeof body))
			return -1;
		p = find(rc, f->id);
		if (!p || p->state != CS_PATH_OFFERED)
			return cs_broke(l->session, "an answer to no offered path");
		return f->type == CS_PATH_OK ? cs_rc_accept(l, p, body) : reject(l, f, p);
	case CS_LOST:
		p = find(rc, f->id);
		if (!p && f->id > 0 && f->id <= rc->last)
			return 0; /* FENCED was on its way already */
		if (!p || p->state != CS_PATH_IS_UP)
			return cs_broke(l->session, "LOST of a path that was not up");
		return cs_rc_retire(l, p, 1);
	}
	return cs_broke(l->session, "a frame that is not for rc");
}

void cs_rc_drop(struct cs_link *l)
{
	struct cs_session *s = l->session;
	struct cs_rc *rc = s->rc;
	int failed[CS_MAX_PATHS], stuck = 0;

	for (int i = 0; i < CS_MAX_PATHS; i++) /* all of them before the slower destruction of one */
		failed[i] = rc->paths[i].state == CS_PATH_FREE ? 0 : nv_qp_to_error(rc->paths[i].qp).err;
	for (int i = 0; i < CS_MAX_PATHS; i++) {
		if (rc->paths[i].state == CS_PATH_FREE)
			continue;
		int closed = nv_qp_close(rc->paths[i].qp).err;

		stuck += failed[i] && closed;
		rc->paths[i].state = CS_PATH_FREE;
	}
	pthread_mutex_lock(&s->mu);
	rc->stuck += stuck;
	rc->drained = 1;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
}

int cs_rc_key(struct cs_token *t, uint8_t body[4 * CS_MAX_KEYS], uint32_t *size, struct cs_why *why)
{
	struct cs_rc *rc = t->session->rc;
	int access = NV_REMOTE_READ; /* of a GET, too: a read proves what was written */

	if (!t->put)
		access |= NV_LOCAL_WRITE | NV_REMOTE_WRITE;
	memset(body, 0, 4 * CS_MAX_KEYS); /* an adapter that is lost has no path, and no key */
	*size = 4 * rc->adapter_count;
	for (uint32_t i = 0; i < rc->adapter_count; i++) {
		struct cs_adapter *a = &rc->adapters[i];
		struct nv_mr_info info;

		if (atomic_load(&a->lost))
			continue;
		struct nv_status status = nv_mr_open(a->pd, t->window, t->size, access, &t->keys[i]);

		if (status.err) {
			t->keys[i] = NULL;
			return cs_fail(why, "the adapter %s does not take %zu bytes of memory: errno %d%s", a->name, t->size,
				       status.err, status.err == ENOMEM ? " (locked memory: see ulimit -l)" : "");
		}
		nv_mr_info(t->keys[i], &info);
		for (int byte = 0; byte < 4; byte++)
			body[4 * i + (uint32_t)byte] = (uint8_t)(info.rkey >> (8 * byte));
	}
	return 0;
}

int cs_rc_unkey(struct cs_token *t)
{
	int left = 0;

	for (int i = 0; i < CS_MAX_KEYS; i++) {
		if (t->keys[i] && nv_mr_close(t->keys[i]).err)
			left++;
		else
			t->keys[i] = NULL;
	}
	return left ? -1 : 0;
}
