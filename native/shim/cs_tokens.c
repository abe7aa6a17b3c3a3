/* Windows of a session: questions about regions, and the proof that memory is free. */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

enum {
	REGION_MS = 5000, /* for REGION_OK */
	FENCE_MS = 3000   /* docs/wire.md §8.4: the server needs up to 2 s */
};

int cs_answer(struct cs_session *s, enum cs_type question, const struct cs_frame *f)
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

/* asked names a question by what its answer is an answer to. */
static enum cs_type asked(uint8_t type)
{
	switch (type) {
	case CS_PRESENT:
		return CS_ATTACH;
	case CS_KEYED:
		return CS_REGION;
	}
	return (enum cs_type)type;
}

int cs_question(struct cs_session *s, const struct cs_frame *f, const void *body, struct cs_frame *a, int64_t deadline,
		struct cs_why *why)
{
	struct cs_waiter w = {.question = asked(f->type), .region = (uint32_t)f->region};
	int bad;

	pthread_mutex_lock(&s->mu);
	w.next = s->waiters;
	s->waiters = &w;
	pthread_mutex_unlock(&s->mu);
	cs_write_by(&s->links[0], f, body, deadline);
	pthread_mutex_lock(&s->mu);
	while (!w.done && !atomic_load(&s->ended) && cs_wait(s, deadline))
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

/* numbers gives the token those of its region and its own. */
static int numbers(struct cs_token *t, struct cs_why *why)
{
	struct cs_session *s = t->session;

	pthread_mutex_lock(&s->mu);
	int spent = s->last_region == UINT32_MAX || s->last_token == UINT32_MAX;

	t->region = spent ? 0 : ++s->last_region;
	t->number = spent ? 0 : ++s->last_token;
	pthread_mutex_unlock(&s->mu);
	if (!spent)
		return 0;
	cs_end(s, "the session has no numbers left");
	return cs_fail(why, "the session has no numbers left: try again");
}

/* announce has the server take the window. */
static int announce(struct cs_token *t, struct cs_why *why)
{
	struct cs_session *s = t->session;
	struct cs_frame f = {.type = CS_REGION, .region = t->region, .size = t->size}, a;
	uint8_t keys[4 * CS_MAX_KEYS];

	if (s->shm)
		f.status = CS_FOREIGN;
	if (s->shm || s->rc)
		f.offset = (uint64_t)(uintptr_t)t->window;
	if (s->rc) {
		f.type = CS_KEYED;
		if (cs_rc_key(t, keys, &f.length, why))
			return -1;
	}
	if (cs_question(s, &f, s->rc ? keys : NULL, &a, cs_now() + REGION_MS, why)) {
		/* Nobody has its token. The fence brings the windows of the session's other tokens back. */
		cs_fence(s, cs_now() + FENCE_MS);
		return -1;
	}
	if (a.type != CS_REGION_OK || a.status != CS_OK)
		return cs_fail(why, "the server refused the memory with status %u (docs/wire.md, section 7)", a.status);
	return 0;
}

int cs_grant(struct cs_token *t, char text[CS_TEXT], struct cs_why *why)
{
	struct cs_session *s = t->session;
	char id[2 * CS_SESSION + 1];

	if (numbers(t, why))
		return -1;
	if (announce(t, why)) {
		/* The server may have the keys, and an adapter that keeps one keeps the window. */
		if (s->rc && cs_rc_unkey(t) && cs_fence(s, cs_now() + FENCE_MS))
			return CS_SPENT;
		return -1;
	}
	cs_hex(s->id, sizeof s->id, id);
	snprintf(text, CS_TEXT, "ps1:%s:%s:%08x%08x:%016x:%016zx", s->shm ? "shm" : s->rc ? "rc" : "tcp", id, t->number,
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
	       cs_wait(s, deadline))
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
	if (!atomic_load(&s->ended) && cs_question(s, &f, NULL, &a, deadline, why) == 0 && a.status == CS_OK &&
	    quiet(t, deadline) == 0 && (!s->rc || cs_rc_unkey(t) == 0))
		return 0;
	int bad = cs_fence(s, cs_now() + FENCE_MS);

	if (s->rc && cs_rc_unkey(t) == 0) /* also behind queue pairs that are gone, so that nothing stays pinned */
		bad = 0;
	if (!bad)
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

int cs_free(struct cs_token *t)
{
	int bad = cs_fence(t->session, cs_now());

	return !bad || (t->session->rc && cs_rc_unkey(t) == 0);
}

int cs_fence(struct cs_session *s, int64_t deadline)
{
	pthread_mutex_lock(&s->mu);
	int ask = s->shm && !s->closing && !atomic_load(&s->ended);

	s->closing |= ask;
	if (s->patience == 0)
		s->patience = deadline;
	if (deadline > s->patience)
		deadline = s->patience;
	pthread_mutex_unlock(&s->mu);
	if (ask)
		cs_write_by(&s->links[0], &(struct cs_frame){.type = CS_CLOSE}, NULL, deadline);
	if (s->shm) {
		pthread_mutex_lock(&s->mu);
		while (!s->confirmed && !atomic_load(&s->ended) && cs_wait(s, deadline))
			;
		int confirmed = s->confirmed;

		pthread_mutex_unlock(&s->mu);
		cs_end(s, "ended by this side");
		return confirmed || gone(s, deadline) ? 0 : -1;
	}
	cs_end(s, "ended by this side");
	pthread_mutex_lock(&s->mu);
	while (s->receivers > 0 && cs_wait(s, deadline))
		;
	int left = s->receivers;

	pthread_mutex_unlock(&s->mu);
	return left || (s->rc && !cs_rc_dead(s)) ? -1 : 0;
}
