/*
 * What nv.h allows at the same time, at the same time: queue pairs are made, used, failed and closed by several
 * threads on one device, while others poll, list devices, take events, register memory, and try to close what is in
 * use. Oracle: the sanitizers, and the adapter's account.
 */
#define _GNU_SOURCE
#include "nic.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORKERS = 4, ROUNDS = 12, BATCHES = 20 };

static struct pair shared;
static struct fk_nic *adapter;
static int done; /* atomic: the workers have ended */

static int is_set(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static void set(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }

/* A worker's queue pair, and the thread that polls for it. */
struct lane {
	struct pair p;
	pthread_t poller;
	int64_t outstanding; /* atomic */
	int stop;            /* atomic */
};

static int64_t left(struct lane *l) { return __atomic_load_n(&l->outstanding, __ATOMIC_ACQUIRE); }

static void *poll_lane(void *arg)
{
	struct lane *l = arg;
	struct nv_completion list[DEPTH];
	int32_t n;

	while (!is_set(&l->stop)) {
		struct nv_status s = nv_cq_poll(l->p.near.cq, list, DEPTH, &n);

		CHECK(!s.err, "%s: %d", s.call, s.err);
		__atomic_sub_fetch(&l->outstanding, n, __ATOMIC_RELEASE);
		s = nv_cq_arm(l->p.near.cq);
		CHECK(!s.err, "%s: %d", s.call, s.err);
		s = nv_cq_event(l->p.near.cq);
		CHECK(!s.err || s.err == EAGAIN, "%s: %d", s.call, s.err);
		sched_yield();
	}
	return NULL;
}

static void await_room(struct lane *l, int64_t most)
{
	time_t end = time(NULL) + 60;

	while (left(l) > most && time(NULL) < end)
		sched_yield();
	CHECK(left(l) <= most, "%d work requests do not complete", (int)left(l));
}

static void use_lane(struct lane *l, unsigned *seed)
{
	int fail_at = rand_r(seed) % (2 * BATCHES);
	struct nv_work works[WORKS];
	int32_t posted, state;

	works_of(&l->p, works);
	for (int i = 0; i < BATCHES; i++) {
		struct nv_status s;

		if (i == fail_at && !nv_qp_to_error(l->p.near.qp).err)
			fk_fail_qp(adapter, nv_qp_number(l->p.far.qp));
		await_room(l, DEPTH - WORKS);
		__atomic_add_fetch(&l->outstanding, WORKS, __ATOMIC_RELEASE);
		s = nv_qp_post(l->p.near.qp, works, WORKS, &posted);
		CHECK(!s.err && posted == WORKS, "%s: %d, %d posted", s.call, s.err, posted);
		s = nv_qp_state(l->p.near.qp, &state);
		CHECK(!s.err, "%s: %d", s.call, s.err);
	}
	await_room(l, 0);
}

static void *worker(void *arg)
{
	unsigned seed = *(unsigned *)arg;

	for (int round = 0; round < ROUNDS; round++) {
		struct lane l = {.p = {.lib = shared.lib, .device = shared.device, .pd = shared.pd}};
		struct nv_status s = end_open(&l.p, &l.p.near, NV_LOCAL_WRITE);

		if (!s.err)
			s = end_open(&l.p, &l.p.far, NV_LOCAL_WRITE | NV_REMOTE_WRITE | NV_REMOTE_READ);
		if (!s.err)
			s = end_connect(&l.p.far, &l.p.near);
		if (!s.err)
			s = end_connect(&l.p.near, &l.p.far);
		CHECK(!s.err, "%s: %d", s.call, s.err);
		if (!s.err && pthread_create(&l.poller, NULL, poll_lane, &l) == 0) {
			use_lane(&l, &seed);
			set(&l.stop);
			pthread_join(l.poller, NULL);
		}
		s = end_close(&l.p.near);
		CHECK(!s.err, "%s: %d", s.call, s.err);
		s = end_close(&l.p.far);
		CHECK(!s.err, "%s: %d", s.call, s.err);
	}
	return NULL;
}

static void *list_and_open(void *arg)
{
	(void)arg;
	while (!is_set(&done)) {
		struct nv_device_info *infos;
		struct nv_device *device;
		int32_t n;

		CHECK(!nv_devices(shared.lib, &infos, &n).err && n == 1, "%d devices", n);
		nv_free(infos);
		if (!nv_device_open(shared.lib, "fake0", &device).err) {
			struct nv_status s = nv_device_close(device);

			CHECK(!s.err, "%s: %d", s.call, s.err);
		}
		sched_yield();
	}
	return NULL;
}

static void *take_events(void *arg)
{
	(void)arg;
	while (!is_set(&done)) {
		struct nv_event event;
		struct nv_status s = nv_device_event(shared.device, &event);

		CHECK(!s.err || s.err == EAGAIN, "%s: %d", s.call, s.err);
		if (s.err)
			sched_yield();
	}
	return NULL;
}

static void *look_and_register(void *arg)
{
	static char memory[4096];

	(void)arg;
	while (!is_set(&done)) {
		struct nv_port_info port;
		struct nv_gid gids[4];
		struct nv_mr *mr;
		int32_t n;

		CHECK(!nv_port(shared.device, 1, &port).err, "port");
		CHECK(!nv_gids(shared.device, 1, (struct nv_range){0, port.gids}, gids, 4, &n).err, "GIDs");
		if (!nv_mr_open(shared.pd, memory, sizeof(memory), NV_LOCAL_WRITE, &mr).err)
			CHECK(!nv_mr_close(mr).err, "memory region");
		sched_yield();
	}
	return NULL;
}

/* Everything is in use by the first pair. */
static void *close_too_early(void *arg)
{
	(void)arg;
	while (!is_set(&done)) {
		CHECK(nv_pd_close(shared.pd).err == EBUSY, "PD");
		CHECK(nv_device_close(shared.device).err == EBUSY, "device");
		CHECK(nv_cq_close(shared.near.cq).err == EBUSY, "CQ");
		sched_yield();
	}
	return NULL;
}

static void *disturb(void *arg)
{
	(void)arg;
	while (!is_set(&done)) {
		const struct timespec moment = {.tv_nsec = 2000000};

		fk_set_port(adapter, 0, 0);
		fk_set_port(adapter, 0, 1);
		nanosleep(&moment, NULL);
	}
	return NULL;
}

void test_threads(void)
{
	static void *(*const others[])(void *) = {list_and_open, take_events, look_and_register, close_too_early, disturb};
	const struct fk_options options = {.latency = 2000, .timeout_scale = 0.02, .log = 1024};
	const int count = sizeof(others) / sizeof(others[0]);
	pthread_t workers[WORKERS], rest[sizeof(others) / sizeof(others[0])];
	unsigned seeds[WORKERS];
	struct nv_status s;

	adapter = nic_new(&options);
	s = pair_open(adapter, &shared);
	CHECK(!s.err, "%s: %d", s.call, s.err);
	for (int i = 0; i < count; i++)
		CHECK(pthread_create(&rest[i], NULL, others[i], NULL) == 0, "thread");
	for (int i = 0; i < WORKERS; i++) {
		seeds[i] = (unsigned)i;
		CHECK(pthread_create(&workers[i], NULL, worker, &seeds[i]) == 0, "thread");
	}
	for (int i = 0; i < WORKERS; i++)
		pthread_join(workers[i], NULL);
	set(&done);
	for (int i = 0; i < count; i++)
		pthread_join(rest[i], NULL);
	s = pair_close(&shared);
	CHECK(!s.err, "%s: %d", s.call, s.err);
	nic_end(adapter, "threads");
}
