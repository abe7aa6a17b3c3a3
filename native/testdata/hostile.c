/*
 * A driver that lies: calls of the adapter are replaced by ones that return what no driver should. Oracle: the
 * sanitizers, the bounds that nv.h names, and the adapter's account of what is open.
 */
#define _GNU_SOURCE
#include "nic.h"

#include "nv_api.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct nv_api real;
static int value; /* what a call returns, or which case it is */
static int calls, lists;

/* Lists of devices. */

static char unterminated[NV_NAME_BYTES];

static const char *name_of(struct ibv_device *device)
{
	(void)device;
	return value == 0 ? NULL : unterminated;
}

static struct ibv_device **long_list(const struct nv_api *api, int *count)
{
	struct ibv_device **list = real.get_device_list(api, count);

	lists += list != NULL;
	*count = value;
	return list;
}

static void free_list(struct ibv_device **list)
{
	lists--;
	real.free_device_list(list);
}

/* The device goes after it was listed. */
static struct ibv_context *gone(struct ibv_device *device)
{
	(void)device;
	calls++;
	errno = value;
	return NULL;
}

static void test_lists(struct nv_api *api, struct nv_lib *lib)
{
	static const int counts[] = {INT_MIN, -1, 0, 1, 2, 1000, INT_MAX};
	static const int errnos[] = {ENODEV, 0, -7};
	struct nv_device_info *infos;
	struct nv_device *device = NULL;
	int32_t n;

	api->get_device_list = long_list;
	api->free_device_list = free_list;
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		int want = counts[i] > 0;

		value = counts[i];
		CHECK(!nv_devices(lib, &infos, &n).err && n == want, "%d devices of %d", n, value);
		CHECK(!want || (strcmp(infos[0].name, "fake0") == 0 && !infos[0].unopened), "%s", infos[0].name);
		nv_free(infos);
		CHECK(nv_device_open(lib, "none", &device).err == ENODEV, "no device of this name");
		if (!want)
			CHECK(nv_device_open(lib, "fake0", &device).err == ENODEV, "a list of %d", value);
	}
	api->get_device_list = real.get_device_list;
	api->free_device_list = real.free_device_list;
	CHECK(lists == 0, "%d lists stay", lists);

	api->open_device = gone;
	for (size_t i = 0; i < sizeof(errnos) / sizeof(errnos[0]); i++) {
		int want = errnos[i] > 0 ? errnos[i] : EIO;

		value = errnos[i];
		CHECK(nv_device_open(lib, "fake0", &device).err == want && !device, "errno %d", value);
		CHECK(!nv_devices(lib, &infos, &n).err && n == 1 && infos[0].unopened == want, "errno %d", value);
		nv_free(infos);
	}
	api->open_device = real.open_device;

	memset(unterminated, 'n', sizeof(unterminated));
	api->get_device_name = name_of;
	for (value = 0; value < 2; value++) {
		CHECK(!nv_devices(lib, &infos, &n).err && n == 1, "%d devices", n);
		CHECK(strlen(infos[0].name) == (value ? NV_NAME_BYTES - 1 : 0), "a name of %zu", strlen(infos[0].name));
		CHECK(nv_device_open(lib, "nobody", &device).err == ENODEV, "a name that never ends");
		nv_free(infos);
	}
	api->get_device_name = real.get_device_name;
}

/* Contexts and channels without a descriptor. */

static struct ibv_context *without_events(struct ibv_device *device)
{
	struct ibv_context *ctx = real.open_device(device);

	if (ctx) {
		close(ctx->async_fd);
		ctx->async_fd = -1;
	}
	return ctx;
}

static struct ibv_comp_channel *without_fd(struct ibv_context *ctx)
{
	struct ibv_comp_channel *channel = real.create_comp_channel(ctx);

	if (channel) {
		close(channel->fd);
		channel->fd = -1;
	}
	return channel;
}

static void test_descriptors(struct nv_api *api, struct nv_lib *lib, struct pair *p)
{
	struct nv_device *device = NULL;
	struct nv_cq *cq = NULL;

	api->open_device = without_events;
	CHECK(nv_device_open(lib, "fake0", &device).err == EBADF && !device, "no descriptor of events");
	api->open_device = real.open_device;
	api->create_comp_channel = without_fd;
	CHECK(nv_cq_open(p->device, 4, &cq).err == EBADF && !cq, "no descriptor of a channel");
	api->create_comp_channel = real.create_comp_channel;
}

/* Ports. */

static int odd_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	int r = real.query_port(ctx, port, attr);

	attr->gid_tbl_len = value;
	attr->state = (enum ibv_port_state)99;
	attr->active_mtu = (enum ibv_mtu)-1;
	attr->link_layer = 200;
	return r;
}

static int any_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	(void)ctx, (void)port, (void)index;
	calls++;
	memset(gid, 7, sizeof(*gid));
	return 0;
}

static int endless_name(struct ibv_context *ctx, uint8_t port, int index, int *type, char netdev[NV_NETDEV_BYTES])
{
	(void)ctx, (void)port, (void)index;
	*type = 77;
	memset(netdev, 'e', NV_NETDEV_BYTES);
	return 0;
}

static void test_ports(struct nv_api *api, struct pair *p)
{
	static const int lengths[] = {INT_MIN, -1, 0, 1, 255, 256, 257, 100000, INT_MAX};
	struct nv_gid gids[NV_GIDS];
	struct nv_port_info port;
	int32_t n;

	api->query_port = odd_port;
	api->query_gid = any_gid;
	api->gid_info = endless_name;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		int want = lengths[i] < 0 ? 0 : lengths[i] > NV_GIDS ? NV_GIDS : lengths[i];

		value = lengths[i];
		CHECK(!nv_port(p->device, 1, &port).err && port.gids == want, "%d entries of %d", port.gids, value);
		CHECK(!port.active && port.mtu == 0 && port.link == NV_LINK_UNKNOWN, "a port of no kind");
		calls = 0;
		CHECK(!nv_gids(p->device, 1, (struct nv_range){value, INT_MAX}, gids, NV_GIDS, &n).err, "from %d", value);
		CHECK(n == NV_GIDS - want && calls == n, "%d entries from %d, %d were read", n, value, calls);
		calls = 0;
		CHECK(!nv_gids(p->device, 1, (struct nv_range){INT_MIN, value}, gids, NV_GIDS, &n).err, "to %d", value);
		CHECK(n == want && calls == n, "%d entries to %d, %d were read", n, value, calls);
		CHECK(n == 0 || strlen(gids[n - 1].network) == NV_NETDEV_BYTES - 1, "a name that never ends");
	}
	CHECK(!nv_gids(p->device, 1, (struct nv_range){0, INT_MAX}, gids, -1, &n).err && n == 0, "no room");
	api->query_port = real.query_port;
	api->query_gid = real.query_gid;
	api->gid_info = real.gid_info;
}

/* Events. */

static int odd_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	(void)ctx;
	event->event_type = (enum ibv_event_type)value;
	event->element.qp = NULL;
	return 0;
}

static void forget_event(struct ibv_async_event *event)
{
	CHECK((int)event->event_type == value, "another event");
	calls++;
}

static int no_queue(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	(void)channel, (void)context;
	*cq = NULL;
	return 0;
}

static void test_events(struct nv_api *api, struct pair *p)
{
	struct nv_event event;

	api->get_async_event = odd_event;
	api->ack_async_event = forget_event;
	calls = 0;
	for (value = -2; value < 40; value++) {
		CHECK(!nv_device_event(p->device, &event).err, "event %d", value);
		CHECK(event.type >= NV_EVENT_OTHER && event.type <= NV_EVENT_QP_FATAL && event.qpn == 0 && event.port == 0,
		      "event %d: type %d port %d qp %u", value, event.type, event.port, event.qpn);
	}
	CHECK(calls == 42, "%d events were acknowledged", calls);
	api->get_async_event = real.get_async_event;
	api->ack_async_event = real.ack_async_event;
	api->get_cq_event = no_queue;
	CHECK(nv_cq_event(p->near.cq).err == EIO, "an event of no queue");
	api->get_cq_event = real.get_cq_event;
}

/* Completions and posts. */

static int odd_poll(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	(void)cq, (void)count;
	memset(wc, 0xee, sizeof(*wc));
	wc->status = (enum ibv_wc_status)calls;
	wc->opcode = (enum ibv_wc_opcode)(calls * 3);
	return value;
}

static int odd_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	static struct ibv_send_wr other;

	(void)qp;
	*bad = calls == 0 ? NULL : calls == 1 ? &other : calls == 2 ? wr : (struct ibv_send_wr *)(uintptr_t)-8;
	errno = 0;
	return value;
}

static void test_queues(struct nv_api *api, struct pair *p)
{
	static const int results[] = {INT_MIN, -1, 2, 33, INT_MAX};
	struct nv_completion one;
	struct nv_work works[WORKS];
	struct nv_status s;
	int32_t n;

	api->poll_cq = odd_poll;
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
		value = results[i];
		s = nv_cq_poll(p->near.cq, &one, 1, &n);
		CHECK(s.err == EIO && n == 0, "a poll of %d: %d completions, errno %d", value, n, s.err);
	}
	value = 1;
	for (calls = -3; calls < 300; calls++) {
		CHECK(!nv_cq_poll(p->near.cq, &one, 1, &n).err && n == 1 && one.status <= NV_OTHER, "status %d", calls);
		CHECK((one.status == NV_OK) == (calls == IBV_WC_SUCCESS), "status %d is %u", calls, one.status);
		CHECK(one.id == 0xeeeeeeeeeeeeeeeeULL && one.qpn == 0xeeeeeeee, "status %d: whose it is", calls);
	}
	api->poll_cq = real.poll_cq;

	works_of(p, works);
	api->post_send = odd_post;
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
		value = results[i];
		for (calls = 0; calls < 4; calls++) {
			s = nv_qp_post(p->near.qp, works, WORKS, &n);
			CHECK(s.err == (value > 0 ? value : EIO) && n == (calls == 2 ? 0 : WORKS), "%d: %d posted, errno %d",
			      calls, n, s.err);
		}
	}
	CHECK(!nv_qp_post(p->near.qp, works, -5, &n).err && n == 0, "less than none");
	CHECK(!nv_cq_poll(p->near.cq, &one, -5, &n).err && n == 0, "less than none");
	api->post_send = real.post_send;
}

static int odd_state(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)qp, (void)mask, (void)init;
	attr->qp_state = (enum ibv_qp_state)value;
	return 0;
}

static void test_state(struct nv_api *api, struct pair *p)
{
	int32_t state;

	api->query_qp = odd_state;
	for (value = -3; value < 20; value++)
		CHECK(!nv_qp_state(p->near.qp, &state).err && state >= NV_QP_RESET && state <= NV_QP_ERROR, "state %d",
		      value);
	api->query_qp = real.query_qp;
}

void test_hostile(void)
{
	const struct fk_options options = {.stepped = 1, .timeout_scale = 0.02, .log = 64};
	struct fk_nic *nic = nic_new(&options);
	struct nv_api *api = fk_table(nic);
	struct pair p;
	struct nv_status s = pair_open(nic, &p);

	CHECK(!s.err, "%s: %d", s.call, s.err);
	real = *api;
	test_lists(api, p.lib);
	test_descriptors(api, p.lib, &p);
	test_ports(api, &p);
	test_events(api, &p);
	test_queues(api, &p);
	test_state(api, &p);
	s = pair_close(&p);
	CHECK(!s.err, "%s: %d", s.call, s.err);
	nic_end(nic, "a driver that lies");
}
