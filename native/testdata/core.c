/*
 * Tests of the C core against a table of functions that fail when told to. The Go test TestCore compiles it with
 * the core under the address sanitizer and runs it: what leaks, or is used after its end, fails it too. The oracle is
 * what the table saw: calls, arguments, objects alive.
 */
#define _GNU_SOURCE
#include "../nv.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int bad_checks;

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("core.c:%d: %s: ", __LINE__, #condition);                                               \
			printf(__VA_ARGS__);                                                                           \
			printf("\n");                                                                                  \
			bad_checks++;                                                                                  \
		}                                                                                                      \
	} while (0)

/* How a call reports its failure. */
enum manner { BY_VALUE, BY_ERRNO, BY_NOTHING, MANNERS };

static struct {
	const char *fail; /* the function that fails, once */
	enum manner manner;
	int hit;
	int alive; /* lists, contexts, PDs, MRs, channels, CQs, QPs */
	int unacked;

	/* Work requests. */
	struct nv_work taken[256];
	int taken_count, longest_chain, room; /* room: taken before a chain fails */
	int no_bad;
	int unchained_flags, sge_of_zero;

	/* Completions to give. */
	struct ibv_wc wc[256];
	int wc_count, wc_at, poll_result; /* poll_result: instead, when not 0 */

	struct ibv_async_event event;
	struct ibv_qp_attr modified;
	int modified_mask;
	enum ibv_qp_state state;
	int link;
	int failing_gid, gid_reads;
} fake;

static int fails(const char *name)
{
	if (!fake.fail || fake.hit || strcmp(fake.fail, name) != 0) {
		errno = EDOM; /* a call that went well may leave anything there */
		return 0;
	}
	fake.hit = 1;
	if (fake.manner != BY_NOTHING)
		errno = EXDEV;
	return 1;
}

static int result(const char *name)
{
	if (!fails(name))
		return 0;
	return fake.manner == BY_VALUE ? EXDEV : -1;
}

static void *object(const char *name, size_t size)
{
	void *o;

	if (fails(name))
		return NULL;
	o = calloc(1, size);
	fake.alive++;
	return o;
}

static int drop(const char *name, void *o)
{
	int r = result(name);

	if (r)
		return r;
	fake.alive--;
	free(o);
	return 0;
}

static struct ibv_device devices[2] = {{.name = "none0"}, {.name = "fake0"}};

static struct ibv_device **get_device_list(const struct nv_api *api, int *count)
{
	struct ibv_device **list = object("ibv_get_device_list", 3 * sizeof(*list));

	(void)api;
	if (!list)
		return NULL;
	list[0] = &devices[0];
	list[1] = &devices[1];
	*count = 2;
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	fake.alive--;
	free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
	return device->name;
}

static __be64 get_device_guid(struct ibv_device *device)
{
	return device == &devices[1] ? htobe64(0x0123456789abcdefULL) : 0;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct ibv_context *ctx;

	if (device == &devices[0]) {
		errno = EACCES;
		return NULL;
	}
	ctx = object("ibv_open_device", sizeof(*ctx));
	if (!ctx)
		return NULL;
	ctx->device = device;
	ctx->async_fd = eventfd(0, 0);
	return ctx;
}

static int close_device(struct ibv_context *ctx)
{
	int fd = ctx->async_fd;
	int r = drop("ibv_close_device", ctx);

	if (!r)
		close(fd);
	return r;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	(void)ctx;
	memset(attr, 0xee, sizeof(*attr));
	memset(attr->fw_ver, 'f', sizeof(attr->fw_ver)); /* without a zero byte */
	attr->max_mr_size = 1ULL << 40;
	attr->phys_port_cnt = 2;
	attr->max_qp = 11;
	attr->max_cq = 12;
	attr->max_cqe = 13;
	attr->max_qp_wr = 14;
	attr->max_mr = 15;
	attr->max_qp_rd_atom = 16;
	attr->max_qp_init_rd_atom = 17;
	return result("ibv_query_device");
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	(void)ctx;
	attr->state = port == 1 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	attr->active_mtu = IBV_MTU_2048;
	attr->gid_tbl_len = 5;
	attr->max_msg_sz = 1u << 30;
	attr->lid = 77;
	attr->link_layer = (uint8_t)fake.link;
	return result("ibv_query_port");
}

static int query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	(void)ctx, (void)port;
	fake.gid_reads++;
	if (index == fake.failing_gid)
		return -1;
	memset(gid->raw, index == 1 ? 0 : 0xa0 + index, sizeof(gid->raw)); /* entry 1 is empty */
	return 0;
}

static int gid_info(struct ibv_context *ctx, uint8_t port, int index, int *type, char netdev[NV_NETDEV_BYTES])
{
	(void)ctx, (void)port;
	if (index == 3)
		return ENOENT;
	*type = index == 0 ? NV_GID_ROCE_V1 : NV_GID_ROCE_V2;
	snprintf(netdev, NV_NETDEV_BYTES, "eth%d", index);
	return 0;
}

static int numa_node(struct ibv_device *device)
{
	return device == &devices[1] ? 1 : -1;
}

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
	(void)ctx;
	return object("ibv_alloc_pd", sizeof(struct ibv_pd));
}

static int dealloc_pd(struct ibv_pd *pd)
{
	return drop("ibv_dealloc_pd", pd);
}

static int seen_access;

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = object("ibv_reg_mr", sizeof(*mr));

	(void)pd, (void)addr, (void)length;
	seen_access = access;
	if (mr) {
		mr->lkey = 5;
		mr->rkey = 6;
	}
	return mr;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
				    int access)
{
	(void)pd;
	CHECK(offset == 4096 && length == 8192 && iova == 0x7000 && fd == 9, "arguments of the dma-buf");
	seen_access = access;
	return object("ibv_reg_dmabuf_mr", sizeof(struct ibv_mr));
}

static int dereg_mr(struct ibv_mr *mr)
{
	return drop("ibv_dereg_mr", mr);
}

struct fake_channel {
	struct ibv_comp_channel channel;
	struct ibv_cq *cq;
};

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *ctx)
{
	struct fake_channel *c = object("ibv_create_comp_channel", sizeof(*c));

	(void)ctx;
	if (!c)
		return NULL;
	c->channel.fd = eventfd(0, 0);
	return &c->channel;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	int fd = channel->fd;
	int r = drop("ibv_destroy_comp_channel", channel);

	if (!r)
		close(fd);
	return r;
}

static struct ibv_cq *last_cq;

static struct ibv_cq *create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel,
				int comp_vector)
{
	(void)ctx, (void)cq_context;
	CHECK(cqe == 99 && comp_vector == 0, "arguments of the queue");
	last_cq = object("ibv_create_cq", sizeof(*last_cq));
	((struct fake_channel *)channel)->cq = last_cq;
	return last_cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	CHECK(fake.unacked == 0, "%d events were not acknowledged", fake.unacked);
	return drop("ibv_destroy_cq", cq);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq;
	CHECK(solicited_only == 0, "not every completion");
	return result("ibv_req_notify_cq");
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	eventfd_t value;
	int r = result("ibv_get_cq_event");

	if (r)
		return r;
	if (eventfd_read(channel->fd, &value) != 0) /* waits, where the core did not set O_NONBLOCK */
		return -1;
	*cq = ((struct fake_channel *)channel)->cq;
	*cq_context = NULL;
	fake.unacked++;
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	CHECK(cq != NULL, "no queue");
	fake.unacked -= (int)count;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	int n = 0;

	(void)cq;
	if (fails("ibv_poll_cq"))
		return -2;
	while (n < count && fake.wc_at < fake.wc_count)
		wc[n++] = fake.wc[fake.wc_at++];
	return fake.poll_result && n == 0 ? fake.poll_result : n;
}

static struct ibv_qp_init_attr seen_init;

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = object("ibv_create_qp", sizeof(*qp));

	(void)pd;
	seen_init = *attr;
	if (qp)
		qp->qp_num = 0xabcdef;
	return qp;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	fake.modified = *attr;
	fake.modified_mask = mask;
	return result("ibv_modify_qp");
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)qp, (void)init;
	CHECK(mask == IBV_QP_STATE, "mask %d", mask);
	attr->qp_state = fake.state;
	return result("ibv_query_qp");
}

static int destroy_qp(struct ibv_qp *qp)
{
	return drop("ibv_destroy_qp", qp);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int length = 0, r = result("ibv_post_send");

	(void)qp;
	if (r) {
		*bad = wr;
		return r;
	}
	for (; wr; wr = wr->next) {
		struct nv_work *w = &fake.taken[fake.taken_count];

		if (fake.room-- == 0) {
			if (!fake.no_bad)
				*bad = wr;
			return ENOMEM;
		}
		*w = (struct nv_work){.id = wr->wr_id, .remote = wr->wr.rdma.remote_addr, .rkey = wr->wr.rdma.rkey};
		w->op = wr->opcode == IBV_WR_RDMA_WRITE ? NV_WRITE : wr->opcode == IBV_WR_RDMA_READ ? NV_READ : 0;
		if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			const uint8_t *imm = (const uint8_t *)&wr->imm_data; /* as it goes out */

			w->op = NV_WRITE_IMM;
			w->imm = (uint32_t)imm[0] << 24 | (uint32_t)imm[1] << 16 | (uint32_t)imm[2] << 8 | imm[3];
		}
		w->signal = wr->send_flags == IBV_SEND_SIGNALED;
		fake.unchained_flags += wr->send_flags & ~(unsigned int)IBV_SEND_SIGNALED ? 1 : 0;
		for (int i = 0; i < wr->num_sge; i++) {
			w->local = wr->sg_list[i].addr;
			w->lkey = wr->sg_list[i].lkey;
			w->length += wr->sg_list[i].length;
			fake.sge_of_zero += wr->sg_list[i].length == 0;
		}
		fake.taken_count++;
		if (++length > fake.longest_chain)
			fake.longest_chain = length;
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int r = result("ibv_post_recv");

	(void)qp;
	CHECK(!wr->next && wr->num_sge == 0 && wr->wr_id == 7, "receive %d of %d pieces", (int)wr->wr_id, wr->num_sge);
	if (r)
		*bad = wr;
	return r;
}

static int get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	eventfd_t value;
	int r = result("ibv_get_async_event");

	if (r)
		return r;
	if (eventfd_read(ctx->async_fd, &value) != 0)
		return -1;
	*event = fake.event;
	fake.unacked++;
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	CHECK(event->event_type == fake.event.event_type, "another event");
	fake.unacked--;
}

#define HAS(name) .name = name
static struct nv_api table = {
	.size = NV_API_SIZE, HAS(get_device_list), HAS(free_device_list), HAS(get_device_name), HAS(get_device_guid),
	HAS(open_device), HAS(close_device), HAS(query_device), HAS(query_port), HAS(query_gid), HAS(alloc_pd),
	HAS(dealloc_pd), HAS(reg_mr), HAS(reg_dmabuf_mr), HAS(dereg_mr), HAS(create_comp_channel),
	HAS(destroy_comp_channel), HAS(create_cq), HAS(destroy_cq), HAS(req_notify_cq), HAS(get_cq_event),
	HAS(ack_cq_events), HAS(poll_cq), HAS(create_qp), HAS(modify_qp), HAS(query_qp), HAS(destroy_qp),
	HAS(post_send), HAS(post_recv), HAS(get_async_event), HAS(ack_async_event), HAS(gid_info),
	HAS(numa_node),
};

static void reset_fake(void)
{
	int alive = fake.alive;

	memset(&fake, 0, sizeof(fake));
	fake.alive = alive;
	fake.room = -1;
	fake.failing_gid = -1;
	fake.link = IBV_LINK_LAYER_ETHERNET;
}

/* Everything that a program may hold. */
struct held {
	struct nv_lib *lib;
	struct nv_device *device;
	struct nv_pd *pd;
	struct nv_mr *mr, *dmabuf;
	struct nv_cq *cq;
	struct nv_qp *qp;
};

static const struct nv_path path = {
	.peer_gid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
	.peer_qpn = 0x111111, .peer_psn = 0x222222, .psn = 0x333333, .mtu = 1024, .gid_index = 3,
	.access = NV_REMOTE_WRITE | NV_REMOTE_READ, .peer_lid = 44, .port = 1, .reads = 9, .hop_limit = 64,
	.traffic_class = 106, .timeout = 14, .retries = 7, .rnr_retries = 6, .min_rnr_timer = 12,
};

static char memory[64];

/* Calls that make something, up to the first that fails. */
static struct nv_status make(struct held *h)
{
	const struct nv_dmabuf dmabuf = {.offset = 4096, .length = 8192, .iova = 0x7000, .fd = 9};
	struct nv_status s = nv_device_open(h->lib, "fake0", &h->device);

	if (!s.err)
		s = nv_pd_open(h->device, &h->pd);
	if (!s.err)
		s = nv_mr_open(h->pd, memory, sizeof(memory), NV_LOCAL_WRITE, &h->mr);
	if (!s.err)
		s = nv_mr_open_dmabuf(h->pd, &dmabuf, NV_REMOTE_READ, &h->dmabuf);
	if (!s.err)
		s = nv_cq_open(h->device, 99, &h->cq);
	if (!s.err)
		s = nv_qp_open(h->pd, h->cq, (struct nv_depths){.works = 33}, &h->qp);
	return s;
}

/* Calls on what was made, up to the first that fails. */
static struct nv_status use(struct held *h)
{
	struct nv_work work = {.id = 1, .op = NV_WRITE, .length = 1};
	struct nv_completion completion;
	struct nv_port_info port;
	struct nv_event event;
	struct nv_status s = nv_port(h->device, 1, &port);
	int32_t n;

	eventfd_write(h->device ? nv_device_fd(h->device) : -1, 1);
	eventfd_write(nv_cq_fd(h->cq), 1);
	if (!s.err)
		s = nv_device_event(h->device, &event);
	if (!s.err)
		s = nv_cq_arm(h->cq);
	if (!s.err)
		s = nv_cq_event(h->cq);
	if (!s.err)
		s = nv_qp_to_init(h->qp, &path);
	if (!s.err)
		s = nv_qp_state(h->qp, &n);
	if (!s.err)
		s = nv_qp_post_receive(h->qp, 7);
	if (!s.err)
		s = nv_qp_post(h->qp, &work, 1, &n);
	if (!s.err)
		s = nv_cq_poll(h->cq, &completion, 1, &n);
	return s;
}

/* Closes one; one that fails is tried again, as its owner may. */
#define CLOSE(what, function)                                                                                          \
	do {                                                                                                           \
		struct nv_status s = what ? function(what) : (struct nv_status){NULL, 0};                              \
		if (s.err && !first.err)                                                                               \
			first = s;                                                                                     \
		if (s.err)                                                                                             \
			s = function(what);                                                                            \
		CHECK(!s.err, "second try: %s: %d", s.call, s.err);                                                    \
	} while (0)

static struct nv_status unmake(struct held *h)
{
	struct nv_status first = {NULL, 0};

	CLOSE(h->qp, nv_qp_close);
	CLOSE(h->cq, nv_cq_close);
	CLOSE(h->dmabuf, nv_mr_close);
	CLOSE(h->mr, nv_mr_close);
	CLOSE(h->pd, nv_pd_close);
	CLOSE(h->device, nv_device_close);
	nv_release(h->lib);
	return first;
}

static struct held opened(void)
{
	struct held h = {0};

	CHECK(nv_open_table(&table, &h.lib) == NV_AVAILABLE, "open");
	return h;
}

static struct held made(void)
{
	struct held h;
	struct nv_status s;

	reset_fake();
	h = opened();
	s = make(&h);
	CHECK(!s.err, "%s: %d", s.call, s.err);
	return h;
}

/* Each function that can fail, in each manner: its name and errno come back, and nothing stays behind. */
static void test_every_failure(void)
{
	static const char *const names[] = {
		"ibv_get_device_list", "ibv_open_device", "ibv_query_device", "ibv_alloc_pd", "ibv_reg_mr",
		"ibv_reg_dmabuf_mr", "ibv_create_comp_channel", "ibv_create_cq", "ibv_create_qp", "ibv_query_port",
		"ibv_get_async_event", "ibv_req_notify_cq", "ibv_get_cq_event", "ibv_modify_qp", "ibv_query_qp",
		"ibv_post_recv", "ibv_post_send", "ibv_poll_cq", "ibv_destroy_qp", "ibv_destroy_cq", "ibv_destroy_comp_channel",
		"ibv_dereg_mr", "ibv_dealloc_pd", "ibv_close_device",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		for (enum manner manner = 0; manner < MANNERS; manner++) {
			int want = manner == BY_NOTHING || strcmp(names[i], "ibv_poll_cq") == 0 ? EIO : EXDEV;
			struct nv_status s, closing;
			struct held h;

			/* A list that comes without a list and without an errno is an empty one. */
			if (i == 0 && manner == BY_NOTHING)
				want = ENODEV;
			reset_fake();
			fake.fail = names[i];
			fake.manner = manner;
			h = opened();
			s = make(&h);
			if (!s.err)
				s = use(&h);
			closing = unmake(&h);
			if (!s.err)
				s = closing;
			CHECK(fake.hit, "%s was not called", names[i]);
			CHECK(s.err == want, "%s: errno %d, want %d", names[i], s.err, want);
			CHECK(s.call && (strcmp(s.call, names[i]) == 0 || want == ENODEV), "%s: %s", names[i], s.call);
			CHECK(fake.alive == 0, "%s: %d objects stay", names[i], fake.alive);
			CHECK(fake.unacked == 0, "%s: %d events", names[i], fake.unacked);
		}
	}
}

static void test_devices(void)
{
	struct nv_device_info *list, info;
	struct nv_status s;
	struct held h = made();
	int32_t n;

	s = nv_devices(h.lib, &list, &n);
	CHECK(!s.err && n == 2, "%d devices", n);
	CHECK(strcmp(list[0].name, "none0") == 0 && list[0].unopened == EACCES && list[0].ports == 0, "unopened");
	CHECK(list[1].unopened == 0 && memcmp(&list[1], (nv_device_info(h.device, &info), &info), sizeof(info)) == 0,
	      "listed and opened differ");
	CHECK(info.guid == 0x0123456789abcdefULL && info.numa_node == 1 && info.max_mr_bytes == 1ULL << 40, "info");
	CHECK(strlen(info.firmware) == 63, "firmware of %zu", strlen(info.firmware));
	CHECK(info.ports == 2 && info.max_qp == 11 && info.max_cq == 12 && info.max_cq_depth == 13 &&
		      info.max_qp_depth == 14 && info.max_mr == 15 && info.max_reads == 16 && info.max_issued == 17,
	      "limits");
	nv_free(list);
	unmake(&h);

	/* An adapter whose query fails is closed again, and listed. */
	h = made();
	fake.fail = "ibv_query_device";
	s = nv_devices(h.lib, &list, &n);
	CHECK(!s.err && n == 2 && list[1].unopened == EXDEV, "%d devices", n);
	nv_free(list);
	/* A machine without RDMA in its kernel. */
	fake.hit = 0;
	fake.fail = "ibv_get_device_list";
	fake.manner = BY_NOTHING;
	s = nv_devices(h.lib, &list, &n);
	CHECK(!s.err && n == 0 && list == NULL, "%d devices", n);
	unmake(&h);
	CHECK(fake.alive == 0, "%d objects stay", fake.alive);
}

/* A queue of which only the channel is left can be closed, and nothing else. */
static void test_half_closed(void)
{
	struct held h = made();
	struct nv_completion completion;
	struct nv_qp *qp = NULL;
	int32_t n = -1;

	CHECK(!nv_qp_close(h.qp).err, "queue pair");
	h.qp = NULL;
	fake.fail = "ibv_destroy_comp_channel";
	CHECK(nv_cq_close(h.cq).err == EXDEV && fake.hit, "the channel stays");
	CHECK(nv_cq_poll(h.cq, &completion, 1, &n).err == EBADF && n == 0, "poll: %d", n);
	CHECK(nv_cq_arm(h.cq).err == EBADF && nv_cq_event(h.cq).err == EBADF, "notification");
	CHECK(nv_qp_open(h.pd, h.cq, (struct nv_depths){.works = 33}, &qp).err == EBADF && !qp, "a queue pair");
	CHECK(!unmake(&h).err && fake.alive == 0, "%d objects stay", fake.alive);
}

static struct nv_range table_of(int32_t first, int32_t end)
{
	return (struct nv_range){.first = first, .end = end};
}

static void test_ports(void)
{
	struct held h = made();
	struct nv_port_info port;
	struct nv_gid gids[5];
	int32_t n;

	CHECK(!nv_port(h.device, 1, &port).err && port.active == 1 && port.link == NV_LINK_ETHERNET &&
		      port.mtu == 2048 && port.gids == 5 && port.max_message == 1u << 30 && port.lid == 77,
	      "port 1");
	CHECK(!nv_port(h.device, 2, &port).err && port.active == 0, "port 2");
	CHECK(!nv_gids(h.device, 1, table_of(0, 5), gids, 5, &n).err && n == 3, "%d entries", n);
	CHECK(gids[0].index == 0 && gids[0].type == NV_GID_ROCE_V1 && gids[0].raw[15] == 0xa0, "entry 0");
	CHECK(gids[1].index == 2 && gids[1].type == NV_GID_ROCE_V2 && strcmp(gids[1].network, "eth2") == 0, "entry 2");
	CHECK(gids[2].index == 4, "entry 4");
	CHECK(!nv_gids(h.device, 1, table_of(0, 5), gids, 1, &n).err && n == 1, "%d entries in room for one", n);
	/* One entry alone, one that is empty, and none: nothing else of the table is read. */
	fake.gid_reads = 0;
	CHECK(!nv_gids(h.device, 1, table_of(2, 3), gids, 5, &n).err && n == 1 && gids[0].index == 2, "entry 2 alone");
	CHECK(!nv_gids(h.device, 1, table_of(1, 2), gids, 5, &n).err && n == 0, "the empty entry alone");
	CHECK(!nv_gids(h.device, 1, table_of(2, 2), gids, 5, &n).err && n == 0, "no entry");
	CHECK(!nv_gids(h.device, 1, table_of(3, 1), gids, 5, &n).err && n == 0, "an end before the first");
	CHECK(fake.gid_reads == 2, "%d entries were read", fake.gid_reads);
	fake.failing_gid = 0;
	CHECK(!nv_gids(h.device, 1, table_of(0, 5), gids, 5, &n).err && n == 2 && gids[0].index == 2, "an entry that fails");
	fake.link = IBV_LINK_LAYER_INFINIBAND;
	CHECK(!nv_gids(h.device, 1, table_of(0, 5), gids, 5, &n).err && gids[0].type == NV_GID_INFINIBAND, "types on InfiniBand");
	unmake(&h);
}

static void test_events(void)
{
	static const struct {
		enum ibv_event_type from;
		int to, port, qp;
	} cases[] = {
		{IBV_EVENT_PORT_ACTIVE, NV_EVENT_PORT_UP, 1, 0},
		{IBV_EVENT_PORT_ERR, NV_EVENT_PORT_DOWN, 1, 0},
		{IBV_EVENT_GID_CHANGE, NV_EVENT_GIDS, 1, 0},
		{IBV_EVENT_LID_CHANGE, NV_EVENT_OTHER, 1, 0},
		{IBV_EVENT_DEVICE_FATAL, NV_EVENT_DEVICE_FATAL, 0, 0},
		{IBV_EVENT_CQ_ERR, NV_EVENT_DEVICE_FATAL, 0, 0},
		{IBV_EVENT_QP_FATAL, NV_EVENT_QP_FATAL, 0, 1},
		{IBV_EVENT_QP_REQ_ERR, NV_EVENT_QP_FATAL, 0, 1},
		{IBV_EVENT_QP_ACCESS_ERR, NV_EVENT_QP_FATAL, 0, 1},
		{IBV_EVENT_COMM_EST, NV_EVENT_OTHER, 0, 1},
		{IBV_EVENT_SRQ_ERR, NV_EVENT_OTHER, 0, 0},
	};
	struct ibv_qp qp = {.qp_num = 0x123456};
	struct held h = made();
	struct nv_event event;

	CHECK(nv_device_event(h.device, &event).err == EAGAIN, "an event of nothing");
	CHECK(nv_cq_event(h.cq).err == EAGAIN, "an event of nothing");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fake.event.event_type = cases[i].from;
		if (cases[i].qp)
			fake.event.element.qp = &qp;
		else
			fake.event.element.port_num = 7;
		eventfd_write(nv_device_fd(h.device), 1);
		CHECK(!nv_device_event(h.device, &event).err, "event %zu", i);
		CHECK(event.type == cases[i].to && event.port == (cases[i].port ? 7 : 0) &&
			      event.qpn == (cases[i].qp ? qp.qp_num : 0),
		      "event %zu: type %d port %d qp %x", i, event.type, event.port, event.qpn);
		CHECK(fake.unacked == 0, "event %zu is not acknowledged", i);
	}
	unmake(&h);
}

/* Which attributes each change of an RC queue pair's state needs: InfiniBand Architecture, volume 1, 11.2.5.2. */
static void test_states(void)
{
	struct held h = made();
	struct ibv_qp_attr *a = &fake.modified;
	struct nv_path other = path;
	int32_t state;

	CHECK(seen_init.qp_type == IBV_QPT_RC && seen_init.cap.max_send_wr == 33 && seen_init.cap.max_send_sge == 1 &&
		      !seen_init.sq_sig_all && seen_init.send_cq == last_cq && seen_init.recv_cq == last_cq,
	      "options of the queue pair");
	CHECK(nv_qp_number(h.qp) == 0xabcdef, "number");
	CHECK(!nv_qp_to_init(h.qp, &path).err && a->qp_state == IBV_QPS_INIT && a->port_num == 1 &&
		      a->qp_access_flags == (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) && a->pkey_index == 0,
	      "init");
	CHECK(fake.modified_mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "mask");
	CHECK(!nv_qp_to_receive(h.qp, &path).err && a->qp_state == IBV_QPS_RTR && a->path_mtu == IBV_MTU_1024 &&
		      a->dest_qp_num == 0x111111 && a->rq_psn == 0x222222 && a->max_dest_rd_atomic == 9 &&
		      a->min_rnr_timer == 12,
	      "receive");
	CHECK(fake.modified_mask == (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	      "mask");
	CHECK(a->ah_attr.is_global == 1 && a->ah_attr.port_num == 1 && a->ah_attr.grh.sgid_index == 3 &&
		      a->ah_attr.grh.hop_limit == 64 && a->ah_attr.grh.traffic_class == 106 &&
		      memcmp(a->ah_attr.grh.dgid.raw, path.peer_gid, 16) == 0,
	      "address on Ethernet");
	fake.link = IBV_LINK_LAYER_INFINIBAND;
	CHECK(!nv_qp_to_receive(h.qp, &path).err && a->ah_attr.is_global == 0 && a->ah_attr.dlid == 44 &&
		      a->ah_attr.port_num == 1,
	      "address on InfiniBand");
	fake.fail = "ibv_query_port";
	CHECK(nv_qp_to_receive(h.qp, &path).err == EXDEV, "a port that does not answer");
	fake.modified_mask = 0;
	other.mtu = 1500;
	CHECK(nv_qp_to_receive(h.qp, &other).err == EINVAL && fake.modified_mask == 0, "MTU of no packet");
	other = path;
	other.gid_index = 256;
	CHECK(nv_qp_to_receive(h.qp, &other).err == EINVAL && fake.modified_mask == 0, "GID of no table");
	CHECK(!nv_qp_to_send(h.qp, &path).err && a->qp_state == IBV_QPS_RTS && a->sq_psn == 0x333333 &&
		      a->timeout == 14 && a->retry_cnt == 7 && a->rnr_retry == 6 && a->max_rd_atomic == 9,
	      "send");
	CHECK(fake.modified_mask == (IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
	      "mask");
	CHECK(!nv_qp_to_error(h.qp).err && a->qp_state == IBV_QPS_ERR && fake.modified_mask == IBV_QP_STATE, "error");
	CHECK(!nv_qp_to_reset(h.qp).err && a->qp_state == IBV_QPS_RESET && fake.modified_mask == IBV_QP_STATE, "reset");
	static const int states[][2] = {
		{IBV_QPS_RESET, NV_QP_RESET}, {IBV_QPS_INIT, NV_QP_INIT}, {IBV_QPS_RTR, NV_QP_READY},
		{IBV_QPS_RTS, NV_QP_SEND},    {IBV_QPS_SQD, NV_QP_SEND},  {IBV_QPS_SQE, NV_QP_ERROR},
		{IBV_QPS_ERR, NV_QP_ERROR},
	};
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		fake.state = (enum ibv_qp_state)states[i][0];
		CHECK(!nv_qp_state(h.qp, &state).err && state == states[i][1], "state %zu is %d", i, state);
	}
	unmake(&h);
}

#define WORKS 70

static struct nv_work work_number(int i)
{
	return (struct nv_work){
		.id = 1000 + (uint64_t)i, .local = 0x10000 + (uint64_t)i, .remote = 0x20000 + (uint64_t)i,
		.length = (uint32_t)(i % 7 == 3 ? 0 : i + 1), .lkey = 0x500 + (uint32_t)i, .rkey = 0x600 + (uint32_t)i,
		.op = i % 2 ? NV_READ : i % 4 ? NV_WRITE_IMM : NV_WRITE, .signal = i % 5 == 0,
		.imm = i % 4 == 2 ? 0x01020300 + (uint32_t)i : 0,
	};
}

/* The works that were taken are the first n, as they were given. */
static void check_taken(int n)
{
	CHECK(fake.taken_count == n, "%d taken, want %d", fake.taken_count, n);
	for (int i = 0; i < n && i < fake.taken_count; i++) {
		struct nv_work want = work_number(i);

		if (want.length == 0)
			want.local = want.lkey = 0; /* no piece of memory at all */
		CHECK(memcmp(&want, &fake.taken[i], sizeof(want)) == 0, "work %d differs", i);
	}
	CHECK(fake.longest_chain <= 32, "a chain of %d", fake.longest_chain);
	CHECK(fake.unchained_flags == 0 && fake.sge_of_zero == 0, "flags or pieces of length 0");
}

static void test_post(void)
{
	struct nv_work works[WORKS];
	struct held h = made();
	struct nv_status s;
	int32_t n;

	for (int i = 0; i < WORKS; i++)
		works[i] = work_number(i);
	for (int count = 0; count <= WORKS; count++) {
		reset_fake();
		s = nv_qp_post(h.qp, works, count, &n);
		CHECK(!s.err && n == count, "%d of %d", n, count);
		check_taken(count);
	}
	for (int room = 0; room < WORKS; room++) {
		reset_fake();
		fake.room = room;
		s = nv_qp_post(h.qp, works, WORKS, &n);
		CHECK(s.err == ENOMEM && n == room, "%d posted, want %d", n, room);
		check_taken(room);
		/* Where the library names no request, none of its chain counts as free. */
		reset_fake();
		fake.room = room;
		fake.no_bad = 1;
		s = nv_qp_post(h.qp, works, WORKS, &n);
		CHECK(s.err == ENOMEM && n >= room && n <= room + 32 && (n % 32 == 0 || n == WORKS), "%d for %d", n, room);
	}
	for (int at = 0; at < WORKS; at++) {
		reset_fake();
		works[at].op = NV_WRITE_IMM + 1;
		s = nv_qp_post(h.qp, works, WORKS, &n);
		CHECK(s.err == EINVAL && n == at, "%d posted before the bad one %d", n, at);
		check_taken(at);
		works[at] = work_number(at);
	}
	unmake(&h);
}

static void test_poll(void)
{
	static const struct {
		enum ibv_wc_status from;
		uint32_t to;
	} cases[] = {
		{IBV_WC_SUCCESS, NV_OK},		   {IBV_WC_LOC_LEN_ERR, NV_LOCAL},
		{IBV_WC_LOC_QP_OP_ERR, NV_LOCAL},	   {IBV_WC_LOC_PROT_ERR, NV_LOCAL},
		{IBV_WC_WR_FLUSH_ERR, NV_FLUSHED},	   {IBV_WC_MW_BIND_ERR, NV_LOCAL},
		{IBV_WC_BAD_RESP_ERR, NV_REMOTE_OTHER},	   {IBV_WC_LOC_ACCESS_ERR, NV_LOCAL},
		{IBV_WC_REM_INV_REQ_ERR, NV_REMOTE_OTHER}, {IBV_WC_REM_ACCESS_ERR, NV_REMOTE_ACCESS},
		{IBV_WC_REM_OP_ERR, NV_REMOTE_OTHER},	   {IBV_WC_RETRY_EXC_ERR, NV_RETRY},
		{IBV_WC_RNR_RETRY_EXC_ERR, NV_RETRY},	   {IBV_WC_FATAL_ERR, NV_OTHER},
		{IBV_WC_RESP_TIMEOUT_ERR, NV_RETRY},	   {IBV_WC_GENERAL_ERR, NV_OTHER},
		{(enum ibv_wc_status)250, NV_OTHER},
	};
	static const struct {
		enum ibv_wc_opcode opcode;
		unsigned int flags;
		uint32_t bytes, imm;
		uint8_t received;
	} kinds[] = {
		{IBV_WC_RDMA_WRITE, 0, 0, 0, 0},
		{IBV_WC_RDMA_WRITE, IBV_WC_WITH_IMM, 0, 0, 0},
		{IBV_WC_RDMA_READ, 0, 6, 0, 0},
		{IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM, 6, 0x01020304, 1},
		{IBV_WC_RECV, 0, 6, 0, 1},
		{IBV_WC_RECV, IBV_WC_WITH_IMM, 6, 0, 1}, /* a SEND has written nothing */
	};
	struct nv_completion list[100];
	struct held h = made();
	int32_t n;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
			struct nv_completion want = {.id = 9, .status = cases[i].to, .qpn = 8, .vendor = 7};

			fake.wc_count = 1;
			fake.wc_at = 0;
			fake.wc[0] = (struct ibv_wc){.wr_id = 9, .status = cases[i].from, .qp_num = 8, .vendor_err = 7,
						     .byte_len = 6, .opcode = kinds[kind].opcode,
						     .wc_flags = kinds[kind].flags};
			memcpy(&fake.wc[0].imm_data, "\1\2\3\4", 4);
			if (cases[i].to == NV_OK) {
				want.vendor = 0;
				want.bytes = kinds[kind].bytes;
				want.received = kinds[kind].received;
				want.has_imm = kinds[kind].imm != 0;
				want.imm = kinds[kind].imm;
			}
			memset(list, 0xee, sizeof(list));
			CHECK(!nv_cq_poll(h.cq, list, 100, &n).err && n == 1, "%d completions", n);
			CHECK(memcmp(&want, &list[0], sizeof(want)) == 0, "case %zu, kind %zu: status %u", i, kind,
			      list[0].status);
		}
	}
	for (int have = 0; have <= 100; have++) {
		for (int room = 0; room <= 100; room += 25) {
			int want = have < room ? have : room;

			fake.wc_count = have;
			fake.wc_at = 0;
			for (int i = 0; i < have; i++)
				fake.wc[i] = (struct ibv_wc){.wr_id = (uint64_t)i};
			CHECK(!nv_cq_poll(h.cq, list, room, &n).err && n == want, "%d of %d", n, want);
			CHECK(fake.wc_at == want, "%d were taken, %d given", fake.wc_at, want);
			CHECK(n == 0 || list[n - 1].id == (uint64_t)n - 1, "order");
		}
	}
	/* What came before the failure is not lost. */
	fake.wc_count = 64;
	fake.wc_at = 0;
	fake.poll_result = -1;
	CHECK(nv_cq_poll(h.cq, list, 100, &n).err == EIO && n == 64 && list[63].id == 63, "%d before the failure", n);
	fake.poll_result = 33;
	CHECK(nv_cq_poll(h.cq, list, 32, &n).err == EIO && n == 0, "more than asked for");
	unmake(&h);
}

/* What has something made from it does not close, and is as before. */
static void test_order(void)
{
	struct held h = made(), second = {0};
	struct nv_qp *qp = NULL;

	CHECK(nv_device_busy(h.device) && nv_cq_busy(h.cq), "busy");
	CHECK(nv_device_close(h.device).err == EBUSY, "device");
	CHECK(nv_pd_close(h.pd).err == EBUSY, "PD");
	CHECK(nv_cq_close(h.cq).err == EBUSY, "CQ");
	CHECK(fake.alive == 7, "%d objects", fake.alive);
	second.lib = h.lib;
	CHECK(!nv_device_open(h.lib, "fake0", &second.device).err && !nv_cq_open(second.device, 99, &second.cq).err,
	      "second");
	CHECK(nv_qp_open(h.pd, second.cq, (struct nv_depths){.works = 33}, &qp).err == EINVAL && !qp, "a queue of another device");
	CHECK(!nv_cq_close(second.cq).err && !nv_device_close(second.device).err, "second");
	CHECK(!use(&h).err, "still in use");
	unmake(&h);
	CHECK(fake.alive == 0, "%d objects stay", fake.alive);
}

static void test_tables(void)
{
	struct nv_api other = table;
	struct held h = {0};

	other.size--;
	CHECK(nv_open_table(&other, &h.lib) == NV_NO_SYMBOL && nv_open_table(NULL, &h.lib) == NV_NO_SYMBOL, "size");
	other = table;
	other.reg_dmabuf_mr = NULL;
	reset_fake();
	CHECK(nv_open_table(&other, &h.lib) == NV_AVAILABLE, "open");
	CHECK(make(&h).err == ENOTSUP, "a library without dma-bufs");
	CHECK(seen_access == IBV_ACCESS_LOCAL_WRITE, "access %d", seen_access);
	unmake(&h);
}

int main(void)
{
	test_every_failure();
	test_devices();
	test_ports();
	test_events();
	test_states();
	test_post();
	test_poll();
	test_order();
	test_half_closed();
	test_tables();
	if (bad_checks)
		printf("%d checks failed\n", bad_checks);
	return bad_checks != 0;
}
