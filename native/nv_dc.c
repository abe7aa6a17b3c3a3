/* Dynamically connected queue pairs over a table of functions; nv_mlx5.c fills one from the library. */
#define _GNU_SOURCE

#include "nv_dc.h"
#include "nv_dc_api.h"
#include "nv_inner.h"

#if NV_HAVE_VERBS

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Requests of one chain. nv_dc_api.h names it too. */
#define NV_DC_BATCH 32

struct nv_ah {
	const struct nv_dc_api *dc;
	struct ibv_ah *ah;
	struct nv_pd *pd;
};

struct nv_dci {
	struct nv_qp qp; /* first: nv_qp_close frees it */
	const struct nv_dc_api *dc;
};

struct nv_dct {
	const struct nv_dc_api *dc;
	const struct nv_api *api;
	struct ibv_qp *qp; /* NULL once destroyed while the receive queue was not */
	struct ibv_srq *srq;
	struct nv_pd *pd;
	struct nv_cq *cq;
};

/* The table, or NULL where the device has no DC. */
static const struct nv_dc_api *dc_of(const struct nv_device *device)
{
	/* nv_dc_open sets it while devices are open. */
	const struct nv_dc_api *dc = __atomic_load_n(&device->api->dc, __ATOMIC_ACQUIRE);

	return dc && dc->supported(dc, device->ctx->device) ? dc : NULL;
}

struct nv_status nv_dc_device(const struct nv_device *device)
{
	return dc_of(device) ? nv_ok() : nv_error("mlx5dv_is_supported", ENOTSUP);
}

static int dc_mtu(int bytes, enum ibv_mtu *mtu)
{
	for (int code = IBV_MTU_256; code <= IBV_MTU_4096; code++) {
		if (bytes == 128 << code) {
			*mtu = (enum ibv_mtu)code;
			return 0;
		}
	}
	return EINVAL;
}

struct nv_status nv_ah_open(struct nv_pd *pd, const struct nv_address *address, struct nv_ah **out)
{
	const struct nv_dc_api *dc = dc_of(pd->device);
	struct ibv_ah_attr attr;
	struct nv_port_info port;
	struct nv_status status;
	struct nv_ah *ah;

	if (!dc)
		return nv_error("ibv_create_ah", ENOTSUP);
	if (address->gid_index < 0 || address->gid_index > UINT8_MAX)
		return nv_error("ibv_create_ah", EINVAL);
	status = nv_port(pd->device, address->port, &port);
	if (status.err)
		return status;
	if (port.link != NV_LINK_INFINIBAND && !address->global)
		return nv_error("ibv_create_ah", EINVAL);
	memset(&attr, 0, sizeof(attr));
	attr.port_num = address->port;
	if (port.link == NV_LINK_INFINIBAND)
		attr.dlid = address->lid;
	if (address->global) {
		attr.is_global = 1;
		memcpy(attr.grh.dgid.raw, address->gid, sizeof(address->gid));
		attr.grh.sgid_index = (uint8_t)address->gid_index;
		attr.grh.hop_limit = address->hop_limit;
		attr.grh.traffic_class = address->traffic_class;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return nv_error("calloc", ENOMEM);
	errno = 0;
	ah->ah = dc->create_ah(pd->pd, &attr);
	if (!ah->ah) {
		status = nv_failed("ibv_create_ah");
		free(ah);
		return status;
	}
	ah->dc = dc;
	ah->pd = pd;
	nv_enter(&pd->users);
	*out = ah;
	return nv_ok();
}

struct nv_status nv_ah_close(struct nv_ah *ah)
{
	struct nv_status status;

	errno = 0;
	status = nv_result("ibv_destroy_ah", ah->dc->destroy_ah(ah->ah));
	if (status.err)
		return status;
	nv_leave(&ah->pd->users);
	free(ah);
	return nv_ok();
}

/* What a DCI and a DCT need alike. */
static struct nv_status dc_usable(const struct nv_pd *pd, const struct nv_cq *cq, const struct nv_dc_api **dc)
{
	const char *call = "mlx5dv_create_qp";

	*dc = dc_of(pd->device);
	if (!*dc)
		return nv_error(call, ENOTSUP);
	if (!cq->cq)
		return nv_error(call, EBADF);
	return pd->device == cq->device ? nv_ok() : nv_error(call, EINVAL);
}

struct nv_status nv_dci_open(struct nv_pd *pd, struct nv_cq *cq, int depth, struct nv_dci **out)
{
	struct nv_dci_attr attr = {.cq = cq->cq, .depth = (uint32_t)depth};
	const struct nv_dc_api *dc;
	struct nv_status status = dc_usable(pd, cq, &dc);
	struct nv_dci *dci;

	if (status.err)
		return status;
	dci = calloc(1, sizeof(*dci));
	if (!dci)
		return nv_error("calloc", ENOMEM);
	errno = 0;
	dci->qp.qp = dc->create_dci(dc, pd->pd, &attr);
	if (!dci->qp.qp) {
		status = nv_failed("mlx5dv_create_qp");
		free(dci);
		return status;
	}
	dci->dc = dc;
	dci->qp.api = pd->api;
	dci->qp.pd = pd;
	dci->qp.cq = cq;
	nv_enter(&pd->users);
	nv_enter(&cq->users);
	*out = dci;
	return nv_ok();
}

struct nv_qp *nv_dci_qp(struct nv_dci *dci)
{
	return &dci->qp;
}

static struct nv_status dc_modify(const struct nv_api *api, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	errno = 0;
	return nv_result("ibv_modify_qp", api->modify_qp(qp, attr, mask | IBV_QP_STATE));
}

struct nv_status nv_dci_connect(struct nv_dci *dci, const struct nv_path *path)
{
	struct ibv_qp_attr attr;
	struct nv_status status;

	memset(&attr, 0, sizeof(attr));
	if (dc_mtu(path->mtu, &attr.path_mtu) != 0)
		return nv_error("ibv_modify_qp", EINVAL);
	attr.port_num = path->port;
	attr.timeout = path->timeout;
	attr.retry_cnt = path->retries;
	attr.rnr_retry = path->rnr_retries;
	attr.sq_psn = path->psn;
	attr.max_rd_atomic = path->reads;
	attr.qp_state = IBV_QPS_INIT;
	status = dc_modify(dci->qp.api, dci->qp.qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT);
	if (status.err)
		return status;
	attr.qp_state = IBV_QPS_RTR;
	status = dc_modify(dci->qp.api, dci->qp.qp, &attr, IBV_QP_PATH_MTU);
	if (status.err)
		return status;
	attr.qp_state = IBV_QPS_RTS;
	return dc_modify(dci->qp.api, dci->qp.qp, &attr,
			 IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				 IBV_QP_MAX_QP_RD_ATOMIC);
}

/* How many of the next requests make a chain; those before the first one that is not valid. */
static int32_t dc_chain(const struct nv_work *work, int32_t count)
{
	int32_t length = 0;

	while (length < count && length < NV_DC_BATCH && work[length].length > 0 &&
	       (work[length].op == NV_WRITE || work[length].op == NV_READ))
		length++;
	return length;
}

struct nv_status nv_dci_post(struct nv_dci *dci, const struct nv_target *to, const struct nv_work *work,
			     int32_t count, int32_t *posted)
{
	struct nv_dc_to there = {.ah = to->ah->ah, .key = to->key, .dct = to->dct};
	const char *call = "ibv_wr_complete";

	*posted = 0;
	if (to->ah->pd != dci->qp.pd)
		return nv_error(call, EINVAL);
	while (*posted < count) {
		int32_t length = dc_chain(&work[*posted], count - *posted);
		struct nv_status status;

		if (length == 0)
			return nv_error(call, EINVAL);
		errno = 0;
		status = nv_result(call, dci->dc->post(dci->dc, dci->qp.qp, &there, &work[*posted], length));
		if (status.err)
			return status;
		*posted += length;
	}
	return nv_ok();
}

struct nv_status nv_dci_close(struct nv_dci *dci)
{
	return nv_qp_close(&dci->qp);
}

struct nv_status nv_dct_open(struct nv_pd *pd, struct nv_cq *cq, uint64_t key, struct nv_dct **out)
{
	struct ibv_srq_init_attr receive;
	struct nv_dct_attr attr = {.cq = cq->cq, .key = key};
	const struct nv_dc_api *dc;
	struct nv_status status = dc_usable(pd, cq, &dc);
	struct nv_dct *dct;

	if (status.err)
		return status;
	dct = calloc(1, sizeof(*dct));
	if (!dct)
		return nv_error("calloc", ENOMEM);
	memset(&receive, 0, sizeof(receive));
	receive.attr.max_wr = 1;
	receive.attr.max_sge = 1;
	errno = 0;
	dct->srq = dc->create_srq(pd->pd, &receive);
	if (!dct->srq) {
		status = nv_failed("ibv_create_srq");
		free(dct);
		return status;
	}
	attr.srq = dct->srq;
	errno = 0;
	dct->qp = dc->create_dct(dc, pd->pd, &attr);
	if (!dct->qp) {
		status = nv_failed("mlx5dv_create_qp");
		dc->destroy_srq(dct->srq);
		free(dct);
		return status;
	}
	dct->dc = dc;
	dct->api = pd->api;
	dct->pd = pd;
	dct->cq = cq;
	nv_enter(&pd->users);
	nv_enter(&cq->users);
	*out = dct;
	return nv_ok();
}

struct nv_status nv_dct_answer(struct nv_dct *dct, const struct nv_path *path)
{
	struct nv_port_info port;
	struct ibv_qp_attr attr;
	struct nv_status status;

	memset(&attr, 0, sizeof(attr));
	if (!dct->qp)
		return nv_error("ibv_modify_qp", EBADF);
	if (dc_mtu(path->mtu, &attr.path_mtu) != 0 || path->gid_index < 0 || path->gid_index > UINT8_MAX)
		return nv_error("ibv_modify_qp", EINVAL);
	status = nv_port(dct->pd->device, path->port, &port);
	if (status.err)
		return status;
	attr.port_num = path->port;
	attr.qp_access_flags = (unsigned int)nv_access_flags(path->access);
	attr.min_rnr_timer = path->min_rnr_timer;
	attr.ah_attr.port_num = path->port;
	if (port.link != NV_LINK_INFINIBAND) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.sgid_index = (uint8_t)path->gid_index;
		attr.ah_attr.grh.hop_limit = path->hop_limit;
		attr.ah_attr.grh.traffic_class = path->traffic_class;
	}
	attr.qp_state = IBV_QPS_INIT;
	status = dc_modify(dct->api, dct->qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (status.err)
		return status;
	attr.qp_state = IBV_QPS_RTR;
	return dc_modify(dct->api, dct->qp, &attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER);
}

uint32_t nv_dct_number(const struct nv_dct *dct)
{
	return dct->qp ? dct->qp->qp_num : 0;
}

struct nv_status nv_dct_close(struct nv_dct *dct)
{
	struct nv_status status;

	if (dct->qp) {
		errno = 0;
		status = nv_result("ibv_destroy_qp", dct->api->destroy_qp(dct->qp));
		if (status.err)
			return status;
		dct->qp = NULL;
	}
	errno = 0;
	status = nv_result("ibv_destroy_srq", dct->dc->destroy_srq(dct->srq));
	if (status.err)
		return status;
	nv_leave(&dct->pd->users);
	nv_leave(&dct->cq->users);
	free(dct);
	return nv_ok();
}

#else /* Without the headers nothing was opened, so these are never called. */

#include <errno.h>

static const struct nv_status none = {"nv_dc_open", ENOSYS};

enum nv_unavailable nv_dc_open(struct nv_lib *lib, const char *path, char detail[NV_DETAIL_BYTES])
{
	(void)lib, (void)path;
	detail[0] = '\0';
	return NV_NO_HEADERS_BUILT;
}

struct nv_status nv_dc_device(const struct nv_device *device)
{
	(void)device;
	return none;
}

struct nv_status nv_ah_open(struct nv_pd *pd, const struct nv_address *address, struct nv_ah **ah)
{
	(void)pd, (void)address, (void)ah;
	return none;
}

struct nv_status nv_ah_close(struct nv_ah *ah)
{
	(void)ah;
	return none;
}

struct nv_status nv_dci_open(struct nv_pd *pd, struct nv_cq *cq, int depth, struct nv_dci **dci)
{
	(void)pd, (void)cq, (void)depth, (void)dci;
	return none;
}

struct nv_qp *nv_dci_qp(struct nv_dci *dci)
{
	(void)dci;
	return NULL;
}

struct nv_status nv_dci_connect(struct nv_dci *dci, const struct nv_path *path)
{
	(void)dci, (void)path;
	return none;
}

struct nv_status nv_dci_post(struct nv_dci *dci, const struct nv_target *to, const struct nv_work *work,
			     int32_t count, int32_t *posted)
{
	(void)dci, (void)to, (void)work, (void)count, (void)posted;
	return none;
}

struct nv_status nv_dci_close(struct nv_dci *dci)
{
	(void)dci;
	return none;
}

struct nv_status nv_dct_open(struct nv_pd *pd, struct nv_cq *cq, uint64_t key, struct nv_dct **dct)
{
	(void)pd, (void)cq, (void)key, (void)dct;
	return none;
}

struct nv_status nv_dct_answer(struct nv_dct *dct, const struct nv_path *path)
{
	(void)dct, (void)path;
	return none;
}

uint32_t nv_dct_number(const struct nv_dct *dct)
{
	(void)dct;
	return 0;
}

struct nv_status nv_dct_close(struct nv_dct *dct)
{
	(void)dct;
	return none;
}

#endif /* NV_HAVE_VERBS */
