/*
 * Tests of nv_dc.c and nv_mlx5.c against functions of libmlx5 and libibverbs that note what they get and fail when
 * told to. The Go test TestDCCore compiles it with the core under the address sanitizer and runs it. The oracle is what
 * the documentation of mlx5dv_create_qp(3), mlx5dv_wr_post(3) and ibv_wr_post(3) asks for, and the objects alive.
 */
#define _GNU_SOURCE
#include "../nv_dc.h"
#include "../nv_mlx5.h"

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
			printf("dc.c:%d: %s: ", __LINE__, #condition);                                                 \
			printf(__VA_ARGS__);                                                                           \
			printf("\n");                                                                                  \
			bad_checks++;                                                                                  \
		}                                                                                                      \
	} while (0)

/* What a request of wr_start and its setters came to. */
struct request {
	uint64_t id, remote, local, key;
	uint32_t rkey, lkey, length, dct;
	unsigned int flags;
	struct ibv_ah *ah;
	char order[8]; /* of the setters: o, a, s */
};

enum { REQUESTS = 64 };

static struct {
	const char *fail; /* the function that fails, once */
	int hit, alive;
	int link, unsupported, plain; /* plain: the queue pair has no extended form */

	struct ibv_qp_init_attr_ex init;
	struct mlx5dv_qp_init_attr mlx5;
	struct ibv_ah_attr ah;
	struct ibv_srq_init_attr srq;
	struct ibv_qp_attr modified[3];
	int masks[3], modifications;

	struct request requests[REQUESTS];
	int count, started, chains, longest;
} fake;

static int fails(const char *name)
{
	if (!fake.fail || fake.hit || strcmp(fake.fail, name) != 0) {
		errno = EDOM; /* a call that went well may leave anything there */
		return 0;
	}
	fake.hit = 1;
	errno = EXDEV;
	return 1;
}

static void *object(const char *name, size_t size)
{
	if (fails(name))
		return NULL;
	fake.alive++;
	return calloc(1, size);
}

static int drop(const char *name, void *o)
{
	if (fails(name))
		return EXDEV;
	fake.alive--;
	free(o);
	return 0;
}

/* ---- libibverbs ---- */

static struct ibv_device device = {.name = "mlx5_0"};

static struct ibv_device **get_device_list(const struct nv_api *api, int *count)
{
	static struct ibv_device *list[] = {&device, NULL};

	(void)api;
	*count = 1;
	return list;
}

static void free_device_list(struct ibv_device **list) { (void)list; }
static const char *get_device_name(struct ibv_device *d) { return d->name; }
static int numa_node(struct ibv_device *d) { return (void)d, 0; }

static __be64 get_device_guid(struct ibv_device *d)
{
	(void)d;
	return 0;
}

static struct ibv_context *open_device(struct ibv_device *d)
{
	struct ibv_context *ctx = object("ibv_open_device", sizeof(*ctx));

	ctx->device = d;
	ctx->async_fd = eventfd(0, EFD_NONBLOCK);
	return ctx;
}

static int close_device(struct ibv_context *ctx)
{
	close(ctx->async_fd);
	return drop("ibv_close_device", ctx);
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	(void)ctx, (void)attr;
	return 0;
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	(void)ctx, (void)port;
	if (fails("ibv_query_port"))
		return EXDEV;
	attr->link_layer = (uint8_t)fake.link;
	return 0;
}

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = object("ibv_alloc_pd", sizeof(*pd));

	pd->context = ctx;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd) { return drop("ibv_dealloc_pd", pd); }

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *channel = object("ibv_create_comp_channel", sizeof(*channel));

	(void)ctx;
	channel->fd = eventfd(0, EFD_NONBLOCK);
	return channel;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	return drop("ibv_destroy_comp_channel", channel);
}

static struct ibv_cq *create_cq(struct ibv_context *ctx, int cqe, void *context, struct ibv_comp_channel *channel,
				int vector)
{
	(void)ctx, (void)cqe, (void)context, (void)channel, (void)vector;
	return object("ibv_create_cq", sizeof(struct ibv_cq));
}

static int destroy_cq(struct ibv_cq *cq) { return drop("ibv_destroy_cq", cq); }

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	if (fails("ibv_modify_qp"))
		return EXDEV;
	fake.modified[fake.modifications] = *attr;
	fake.masks[fake.modifications++] = mask;
	qp->qp_num = attr->qp_state == IBV_QPS_RTR ? 0xabcdef : qp->qp_num;
	return 0;
}

/* ---- The extended queue pair ---- */

struct pair {
	struct ibv_qp_ex ex; /* first: its qp_base is the queue pair */
	struct mlx5dv_qp_ex mlx5;
};

static int destroy_qp(struct ibv_qp *qp) { return drop("ibv_destroy_qp", qp); }

static void wr_start(struct ibv_qp_ex *qp)
{
	(void)qp;
	fake.started = fake.count;
	fake.chains++;
}

static void step(char what)
{
	char *order = fake.requests[fake.count - 1].order;

	order[strlen(order)] = what;
}

static void wr_op(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, char what)
{
	struct request *r = &fake.requests[fake.count++];

	*r = (struct request){.id = qp->wr_id, .flags = qp->wr_flags, .rkey = rkey, .remote = remote};
	step(what);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote) { wr_op(qp, rkey, remote, 'w'); }
static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote) { wr_op(qp, rkey, remote, 'r'); }

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct request *r = &fake.requests[fake.count - 1];

	(void)qp;
	r->lkey = lkey;
	r->local = addr;
	r->length = length;
	step('s');
}

static void wr_set_dc_addr(struct mlx5dv_qp_ex *qp, struct ibv_ah *ah, uint32_t dct, uint64_t key)
{
	struct request *r = &fake.requests[fake.count - 1];

	(void)qp;
	r->ah = ah;
	r->dct = dct;
	r->key = key;
	step('a');
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	(void)qp;
	if (fake.count - fake.started > fake.longest)
		fake.longest = fake.count - fake.started;
	if (fails("ibv_wr_complete")) {
		fake.count = fake.started;
		return EXDEV;
	}
	return 0;
}

static struct ibv_qp_ex *qp_to_qp_ex(struct ibv_qp *qp) { return fake.plain ? NULL : (struct ibv_qp_ex *)qp; }

static struct mlx5dv_qp_ex *from_qp_ex(struct ibv_qp_ex *qp) { return &((struct pair *)qp)->mlx5; }

/* ---- libmlx5 ---- */

static bool is_supported(struct ibv_device *d) { return d == &device && !fake.unsupported; }

static struct ibv_qp *create_qp(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *init,
				struct mlx5dv_qp_init_attr *mlx5)
{
	struct pair *p = object("mlx5dv_create_qp", sizeof(*p));

	fake.init = *init;
	fake.mlx5 = *mlx5;
	if (!p)
		return NULL;
	p->ex.qp_base.context = ctx;
	p->ex.wr_start = wr_start;
	p->ex.wr_rdma_write = wr_rdma_write;
	p->ex.wr_rdma_read = wr_rdma_read;
	p->ex.wr_set_sge = wr_set_sge;
	p->ex.wr_complete = wr_complete;
	p->mlx5.wr_set_dc_addr = wr_set_dc_addr;
	return &p->ex.qp_base;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	(void)pd;
	fake.ah = *attr;
	return object("ibv_create_ah", sizeof(struct ibv_ah));
}

static int destroy_ah(struct ibv_ah *ah) { return drop("ibv_destroy_ah", ah); }

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	(void)pd;
	fake.srq = *attr;
	return object("ibv_create_srq", sizeof(struct ibv_srq));
}

static int destroy_srq(struct ibv_srq *srq) { return drop("ibv_destroy_srq", srq); }

static const struct nv_mlx5_calls calls = {
	is_supported, create_qp, from_qp_ex, qp_to_qp_ex, destroy_qp, create_ah, destroy_ah, create_srq, destroy_srq,
};

static struct nv_api table = {
	.size = NV_API_SIZE, .get_device_list = get_device_list, .free_device_list = free_device_list,
	.get_device_name = get_device_name, .get_device_guid = get_device_guid, .open_device = open_device,
	.close_device = close_device, .query_device = query_device, .query_port = query_port, .alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd, .create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel, .create_cq = create_cq, .destroy_cq = destroy_cq,
	.modify_qp = modify_qp, .destroy_qp = destroy_qp, .numa_node = numa_node,
};

/* ---- What the tests share ---- */

struct held {
	struct nv_lib *lib;
	struct nv_device *device;
	struct nv_pd *pd;
	struct nv_cq *cq;
};

static struct held made(void)
{
	struct held h = {0};

	memset(&fake, 0, sizeof(fake));
	fake.link = IBV_LINK_LAYER_ETHERNET;
	if (nv_open_table(&table, &h.lib) != NV_AVAILABLE || nv_device_open(h.lib, "mlx5_0", &h.device).err ||
	    nv_pd_open(h.device, &h.pd).err || nv_cq_open(h.device, 9, &h.cq).err)
		abort();
	return h;
}

static void unmake(struct held *h)
{
	CHECK(!nv_cq_close(h->cq).err && !nv_pd_close(h->pd).err && !nv_device_close(h->device).err, "close");
	nv_release(h->lib);
	CHECK(fake.alive == 0, "%d objects stay", fake.alive);
}

static const struct nv_address address = {
	.gid = {[10] = 0xff, 0xff, 10, 0, 1, 2}, .gid_index = 3, .lid = 44, .global = 1, .port = 1, .hop_limit = 64,
	.traffic_class = 96,
};

static const struct nv_path path = {
	.psn = 0x333333, .mtu = 4096, .gid_index = 3, .port = 1, .reads = 9, .hop_limit = 64, .traffic_class = 96,
	.timeout = 14, .retries = 7, .rnr_retries = 6, .min_rnr_timer = 12,
	.access = NV_REMOTE_READ | NV_REMOTE_WRITE,
};

/* A table that has no DC, one that has, and an adapter that has not. */
static void test_available(void)
{
	const struct nv_dc_api *dc = table.dc;
	char detail[NV_DETAIL_BYTES];
	struct nv_dci *dci = NULL;
	struct nv_dct *dct = NULL;
	struct nv_ah *ah = NULL;
	struct held h;

	table.dc = NULL;
	h = made();
	CHECK(nv_dc_open(h.lib, NULL, detail) == NV_NO_MLX5 && nv_dc_device(h.device).err == ENOTSUP, "without a table");
	table.dc = dc;
	CHECK(nv_dc_open(h.lib, "/nonexistent", detail) == NV_AVAILABLE && !nv_dc_device(h.device).err, "with a table");
	fake.unsupported = 1;
	CHECK(nv_dc_device(h.device).err == ENOTSUP, "an adapter without DC");
	CHECK(nv_dci_open(h.pd, h.cq, 4, &dci).err == ENOTSUP && nv_dct_open(h.pd, h.cq, 1, &dct).err == ENOTSUP &&
		      nv_ah_open(h.pd, &address, &ah).err == ENOTSUP,
	      "objects of an adapter without DC");
	unmake(&h);
}

static void test_address(void)
{
	struct nv_address other = address;
	struct held h = made();
	struct nv_ah *ah = NULL;

	CHECK(!nv_ah_open(h.pd, &address, &ah).err, "open");
	CHECK(fake.ah.is_global == 1 && fake.ah.port_num == 1 && fake.ah.dlid == 0 && fake.ah.sl == 0 &&
		      fake.ah.grh.sgid_index == 3 && fake.ah.grh.hop_limit == 64 && fake.ah.grh.traffic_class == 96 &&
		      memcmp(fake.ah.grh.dgid.raw, address.gid, 16) == 0,
	      "address on Ethernet");
	CHECK(nv_pd_close(h.pd).err == EBUSY, "PD of an address");
	fake.fail = "ibv_destroy_ah";
	CHECK(nv_ah_close(ah).err == EXDEV && !nv_ah_close(ah).err, "closing again");
	other.global = 0;
	CHECK(nv_ah_open(h.pd, &other, &ah).err == EINVAL, "without a GID on Ethernet");
	fake.link = IBV_LINK_LAYER_INFINIBAND;
	CHECK(!nv_ah_open(h.pd, &other, &ah).err && fake.ah.is_global == 0 && fake.ah.dlid == 44, "by LID");
	CHECK(!nv_ah_close(ah).err, "close");
	CHECK(!nv_ah_open(h.pd, &address, &ah).err && fake.ah.is_global == 1 && fake.ah.dlid == 44, "by LID and GID");
	CHECK(!nv_ah_close(ah).err, "close");
	other.gid_index = 256;
	CHECK(nv_ah_open(h.pd, &other, &ah).err == EINVAL, "GID of no table");
	unmake(&h);
}

static void test_dci(void)
{
	struct nv_path other = path;
	struct held h = made();
	struct nv_dci *dci = NULL;

	CHECK(!nv_dci_open(h.pd, h.cq, 33, &dci).err, "open");
	CHECK(fake.init.qp_type == IBV_QPT_DRIVER && fake.init.send_cq && fake.init.recv_cq == fake.init.send_cq &&
		      !fake.init.srq && fake.init.pd && fake.init.cap.max_send_wr == 33 &&
		      fake.init.cap.max_send_sge == 1 && fake.init.cap.max_inline_data == 0 && !fake.init.sq_sig_all,
	      "queue pair");
	CHECK(fake.init.comp_mask == (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
		      fake.init.send_ops_flags == (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ),
	      "operations");
	CHECK(fake.mlx5.comp_mask == (MLX5DV_QP_INIT_ATTR_MASK_DC | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS) &&
		      fake.mlx5.dc_init_attr.dc_type == MLX5DV_DCTYPE_DCI &&
		      fake.mlx5.create_flags == MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
	      "attributes of mlx5");
	CHECK(nv_pd_close(h.pd).err == EBUSY && nv_cq_close(h.cq).err == EBUSY, "what it is made of");
	CHECK(!nv_dci_connect(dci, &path).err && fake.modifications == 3, "%d changes of state", fake.modifications);
	CHECK(fake.modified[0].qp_state == IBV_QPS_INIT && fake.modified[0].port_num == 1 &&
		      fake.masks[0] == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT),
	      "to init");
	CHECK(fake.modified[1].qp_state == IBV_QPS_RTR && fake.modified[1].path_mtu == IBV_MTU_4096 &&
		      fake.masks[1] == (IBV_QP_STATE | IBV_QP_PATH_MTU),
	      "to receive");
	CHECK(fake.modified[2].qp_state == IBV_QPS_RTS && fake.modified[2].timeout == 14 &&
		      fake.modified[2].retry_cnt == 7 && fake.modified[2].rnr_retry == 6 &&
		      fake.modified[2].sq_psn == 0x333333 && fake.modified[2].max_rd_atomic == 9 &&
		      fake.masks[2] == (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
	      "to send");
	fake.modifications = 0;
	other.mtu = 1500;
	CHECK(nv_dci_connect(dci, &other).err == EINVAL && fake.modifications == 0, "MTU of no packet");
	CHECK(nv_qp_number(nv_dci_qp(dci)) == 0xabcdef, "number");
	CHECK(!nv_qp_to_reset(nv_dci_qp(dci)).err && fake.modified[0].qp_state == IBV_QPS_RESET, "reset");
	CHECK(!nv_dci_close(dci).err, "close");
	/* A library that gives no extended form. */
	fake.plain = 1;
	CHECK(nv_dci_open(h.pd, h.cq, 33, &dci).err == EOPNOTSUPP, "plain");
	unmake(&h);
}

static struct nv_work work_number(int i)
{
	return (struct nv_work){
		.id = 1000 + (uint64_t)i, .local = 0x10000 + (uint64_t)i, .remote = 0x20000 + (uint64_t)i,
		.length = (uint32_t)i + 1, .lkey = 0x500 + (uint32_t)i, .rkey = 0x600 + (uint32_t)i,
		.op = i % 2 ? NV_READ : NV_WRITE, .signal = i % 5 == 0,
	};
}

static void check_posted(int count)
{
	CHECK(fake.count == count, "%d requests, want %d", fake.count, count);
	CHECK(fake.longest <= 32, "a chain of %d", fake.longest);
	for (int i = 0; i < count && i < fake.count; i++) {
		struct nv_work w = work_number(i);
		const struct request *r = &fake.requests[i];

		CHECK(r->id == w.id && r->remote == w.remote && r->rkey == w.rkey && r->local == w.local &&
			      r->lkey == w.lkey && r->length == w.length &&
			      r->flags == (w.signal ? (unsigned)IBV_SEND_SIGNALED : 0u),
		      "request %d", i);
		CHECK(r->ah && r->dct == 0x7a03 && r->key == 0x1122334455667788u, "target of request %d", i);
		CHECK(strcmp(r->order, w.op == NV_READ ? "ras" : "was") == 0, "setters of %d: %s", i, r->order);
	}
}

static void clear_requests(void)
{
	memset(fake.requests, 0, sizeof(fake.requests));
	fake.count = fake.chains = fake.longest = fake.hit = 0;
	fake.fail = NULL;
}

static void test_post(void)
{
	struct nv_target to = {.key = 0x1122334455667788u, .dct = 0x7a03};
	struct nv_work works[REQUESTS];
	struct held h = made();
	struct nv_dci *dci = NULL;
	struct nv_pd *pd = NULL;
	struct nv_ah *elsewhere = NULL;
	int32_t n;

	CHECK(!nv_ah_open(h.pd, &address, &to.ah).err && !nv_dci_open(h.pd, h.cq, REQUESTS, &dci).err, "open");
	for (int i = 0; i < REQUESTS; i++)
		works[i] = work_number(i);
	for (int count = 0; count <= REQUESTS; count++) {
		clear_requests();
		CHECK(!nv_dci_post(dci, &to, works, count, &n).err && n == count, "%d of %d", n, count);
		CHECK(fake.chains == (count + 31) / 32, "%d chains", fake.chains);
		check_posted(count);
	}
	/* A chain that fails is not there at all. */
	clear_requests();
	fake.fail = "ibv_wr_complete";
	CHECK(nv_dci_post(dci, &to, works, REQUESTS, &n).err == EXDEV && n == 0, "%d of a chain that fails", n);
	check_posted(0);
	for (int at = 0; at < REQUESTS; at++) {
		for (int kind = 0; kind < 2; kind++) {
			clear_requests();
			if (kind)
				works[at].op = 3;
			else
				works[at].length = 0;
			CHECK(nv_dci_post(dci, &to, works, REQUESTS, &n).err == EINVAL && n == at, "%d before %d", n, at);
			check_posted(at);
			works[at] = work_number(at);
		}
	}
	/* An address of another PD is no address of this queue pair. */
	clear_requests();
	CHECK(!nv_pd_open(h.device, &pd).err && !nv_ah_open(pd, &address, &elsewhere).err, "elsewhere");
	struct nv_target other = {.ah = elsewhere, .dct = 1};

	CHECK(nv_dci_post(dci, &other, works, 1, &n).err == EINVAL && n == 0 && fake.count == 0, "another PD");
	CHECK(!nv_ah_close(elsewhere).err && !nv_pd_close(pd).err, "close");
	CHECK(!nv_dci_close(dci).err && !nv_ah_close(to.ah).err, "close");
	unmake(&h);
}

static void test_dct(void)
{
	struct nv_path other = path;
	struct held h = made();
	struct nv_dct *dct = NULL;

	CHECK(!nv_dct_open(h.pd, h.cq, 0xffeeddcc, &dct).err, "open");
	CHECK(fake.srq.attr.max_wr == 1 && fake.srq.attr.max_sge == 1, "receive queue");
	CHECK(fake.init.qp_type == IBV_QPT_DRIVER && fake.init.srq && fake.init.recv_cq && fake.init.send_cq &&
		      fake.init.pd && fake.init.comp_mask == IBV_QP_INIT_ATTR_PD && fake.init.send_ops_flags == 0,
	      "queue pair");
	CHECK(fake.mlx5.comp_mask == MLX5DV_QP_INIT_ATTR_MASK_DC &&
		      fake.mlx5.dc_init_attr.dc_type == MLX5DV_DCTYPE_DCT &&
		      fake.mlx5.dc_init_attr.dct_access_key == 0xffeeddcc && fake.mlx5.create_flags == 0,
	      "attributes of mlx5");
	CHECK(!nv_dct_answer(dct, &path).err && fake.modifications == 2, "%d changes of state", fake.modifications);
	CHECK(fake.modified[0].qp_state == IBV_QPS_INIT && fake.modified[0].port_num == 1 &&
		      fake.modified[0].qp_access_flags == (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE) &&
		      fake.masks[0] == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "to init");
	CHECK(fake.modified[1].qp_state == IBV_QPS_RTR && fake.modified[1].path_mtu == IBV_MTU_4096 &&
		      fake.modified[1].min_rnr_timer == 12 && fake.modified[1].ah_attr.is_global == 1 &&
		      fake.modified[1].ah_attr.port_num == 1 && fake.modified[1].ah_attr.grh.sgid_index == 3 &&
		      fake.modified[1].ah_attr.grh.hop_limit == 64 &&
		      fake.modified[1].ah_attr.grh.traffic_class == 96 &&
		      fake.masks[1] == (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER),
	      "to receive");
	CHECK(nv_dct_number(dct) == 0xabcdef, "number");
	fake.modifications = 0;
	fake.link = IBV_LINK_LAYER_INFINIBAND;
	CHECK(!nv_dct_answer(dct, &path).err && fake.modified[1].ah_attr.is_global == 0, "on InfiniBand");
	fake.modifications = 0;
	other.gid_index = 256;
	CHECK(nv_dct_answer(dct, &other).err == EINVAL && fake.modifications == 0, "GID of no table");
	/* Half closed: only closing it is left. */
	fake.fail = "ibv_destroy_srq";
	CHECK(nv_dct_close(dct).err == EXDEV, "the receive queue stays");
	CHECK(nv_dct_answer(dct, &path).err == EBADF && nv_dct_number(dct) == 0, "half closed");
	CHECK(nv_pd_close(h.pd).err == EBUSY && nv_cq_close(h.cq).err == EBUSY, "what it is made of");
	CHECK(!nv_dct_close(dct).err, "close");
	unmake(&h);
}

/* Each call fails once: nothing stays, the error is told, and the next attempt goes well. */
static void test_every_failure(void)
{
	static const char *const all[] = {
		"ibv_query_port", "ibv_create_ah", "mlx5dv_create_qp", "ibv_create_srq", "ibv_modify_qp", "ibv_wr_complete",
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct held h = made();
		struct nv_work work = work_number(0);
		struct nv_target to = {.dct = 1};
		struct nv_dci *dci = NULL;
		struct nv_dct *dct = NULL;
		int errors = 0;
		int32_t n;

		fake.fail = all[i];
		for (int again = 0; again < 2; again++) {
			errors += !to.ah && nv_ah_open(h.pd, &address, &to.ah).err == EXDEV;
			errors += !dci && nv_dci_open(h.pd, h.cq, 4, &dci).err == EXDEV;
			errors += !dct && nv_dct_open(h.pd, h.cq, 1, &dct).err == EXDEV;
			fake.modifications = 0;
			errors += dci && nv_dci_connect(dci, &path).err == EXDEV;
			fake.modifications = 0;
			errors += dct && nv_dct_answer(dct, &path).err == EXDEV;
			errors += dci && to.ah && nv_dci_post(dci, &to, &work, 1, &n).err == EXDEV;
		}
		CHECK(fake.hit && errors == 1, "%s: %d errors", all[i], errors);
		CHECK(dci && dct && to.ah, "%s: not made", all[i]);
		CHECK(!nv_dct_close(dct).err && !nv_dci_close(dci).err && !nv_ah_close(to.ah).err, "%s", all[i]);
		unmake(&h);
	}
}

int main(void)
{
	struct nv_dc_api *dc = nv_mlx5_table(&calls);

	if (!dc)
		abort();
	table.dc = dc;
	test_available();
	test_address();
	test_dci();
	test_post();
	test_dct();
	test_every_failure();
	free(dc);
	if (bad_checks)
		printf("%d checks failed\n", bad_checks);
	return bad_checks != 0;
}
