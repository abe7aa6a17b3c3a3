//go:build cgo

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int fk_supported(void) { return 1; }

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t time_now(struct fk_nic *nic)
{
	return nic->o.stepped ? nic->cur : clock_ns() - nic->start;
}

void fk_enter(struct fk_nic *nic)
{
	atomic_fetch_add(&nic->waiters, 1);
	pthread_mutex_lock(&nic->mu);
	atomic_fetch_sub(&nic->waiters, 1);
	nic->cur = time_now(nic);
}

void fk_leave(struct fk_nic *nic) { pthread_mutex_unlock(&nic->mu); }

void fk_changed(struct fk_nic *nic)
{
	nic->changes++;
	pthread_cond_broadcast(&nic->change);
}

uint64_t fk_random(struct fk_nic *nic)
{
	uint64_t x = nic->random += 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

void *fk_alloc(struct fk_nic *nic, size_t size)
{
	if (nic->all_len == nic->all_room) {
		size_t room = nic->all_room ? 2 * nic->all_room : 64;
		void **all = realloc(nic->all, room * sizeof(*all));

		if (!all)
			abort();
		nic->all = all;
		nic->all_room = room;
	}
	void *p = calloc(1, size ? size : 1);

	if (!p)
		abort();
	return nic->all[nic->all_len++] = p;
}

/* ---- The heap of acts ---- */

static bool before(const struct fk_act *a, const struct fk_act *b)
{
	return a->due != b->due ? a->due < b->due : a->tie < b->tie;
}

static void put(struct fk_nic *nic, size_t i, struct fk_act *act)
{
	nic->heap[i] = act;
	act->at = i + 1;
}

static void sift(struct fk_nic *nic, size_t i)
{
	struct fk_act *act = nic->heap[i];

	while (i > 0 && before(act, nic->heap[(i - 1) / 2])) {
		put(nic, i, nic->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	for (;;) {
		size_t c = 2 * i + 1;

		if (c >= nic->heap_len)
			break;
		if (c + 1 < nic->heap_len && before(nic->heap[c + 1], nic->heap[c]))
			c++;
		if (!before(nic->heap[c], act))
			break;
		put(nic, i, nic->heap[c]);
		i = c;
	}
	put(nic, i, act);
}

void fk_act_at(struct fk_nic *nic, struct fk_act *act, uint64_t due)
{
	act->due = due;
	act->tie = nic->o.shuffle ? fk_random(nic) : nic->serial++;
	if (!act->at) {
		if (nic->heap_len == nic->heap_room) {
			size_t room = nic->heap_room ? 2 * nic->heap_room : 256;
			struct fk_act **heap = realloc(nic->heap, room * sizeof(*heap));

			if (!heap)
				abort();
			nic->heap = heap;
			nic->heap_room = room;
		}
		put(nic, nic->heap_len++, act);
	}
	sift(nic, act->at - 1);
	if (nic->heap[0] == act)
		pthread_cond_signal(&nic->work);
}

void fk_act_cancel(struct fk_nic *nic, struct fk_act *act)
{
	if (!act->at)
		return;
	size_t i = act->at - 1;
	struct fk_act *last = nic->heap[--nic->heap_len];

	act->at = 0;
	if (last != act) {
		put(nic, i, last);
		sift(nic, i);
	}
	if (nic->heap_len == 0)
		fk_changed(nic);
}

/* run takes the first act and does it. */
static void run(struct fk_nic *nic)
{
	struct fk_act *act = nic->heap[0];

	nic->cur = act->due;
	fk_act_cancel(nic, act);
	switch (act->kind) {
	case FK_ACT_SEND:
		fk_send_turn(nic, act->owner);
		break;
	case FK_ACT_TIMER:
		fk_timer(nic, act->owner);
		break;
	case FK_ACT_RESPOND:
		fk_respond_turn(nic, act->owner);
		break;
	case FK_ACT_WIRE:
		fk_wire_turn(nic, act->owner);
		break;
	case FK_ACT_FLUSH:
		fk_qp_flush(nic, act->owner);
		break;
	case FK_ACT_LOOSE:
		fk_deliver(nic, act->owner);
		break;
	}
}

static void *worker(void *arg)
{
	struct fk_nic *nic = arg;
	unsigned done = 0;

	pthread_mutex_lock(&nic->mu);
	while (!nic->stop) {
		if (nic->heap_len == 0) {
			pthread_cond_wait(&nic->work, &nic->mu);
			continue;
		}
		uint64_t due = nic->heap[0]->due;

		if (due > clock_ns() - nic->start) {
			due += nic->start;
			struct timespec t = {.tv_sec = (time_t)(due / 1000000000u),
					     .tv_nsec = (long)(due % 1000000000u)};

			pthread_cond_timedwait(&nic->work, &nic->mu, &t);
			continue;
		}
		run(nic);
		/* A mutex is not fair: calls of the program would starve. */
		if (++done % 16 == 0 && atomic_load(&nic->waiters) > 0) {
			pthread_mutex_unlock(&nic->mu);
			sched_yield();
			pthread_mutex_lock(&nic->mu);
		}
	}
	pthread_mutex_unlock(&nic->mu);
	return NULL;
}

/* ---- Making and ending ---- */

struct fk_nic *fk_new(const struct fk_options *options)
{
	struct fk_nic *nic = calloc(1, sizeof(*nic));
	pthread_condattr_t attr;

	if (!nic)
		return NULL;
	nic->o = *options;
	nic->random = options->seed;
	nic->start = clock_ns();
	nic->log = calloc((size_t)options->log, sizeof(*nic->log));
	nic->violations = calloc(FK_MAX_VIOLATIONS, sizeof(*nic->violations));
	if (!nic->log || !nic->violations) {
		free(nic->log);
		free(nic->violations);
		free(nic);
		return NULL;
	}
	nic->next_qpn = (uint32_t)fk_random(nic) & 0x7fffff;
	nic->next_key = (uint32_t)fk_random(nic);
	pthread_mutex_init(&nic->mu, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&nic->work, &attr);
	pthread_cond_init(&nic->change, &attr);
	pthread_condattr_destroy(&attr);
	nic->api.size = NV_API_SIZE;
	fk_fill_device_calls(&nic->api);
	fk_fill_memory_calls(&nic->api);
	fk_fill_cq_calls(&nic->api);
	fk_fill_qp_calls(&nic->api);
	fk_fill_dc_calls(nic);
	if (!nic->o.stepped)
		nic->running = pthread_create(&nic->thread, NULL, worker, nic) == 0;
	return nic;
}

void *fk_table(struct fk_nic *nic) { return &nic->api; }

static void free_packets(struct fk_packet *p)
{
	while (p) {
		struct fk_packet *next = p->next;

		free(p);
		p = next;
	}
}

void fk_close(struct fk_nic *nic)
{
	fk_enter(nic);
	nic->stop = true;
	for (int i = 0; i < nic->rule_count; i++)
		nic->rules[i]->released = true;
	fk_changed(nic);
	pthread_cond_signal(&nic->work);
	fk_leave(nic);
	if (nic->running)
		pthread_join(nic->thread, NULL);
	if (nic->n.contexts > 0)
		return;
	for (size_t i = 0; i < nic->heap_len; i++)
		if (nic->heap[i]->kind == FK_ACT_LOOSE)
			free(nic->heap[i]->owner);
	for (struct fk_qp *qp = nic->qps; qp; qp = qp->next) {
		free_packets(qp->egress);
		for (struct fk_held *h = qp->held, *next; h; h = next) {
			next = h->next;
			free(h);
		}
	}
	for (int i = 0; i < nic->rule_count; i++)
		free_packets(nic->rules[i]->held);
	for (size_t i = 0; i < nic->all_len; i++)
		free(nic->all[i]);
	free(nic->all);
	free(nic->heap);
	free(nic->rules);
	free(nic->free_qpn);
	free(nic->log);
	free(nic->violations);
	pthread_cond_destroy(&nic->work);
	pthread_cond_destroy(&nic->change);
	pthread_mutex_destroy(&nic->mu);
	free(nic);
}

/* ---- The test's control ---- */

int fk_step(struct fk_nic *nic)
{
	fk_enter(nic);
	int any = nic->o.stepped && nic->heap_len > 0;

	if (any)
		run(nic);
	fk_leave(nic);
	return any;
}

uint64_t fk_now(struct fk_nic *nic)
{
	fk_enter(nic);
	uint64_t now = nic->cur;

	fk_leave(nic);
	return now;
}

uint64_t fk_advance(struct fk_nic *nic, uint64_t time)
{
	uint64_t done = 0;

	fk_enter(nic);
	uint64_t until = nic->cur + time;

	for (; nic->o.stepped && nic->heap_len > 0 && nic->heap[0]->due <= until; done++)
		run(nic);
	if (nic->o.stepped)
		nic->cur = until;
	fk_leave(nic);
	return done;
}

int fk_busy(struct fk_nic *nic)
{
	fk_enter(nic);
	int busy = nic->heap_len > 0;

	fk_leave(nic);
	return busy;
}

uint64_t fk_changes(struct fk_nic *nic)
{
	fk_enter(nic);
	uint64_t n = nic->changes;

	fk_leave(nic);
	return n;
}

void fk_await(struct fk_nic *nic, uint64_t seen, int timeout_ms)
{
	uint64_t until = clock_ns() + (uint64_t)timeout_ms * 1000000u;
	struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};

	fk_enter(nic);
	while (nic->changes == seen && pthread_cond_timedwait(&nic->change, &nic->mu, &t) == 0)
		;
	fk_leave(nic);
}

void fk_blame(struct fk_nic *nic, const char *format, ...)
{
	va_list args;

	if (nic->violation_count == FK_MAX_VIOLATIONS)
		return;
	va_start(args, format);
	vsnprintf(nic->violations[nic->violation_count++], FK_TEXT, format, args);
	va_end(args);
	fk_changed(nic);
}

int fk_violations(struct fk_nic *nic)
{
	fk_enter(nic);
	int n = nic->violation_count;

	fk_leave(nic);
	return n;
}

void fk_violation(struct fk_nic *nic, int index, char text[FK_TEXT])
{
	fk_enter(nic);
	memcpy(text, nic->violations[index], FK_TEXT);
	fk_leave(nic);
}

void fk_read_counters(struct fk_nic *nic, struct fk_counters *out)
{
	fk_enter(nic);
	*out = nic->n;
	fk_leave(nic);
}

/* ---- Accesses to memory ---- */

void fk_log(struct fk_nic *nic, struct fk_qp *qp, const struct fk_access *access)
{
	struct fk_access *a = &nic->log[nic->log_seq % (uint64_t)nic->o.log];

	*a = *access;
	a->seq = ++nic->log_seq;
	a->qpn = qp->qp.qp_num;
}

uint64_t fk_mark(struct fk_nic *nic)
{
	fk_enter(nic);
	uint64_t mark = nic->log_seq;

	fk_leave(nic);
	return mark;
}

int fk_accesses(struct fk_nic *nic, uint64_t mark, uint64_t addr, uint64_t len, struct fk_access *out, int max)
{
	int n = 0;

	fk_enter(nic);
	uint64_t room = (uint64_t)nic->o.log;

	if (nic->log_seq > mark + room)
		n = -1;
	for (uint64_t s = mark; n >= 0 && n < max && s < nic->log_seq; s++) {
		const struct fk_access *a = &nic->log[s % room];

		if (a->addr < addr + len && addr < a->addr + a->len)
			out[n++] = *a;
	}
	fk_leave(nic);
	return n;
}

/* ---- Rules ---- */

int fk_inject(struct fk_nic *nic, const struct fk_rule_options *options)
{
	fk_enter(nic);
	if (nic->rule_count == nic->rule_room) {
		nic->rule_room = nic->rule_room ? 2 * nic->rule_room : 16;
		nic->rules = realloc(nic->rules, (size_t)nic->rule_room * sizeof(*nic->rules));
		if (!nic->rules)
			abort();
	}
	struct fk_rule *r = fk_alloc(nic, sizeof(*r));

	r->o = *options;
	r->held_end = &r->held;
	int id = nic->rule_count;

	nic->rules[nic->rule_count++] = r;
	fk_leave(nic);
	return id;
}

struct fk_rule *fk_match(struct fk_nic *nic, enum fk_point point, struct fk_device *dev, uint32_t qpn, int op)
{
	for (int i = 0; i < nic->rule_count; i++) {
		struct fk_rule *r = nic->rules[i];

		if (r->removed || r->o.point != (int)point || r->o.times == 0 ||
		    (r->o.device >= 0 && r->o.device != dev->index) || (r->o.qpn && r->o.qpn != qpn) ||
		    (r->o.op && r->o.op != op))
			continue;
		if (r->o.skip > 0) {
			r->o.skip--;
			continue;
		}
		if (r->o.times > 0)
			r->o.times--;
		r->hits++;
		fk_changed(nic);
		return r;
	}
	return NULL;
}

void fk_hold_call(struct fk_nic *nic, const struct fk_rule *rule)
{
	while (!rule->released)
		pthread_cond_wait(&nic->change, &nic->mu);
	nic->cur = time_now(nic);
}

void fk_await_acks(struct fk_nic *nic, const uint64_t *unacked, const char *call)
{
	enum { PATIENCE_S = 10 }; /* the library has no limit: an acknowledgement follows the taking at once, or never */
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += PATIENCE_S;
	while (*unacked > 0 && pthread_cond_timedwait(&nic->change, &nic->mu, &t) == 0)
		;
	if (*unacked > 0)
		fk_blame(nic, "%s: events that were taken are not acknowledged", call);
	nic->cur = time_now(nic);
}

int fk_call_rule(struct fk_nic *nic, enum fk_point point, struct fk_device *dev, uint32_t qpn)
{
	struct fk_rule *r = fk_match(nic, point, dev, qpn, 0);

	if (!r)
		return 0;
	if (r->o.effect == FK_HOLD)
		fk_hold_call(nic, r);
	return r->o.err;
}

uint64_t fk_rule_hits(struct fk_nic *nic, int rule)
{
	fk_enter(nic);
	uint64_t hits = nic->rules[rule]->hits;

	fk_leave(nic);
	return hits;
}

void fk_rule_release(struct fk_nic *nic, int rule)
{
	fk_enter(nic);
	struct fk_rule *r = nic->rules[rule];

	r->released = true;
	r->removed = true;
	fk_release_packets(nic, r);
	for (struct fk_qp *qp = nic->qps; qp; qp = qp->next)
		fk_release_held(nic, qp);
	fk_changed(nic);
	fk_leave(nic);
}

void fk_rule_remove(struct fk_nic *nic, int rule)
{
	fk_enter(nic);
	nic->rules[rule]->removed = true;
	fk_leave(nic);
}

#endif /* NV_HAVE_VERBS */
