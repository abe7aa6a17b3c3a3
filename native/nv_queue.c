/* Completion queues and queue pairs: the path of every work request. */
#define _GNU_SOURCE

#include "nv_inner.h"

#if NV_HAVE_VERBS

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Requests of one chain, and completions of one poll, on the stack: about 5 KiB. nv_api.h names it too. */
#define NV_BATCH 32

_Static_assert(sizeof(struct nv_work) == 48, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, local) == 8, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, remote) == 16, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, length) == 24, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, lkey) == 28, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, rkey) == 32, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, op) == 36, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, signal) == 40, "Go's native.Work");
_Static_assert(offsetof(struct nv_work, imm) == 44, "Go's native.Work");
_Static_assert(sizeof(struct nv_completion) == 32, "Go's native.Completion");
_Static_assert(offsetof(struct nv_completion, status) == 8, "Go's native.Completion");
_Static_assert(offsetof(struct nv_completion, vendor) == 12, "Go's native.Completion");
_Static_assert(offsetof(struct nv_completion, qpn) == 16, "Go's native.Completion");
_Static_assert(offsetof(struct nv_completion, bytes) == 20, "Go's native.Completion");
_Static_assert(offsetof(struct nv_completion, imm) == 24, "Go's native.Completion");
_Static_assert(offsetof(struct nv_completion, received) == 28, "Go's native.Completion");
_Static_assert(offsetof(struct nv_completion, has_imm) == 29, "Go's native.Completion");

struct nv_status nv_cq_open(struct nv_device *device, int depth, struct nv_cq **out)
{
	const struct nv_api *api = device->api;
	struct nv_cq *cq = calloc(1, sizeof(*cq));
	struct nv_status status;

	if (!cq)
		return nv_error("calloc", ENOMEM);
	cq->api = api;
	errno = 0;
	cq->channel = api->create_comp_channel(device->ctx);
	if (!cq->channel) {
		status = nv_failed("ibv_create_comp_channel");
		free(cq);
		return status;
	}
	status = nv_nonblocking(cq->channel->fd);
	if (!status.err) {
		errno = 0;
		cq->cq = api->create_cq(device->ctx, depth, NULL, cq->channel, 0);
		if (!cq->cq)
			status = nv_failed("ibv_create_cq");
	}
	if (status.err) {
		api->destroy_comp_channel(cq->channel);
		free(cq);
		return status;
	}
	cq->device = device;
	nv_enter(&device->users);
	*out = cq;
	return nv_ok();
}

int nv_cq_fd(const struct nv_cq *cq)
{
	return cq->channel->fd;
}

struct nv_status nv_cq_arm(struct nv_cq *cq)
{
	if (!cq->cq)
		return nv_error("ibv_req_notify_cq", EBADF);
	errno = 0;
	return nv_result("ibv_req_notify_cq", cq->api->req_notify_cq(cq->cq, 0));
}

struct nv_status nv_cq_event(struct nv_cq *cq)
{
	struct ibv_cq *of = NULL;
	void *context;
	struct nv_status status;

	if (!cq->cq)
		return nv_error("ibv_get_cq_event", EBADF);
	errno = 0;
	status = nv_result("ibv_get_cq_event", cq->api->get_cq_event(cq->channel, &of, &context));
	if (status.err)
		return status;
	/* The channel has no other. */
	if (of != cq->cq)
		return nv_error("ibv_get_cq_event", EIO);
	/* At once, for destroying a CQ waits until all its events are acknowledged. */
	cq->api->ack_cq_events(of, 1);
	return status;
}

int nv_cq_busy(const struct nv_cq *cq)
{
	return nv_in_use(&cq->users);
}

struct nv_status nv_cq_close(struct nv_cq *cq)
{
	struct nv_status status;

	if (nv_cq_busy(cq))
		return nv_error("ibv_destroy_cq", EBUSY);
	if (cq->cq) {
		errno = 0;
		status = nv_result("ibv_destroy_cq", cq->api->destroy_cq(cq->cq));
		if (status.err)
			return status;
		cq->cq = NULL;
	}
	errno = 0;
	status = nv_result("ibv_destroy_comp_channel", cq->api->destroy_comp_channel(cq->channel));
	if (status.err)
		return status;
	nv_leave(&cq->device->users);
	free(cq);
	return nv_ok();
}

static uint32_t status_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return NV_OK;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_LOC_EEC_OP_ERR:
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
	case IBV_WC_MW_BIND_ERR:
		return NV_LOCAL;
	case IBV_WC_WR_FLUSH_ERR:
		return NV_FLUSHED;
	case IBV_WC_REM_ACCESS_ERR:
		return NV_REMOTE_ACCESS;
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_OP_ERR:
	case IBV_WC_REM_ABORT_ERR:
	case IBV_WC_BAD_RESP_ERR:
		return NV_REMOTE_OTHER;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return NV_RETRY;
	default:
		return NV_OTHER;
	}
}

static void read_completion(const struct ibv_wc *from, struct nv_completion *to)
{
	to->id = from->wr_id;
	to->status = status_of(from->status);
	to->qpn = from->qp_num;
	to->vendor = 0;
	to->bytes = 0;
	to->imm = 0;
	to->received = 0;
	to->has_imm = 0;
	memset(to->reserved, 0, sizeof(to->reserved));
	/* Of a failed one only these three are set by every driver, and the vendor's word. */
	if (to->status != NV_OK) {
		to->vendor = from->vendor_err;
		return;
	}
	to->received = (from->opcode & IBV_WC_RECV) != 0;
	if (to->received || from->opcode == IBV_WC_RDMA_READ)
		to->bytes = from->byte_len;
	if (from->opcode == IBV_WC_RECV_RDMA_WITH_IMM && (from->wc_flags & IBV_WC_WITH_IMM)) {
		to->has_imm = 1;
		to->imm = be32toh(from->imm_data);
	}
}

struct nv_status nv_cq_poll(struct nv_cq *cq, struct nv_completion *list, int32_t room, int32_t *count)
{
	struct ibv_wc wc[NV_BATCH];

	*count = 0;
	if (!cq->cq)
		return nv_error("ibv_poll_cq", EBADF);
	while (*count < room) {
		int32_t left = room - *count;
		int wanted = left < NV_BATCH ? left : NV_BATCH;
		int got = cq->api->poll_cq(cq->cq, wanted, wc);

		/* What a negative result means is the driver's own: no errno. More than wanted is a broken driver. */
		if (got < 0 || got > wanted)
			return nv_error("ibv_poll_cq", EIO);
		for (int i = 0; i < got; i++)
			read_completion(&wc[i], &list[*count + i]);
		*count += got;
		if (got < wanted)
			break;
	}
	return nv_ok();
}

struct nv_status nv_qp_open(struct nv_pd *pd, struct nv_cq *cq, struct nv_depths depths, struct nv_qp **out)
{
	struct ibv_qp_init_attr attr;
	struct nv_qp *qp;

	if (!cq->cq)
		return nv_error("ibv_create_qp", EBADF);
	if (pd->device != cq->device)
		return nv_error("ibv_create_qp", EINVAL);
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return nv_error("calloc", ENOMEM);
	qp->api = pd->api;
	qp->pd = pd;
	qp->cq = cq;
	memset(&attr, 0, sizeof(attr));
	attr.qp_type = IBV_QPT_RC;
	attr.send_cq = cq->cq;
	attr.recv_cq = cq->cq;
	attr.cap.max_send_wr = (uint32_t)depths.works;
	attr.cap.max_send_sge = 1;
	/* Where nothing is received some drivers refuse a QP without a receive queue. */
	attr.cap.max_recv_wr = depths.receives > 0 ? (uint32_t)depths.receives : 1;
	attr.cap.max_recv_sge = 1;
	errno = 0;
	qp->qp = qp->api->create_qp(pd->pd, &attr);
	if (!qp->qp) {
		struct nv_status status = nv_failed("ibv_create_qp");

		free(qp);
		return status;
	}
	nv_enter(&pd->users);
	nv_enter(&cq->users);
	*out = qp;
	return nv_ok();
}

uint32_t nv_qp_number(const struct nv_qp *qp)
{
	return qp->qp->qp_num;
}

struct nv_status nv_qp_state(struct nv_qp *qp, int32_t *state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct nv_status status;

	memset(&attr, 0, sizeof(attr));
	memset(&init, 0, sizeof(init));
	errno = 0;
	status = nv_result("ibv_query_qp", qp->api->query_qp(qp->qp, &attr, IBV_QP_STATE, &init));
	if (status.err)
		return status;
	switch (attr.qp_state) {
	case IBV_QPS_RESET:
		*state = NV_QP_RESET;
		break;
	case IBV_QPS_INIT:
		*state = NV_QP_INIT;
		break;
	case IBV_QPS_RTR:
		*state = NV_QP_READY;
		break;
	case IBV_QPS_RTS:
	case IBV_QPS_SQD: /* nothing here asks for it */
		*state = NV_QP_SEND;
		break;
	default:
		*state = NV_QP_ERROR;
		break;
	}
	return nv_ok();
}

static struct nv_status modify(struct nv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	errno = 0;
	return nv_result("ibv_modify_qp", qp->api->modify_qp(qp->qp, attr, mask));
}

struct nv_status nv_qp_to_init(struct nv_qp *qp, const struct nv_path *path)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = path->port;
	attr.qp_access_flags = (unsigned int)nv_access_flags(path->access);
	return modify(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int mtu_of(int bytes, enum ibv_mtu *mtu)
{
	switch (bytes) {
	case 256:
		*mtu = IBV_MTU_256;
		return 0;
	case 512:
		*mtu = IBV_MTU_512;
		return 0;
	case 1024:
		*mtu = IBV_MTU_1024;
		return 0;
	case 2048:
		*mtu = IBV_MTU_2048;
		return 0;
	case 4096:
		*mtu = IBV_MTU_4096;
		return 0;
	default:
		return EINVAL;
	}
}

/* Where packets go: by the LID on InfiniBand, by a global header and the GID on Ethernet. */
static void fill_address(struct ibv_ah_attr *ah, const struct nv_path *path, int link)
{
	ah->port_num = path->port;
	ah->dlid = path->peer_lid;
	if (link == NV_LINK_INFINIBAND)
		return;
	ah->dlid = 0;
	ah->is_global = 1;
	memcpy(ah->grh.dgid.raw, path->peer_gid, sizeof(path->peer_gid));
	ah->grh.sgid_index = (uint8_t)path->gid_index;
	ah->grh.hop_limit = path->hop_limit;
	ah->grh.traffic_class = path->traffic_class;
}

struct nv_status nv_qp_to_receive(struct nv_qp *qp, const struct nv_path *path)
{
	struct ibv_qp_attr attr;
	struct nv_port_info port;
	struct nv_status status;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTR;
	if (mtu_of(path->mtu, &attr.path_mtu) != 0 || path->gid_index < 0 || path->gid_index > UINT8_MAX)
		return nv_error("ibv_modify_qp", EINVAL);
	status = nv_port(qp->pd->device, path->port, &port);
	if (status.err)
		return status;
	fill_address(&attr.ah_attr, path, port.link);
	attr.dest_qp_num = path->peer_qpn;
	attr.rq_psn = path->peer_psn;
	attr.max_dest_rd_atomic = path->reads;
	attr.min_rnr_timer = path->min_rnr_timer;
	return modify(qp, &attr,
		      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

struct nv_status nv_qp_to_send(struct nv_qp *qp, const struct nv_path *path)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = path->psn;
	attr.timeout = path->timeout;
	attr.retry_cnt = path->retries;
	attr.rnr_retry = path->rnr_retries;
	attr.max_rd_atomic = path->reads;
	return modify(qp, &attr,
		      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_MAX_QP_RD_ATOMIC);
}

struct nv_status nv_qp_to_error(struct nv_qp *qp)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_ERR;
	return modify(qp, &attr, IBV_QP_STATE);
}

struct nv_status nv_qp_to_reset(struct nv_qp *qp)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RESET;
	return modify(qp, &attr, IBV_QP_STATE);
}

/* A chain of requests and the pieces of memory that they name. */
struct chain {
	struct ibv_send_wr wr[NV_BATCH];
	struct ibv_sge sge[NV_BATCH];
};

static int fill_request(struct chain *chain, int at, const struct nv_work *work)
{
	struct ibv_send_wr *wr = &chain->wr[at];
	struct ibv_sge *sge = &chain->sge[at];

	memset(wr, 0, sizeof(*wr));
	switch (work->op) {
	case NV_WRITE:
		wr->opcode = IBV_WR_RDMA_WRITE;
		break;
	case NV_READ:
		wr->opcode = IBV_WR_RDMA_READ;
		break;
	case NV_WRITE_IMM:
		wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr->imm_data = htobe32(work->imm);
		break;
	default:
		return EINVAL;
	}
	wr->wr_id = work->id;
	wr->send_flags = work->signal ? IBV_SEND_SIGNALED : 0;
	wr->wr.rdma.remote_addr = work->remote;
	wr->wr.rdma.rkey = work->rkey;
	sge->addr = work->local;
	sge->length = work->length;
	sge->lkey = work->lkey;
	/* An entry of length 0 means 2 GiB to some adapters. */
	wr->sg_list = sge;
	wr->num_sge = work->length > 0;
	return 0;
}

/* How many of a chain were taken, by the first that was not; all where that names none of the chain. */
static int32_t taken(const struct chain *chain, int32_t length, const struct ibv_send_wr *bad)
{
	for (int32_t i = 0; i < length; i++) {
		if (bad == &chain->wr[i])
			return i;
	}
	return length;
}

struct nv_status nv_qp_post(struct nv_qp *qp, const struct nv_work *work, int32_t count, int32_t *posted)
{
	struct chain chain;
	int err = 0;

	*posted = 0;
	while (*posted < count && !err) {
		struct ibv_send_wr *bad = NULL;
		struct nv_status status;
		int32_t length = 0;

		while (length < NV_BATCH && *posted + length < count) {
			err = fill_request(&chain, length, &work[*posted + length]);
			if (err)
				break;
			if (length > 0)
				chain.wr[length - 1].next = &chain.wr[length];
			length++;
		}
		if (length == 0)
			break;
		errno = 0;
		status = nv_result("ibv_post_send", qp->api->post_send(qp->qp, chain.wr, &bad));
		if (status.err) {
			*posted += taken(&chain, length, bad);
			return status;
		}
		*posted += length;
	}
	return err ? nv_error("ibv_post_send", err) : nv_ok();
}

struct nv_status nv_qp_post_receive(struct nv_qp *qp, uint64_t id)
{
	struct ibv_recv_wr wr, *bad = NULL;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = id;
	errno = 0;
	return nv_result("ibv_post_recv", qp->api->post_recv(qp->qp, &wr, &bad));
}

struct nv_status nv_qp_close(struct nv_qp *qp)
{
	struct nv_status status;

	errno = 0;
	status = nv_result("ibv_destroy_qp", qp->api->destroy_qp(qp->qp));
	if (status.err)
		return status;
	nv_leave(&qp->pd->users);
	nv_leave(&qp->cq->users);
	free(qp);
	return nv_ok();
}

#endif /* NV_HAVE_VERBS */
