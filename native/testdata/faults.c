/*
 * Every fault that the adapter can make, at every point and moment of a pair's life. Oracle: a call that fails says
 * so by its name and an errno; what was reported as done is in the memory; everything closes; the adapter keeps its
 * account of what is open and of what a program must not do.
 */
#define _GNU_SOURCE
#include "nic.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

static const char *what; /* is tested */

static void check_status(struct nv_status s)
{
	CHECK(s.err >= 0 && (s.err == 0) == (s.call == NULL), "%s: call %s, errno %d", what, s.call, s.err);
	CHECK(!s.err || strncmp(s.call, "ibv_", 4) == 0, "%s: call %s", what, s.call);
}

static uint8_t near_byte(int i) { return (uint8_t)(i * 7 + 1); }
static uint8_t far_byte(int i) { return (uint8_t)(i * 11 + 5); }

/* The bytes of a work request that was reported as done are where they belong. */
static void check_bytes(const struct pair *p, int work)
{
	for (int i = work * PIECE; i < (work + 1) * PIECE; i++) {
		uint8_t want = work % 2 ? far_byte(i) : near_byte(i);

		if (p->near.memory[i] != want || p->far.memory[i] != want) {
			CHECK(0, "%s: byte %d of work request %d", what, i, work);
			return;
		}
	}
}

/* Polls all that there is. lies: the adapter reports what is not so, or more than once. */
static void take(struct pair *p, int posted, int seen[WORKS], int lies)
{
	struct nv_completion list[DEPTH];
	struct nv_status s;
	int32_t n;

	do {
		s = nv_cq_poll(p->near.cq, list, DEPTH, &n);
		check_status(s);
		CHECK(n >= 0 && n <= DEPTH, "%s: %d completions", what, n);
		for (int i = 0; i < n; i++) {
			int work = (int)(list[i].id - 7000);

			CHECK(work >= 0 && work < posted, "%s: completion of %d, %d are posted", what, work, posted);
			CHECK(list[i].status <= NV_OTHER, "%s: status %u", what, list[i].status);
			if (work < 0 || work >= WORKS)
				continue;
			CHECK(seen[work]++ == 0 || lies, "%s: two completions of %d", what, work);
			if (list[i].status == NV_OK && !lies)
				check_bytes(p, work);
		}
	} while (n > 0 || s.err);
}

static void drain_events(struct pair *p)
{
	struct nv_event event;
	struct nv_status s;

	for (int i = 0; i < 100; i++) {
		s = nv_device_event(p->device, &event);
		if (s.err == EAGAIN)
			break;
		check_status(s);
	}
	CHECK(s.err == EAGAIN, "%s: events without end", what);
	for (int i = 0; i < 100 && (s = nv_cq_event(p->near.cq)).err != EAGAIN; i++)
		check_status(s);
	CHECK(s.err == EAGAIN, "%s: completion events without end", what);
}

static void run(struct fk_nic *nic)
{
	while (fk_step(nic))
		;
}

static void transfer(struct fk_nic *nic, struct pair *p, int lies)
{
	struct nv_work works[WORKS];
	struct nv_port_info port;
	struct nv_gid gids[4];
	int seen[WORKS] = {0};
	int32_t posted = -1, n, state;
	struct nv_status s;

	for (int i = 0; i < MEMORY; i++) {
		p->near.memory[i] = near_byte(i);
		p->far.memory[i] = far_byte(i);
	}
	check_status(nv_cq_arm(p->near.cq));
	works_of(p, works);
	s = nv_qp_post(p->near.qp, works, WORKS, &posted);
	check_status(s);
	CHECK(posted >= 0 && posted <= WORKS && (posted == WORKS || s.err), "%s: %d posted, errno %d", what, posted,
	      s.err);
	run(nic);
	take(p, posted, seen, lies);
	check_status(nv_port(p->device, 1, &port));
	check_status(nv_gids(p->device, 1, (struct nv_range){0, port.gids}, gids, 4, &n));
	check_status(nv_qp_to_error(p->near.qp));
	check_status(nv_qp_state(p->near.qp, &state));
	run(nic);
	take(p, posted, seen, lies);
	drain_events(p);
	check_status(nv_qp_to_reset(p->near.qp));
	run(nic);
	take(p, posted, seen, lies);
}

static void life(const struct fk_options *options, const struct fk_rule_options *rules, int count)
{
	struct fk_nic *nic = nic_new(options);
	struct nv_device_info *infos;
	struct pair p;
	struct nv_status s;
	int ids[4], lies = 0;
	char text[160];
	int32_t n;

	snprintf(text, sizeof(text), "point %d effect %d skip %d times %d status %u errno %d of %d rules, seed %d",
		 rules[0].point, rules[0].effect, (int)rules[0].skip, (int)rules[0].times, rules[0].status, rules[0].err,
		 count, (int)options->seed);
	what = text;
	for (int i = 0; i < count; i++) {
		ids[i] = fk_inject(nic, &rules[i]);
		if (rules[i].point == FK_AT_WORK)
			lies |= rules[i].effect == FK_SHORT || rules[i].effect == FK_TWICE || rules[i].effect == FK_LIE;
	}
	s = pair_open(nic, &p);
	check_status(s);
	check_status(nv_devices(p.lib, &infos, &n));
	nv_free(infos);
	if (!s.err)
		transfer(nic, &p, lies);
	check_status(pair_close(&p));
	/* What was held comes now, and meets memory that is freed. */
	for (int i = 0; i < count; i++)
		fk_rule_release(nic, ids[i]);
	run(nic);
	nic_end(nic, what);
}

static const struct fk_options plain = {
	.latency = 20000, .flush_time = 5000, .timeout_scale = 0.02, .stepped = 1, .poison = 1, .log = 1024,
};

/* One fault, at every point, in every way and at several moments. */
static void one_fault(void)
{
	static const int errnos[] = {EIO, ENOMEM, EAGAIN, EINTR};

	for (int point = FK_AT_OPEN_DEVICE; point <= FK_AT_ACK; point++) {
		int last = point == FK_AT_WORK ? FK_LIE : FK_TWICE;

		for (int effect = FK_FAIL; effect <= last; effect++) {
			/* A call that is held would wait for ever here. */
			if (point < FK_AT_WORK && effect != FK_FAIL)
				continue;
			for (int i = 0; i < 64; i++) {
				struct fk_options o = plain;
				struct fk_rule_options rule = {
					.point = point, .effect = effect, .device = -1, .skip = (uint64_t)i % 4,
					.times = i / 4 % 2 ? 3 : 1, .err = errnos[i / 8 % 4], .batch = (uint32_t)i % 3,
					.status = 1 + (uint32_t)i % 21, .vendor = 0xffffffff, .bytes = (uint64_t)i * 97,
					.late = i & 1, .overtake = i >> 1 & 1,
				};

				if (point == FK_AT_POST && i % 5 == 0)
					rule.batch = UINT32_MAX;
				if (point > FK_AT_WORK && i >= 48)
					rule.times = -1;
				o.keep_completions = i >> 2 & 1;
				life(&o, &rule, 1);
			}
		}
	}
}

/* Several at once, of seeds. */
static void many_faults(void)
{
	for (unsigned seed = 1; seed <= 1500; seed++) {
		struct fk_options o = plain;
		struct fk_rule_options rules[4];
		unsigned state = seed;
		int count = 1 + rand_r(&state) % 4;

		o.seed = seed;
		o.shuffle = 1;
		o.jitter = (uint64_t)(rand_r(&state) % 30000);
		o.keep_completions = rand_r(&state) % 2;
		o.reuse_numbers = rand_r(&state) % 2;
		for (int i = 0; i < count; i++) {
			int point = rand_r(&state) % (FK_AT_ACK + 1);

			rules[i] = (struct fk_rule_options){
				.point = point, .device = -1, .skip = (uint64_t)(rand_r(&state) % 6),
				.times = 1 + rand_r(&state) % 3, .err = 1 + rand_r(&state) % 130,
				.batch = (uint32_t)(rand_r(&state) % 5), .status = 1 + (uint32_t)(rand_r(&state) % 21),
				.bytes = (uint64_t)(rand_r(&state) % PIECE), .late = rand_r(&state) % 2,
				.overtake = rand_r(&state) % 2,
			};
			if (point == FK_AT_WORK)
				rules[i].effect = rand_r(&state) % (FK_LIE + 1);
			else if (point > FK_AT_WORK)
				rules[i].effect = (int[]){FK_FAIL, FK_HOLD, FK_TWICE}[rand_r(&state) % 3];
		}
		life(&o, rules, count);
	}
}

void test_faults(void)
{
	one_fault();
	many_faults();
}
