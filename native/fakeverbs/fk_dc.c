//go:build cgo

/*
 * Dynamically connected queue pairs. A DCI is a requester like that of a reliable connection, whose peer is the target
 * of the work request that it is at: where the next one has another target, it waits until all before have been
 * answered and connects to that one, by a new session. A DCT is a number and a key; for each DCI that comes it has an
 * end, a responder like that of a reliable connection. What the memory's key does not allow ends that session and the
 * DCI, not the DCT. What comes with the wrong access key is thrown away, so the DCI finds out by its retries: where
 * adapters do differently, they tell sooner.
 */

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include "nv.h"

#include <stdlib.h>
#include <string.h>

static struct fk_nic *nic_of_pd(struct fk_pd *pd) { return pd->ctx->dev->nic; }

static int supported(const struct nv_dc_api *dc, struct ibv_device *device)
{
	(void)dc;
	return !fk_device_of(device)->o.no_dc;
}

/* ---- Address handles and receive queues ---- */

static struct ibv_ah *create_ah(struct ibv_pd *ibpd, struct ibv_ah_attr *attr)
{
	static const uint8_t zero[16];
	struct fk_pd *pd = (struct fk_pd *)ibpd;
	struct fk_device *dev = pd->ctx->dev;
	struct fk_nic *nic = dev->nic;
	struct fk_ah *ah = NULL;

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_CREATE_AH, dev, 0);

	if (!err && pd->dead) {
		fk_blame(nic, "create_ah: protection domain is destroyed");
		err = EINVAL;
	}
	if (!err && dev->fatal)
		err = EIO;
	if (!err && (attr->port_num != 1 || (!dev->o.infiniband && !attr->is_global)))
		err = EINVAL;
	if (!err && attr->is_global &&
	    (attr->grh.sgid_index >= FK_GIDS || memcmp(dev->o.gids[attr->grh.sgid_index].raw, zero, 16) == 0 ||
	     memcmp(attr->grh.dgid.raw, zero, 16) == 0))
		err = EINVAL;
	if (!err) {
		ah = fk_alloc(nic, sizeof(*ah));
		ah->ah.context = ibpd->context;
		ah->ah.pd = ibpd;
		ah->pd = pd;
		ah->attr = *attr;
		pd->users++;
		nic->n.ahs++;
	}
	fk_leave(nic);
	errno = err;
	return ah ? &ah->ah : NULL;
}

static int destroy_ah(struct ibv_ah *ibah)
{
	struct fk_ah *ah = (struct fk_ah *)ibah;
	struct fk_nic *nic = nic_of_pd(ah->pd);

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_DESTROY_AH, ah->pd->ctx->dev, 0);

	if (!err && ah->dead) {
		fk_blame(nic, "destroy_ah: destroyed before");
		err = EINVAL;
	}
	if (!err && ah->users > 0)
		fk_blame(nic, "destroy_ah: %llu work requests still use it", (unsigned long long)ah->users);
	if (!err) {
		ah->dead = true;
		ah->pd->users--;
		nic->n.ahs--;
		fk_changed(nic);
	}
	fk_leave(nic);
	return err;
}

static struct ibv_srq *create_srq(struct ibv_pd *ibpd, struct ibv_srq_init_attr *attr)
{
	struct fk_pd *pd = (struct fk_pd *)ibpd;
	struct fk_nic *nic = nic_of_pd(pd);
	struct fk_srq *srq = NULL;
	int err = 0;

	fk_enter(nic);
	if (pd->dead) {
		fk_blame(nic, "create_srq: protection domain is destroyed");
		err = EINVAL;
	}
	if (!err && (attr->attr.max_wr < 1 || attr->attr.max_sge < 1))
		err = EINVAL;
	if (!err && pd->ctx->dev->fatal)
		err = EIO;
	if (!err) {
		srq = fk_alloc(nic, sizeof(*srq));
		srq->srq.context = ibpd->context;
		srq->srq.pd = ibpd;
		srq->pd = pd;
		pd->users++;
		nic->n.srqs++;
	}
	fk_leave(nic);
	errno = err;
	return srq ? &srq->srq : NULL;
}

static int destroy_srq(struct ibv_srq *ibsrq)
{
	struct fk_srq *srq = (struct fk_srq *)ibsrq;
	struct fk_nic *nic = nic_of_pd(srq->pd);
	int err = 0;

	fk_enter(nic);
	if (srq->dead) {
		fk_blame(nic, "destroy_srq: destroyed before");
		err = EINVAL;
	} else if (srq->users > 0) {
		fk_blame(nic, "destroy_srq: a queue pair still uses it");
		err = EBUSY;
	} else {
		srq->dead = true;
		srq->pd->users--;
		nic->n.srqs--;
		fk_changed(nic);
	}
	fk_leave(nic);
	return err;
}

/* ---- Queue pairs ---- */

static struct ibv_qp *create_dci(const struct nv_dc_api *dc, struct ibv_pd *pd, const struct nv_dci_attr *attr)
{
	struct ibv_qp_init_attr init = {.send_cq = attr->cq, .recv_cq = attr->cq, .qp_type = IBV_QPT_DRIVER};

	(void)dc;
	init.cap.max_send_wr = attr->depth;
	init.cap.max_send_sge = 1;
	struct fk_qp *qp = fk_create_qp((struct fk_pd *)pd, &init, FK_DCI);

	return qp ? &qp->qp : NULL;
}

static struct ibv_qp *create_dct(const struct nv_dc_api *dc, struct ibv_pd *ibpd, const struct nv_dct_attr *attr)
{
	struct ibv_qp_init_attr init = {.send_cq = attr->cq, .recv_cq = attr->cq, .qp_type = IBV_QPT_DRIVER};
	struct fk_srq *srq = (struct fk_srq *)attr->srq;
	struct fk_pd *pd = (struct fk_pd *)ibpd;
	struct fk_nic *nic = nic_of_pd(pd);

	(void)dc;
	if (!srq || srq->dead || srq->pd != pd) {
		errno = EINVAL;
		return NULL;
	}
	struct fk_qp *qp = fk_create_qp(pd, &init, FK_DCT);

	if (!qp)
		return NULL;
	fk_enter(nic);
	qp->srq = srq;
	qp->key = attr->key;
	srq->users++;
	fk_leave(nic);
	return &qp->qp;
}

void fk_dc_destroyed(struct fk_nic *nic, struct fk_qp *qp)
{
	for (struct fk_qp *end = qp->ends; end; end = end->next_bucket) {
		fk_stop(nic, end);
		end->dead = true;
	}
	if (qp->srq)
		qp->srq->users--;
}

/* ---- Posting ---- */

static int check_post(struct fk_nic *nic, struct fk_qp *qp, const struct fk_ah *ah, int count)
{
	if (qp->dead || qp->kind != FK_DCI || ah->dead || ah->pd != qp->pd) {
		fk_blame(nic, "post: queue pair %u or the address is destroyed, or none of dynamic connections",
			 qp->qp.qp_num);
		return EINVAL;
	}
	if (qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_ERR) {
		if (qp->tail - qp->freed + (uint64_t)count <= qp->cap.max_send_wr)
			return 0;
		fk_blame(nic, "post: queue pair %u has %llu of its %u work requests posted, and %d more", qp->qp.qp_num,
			 (unsigned long long)(qp->tail - qp->freed), qp->cap.max_send_wr, count);
		return ENOMEM;
	}
	fk_blame(nic, "post: queue pair %u is in state %d", qp->qp.qp_num, (int)qp->state);
	return EINVAL;
}

static int post(const struct nv_dc_api *dc, struct ibv_qp *ibqp, const struct nv_dc_to *to, const struct nv_work *work,
		int count)
{
	struct fk_qp *qp = (struct fk_qp *)ibqp;
	struct fk_ah *ah = (struct fk_ah *)to->ah;
	struct fk_nic *nic = qp->dev->nic;

	(void)dc;
	fk_enter(nic);
	nic->n.posts++;
	int err = fk_call_rule(nic, FK_AT_POST, qp->dev, ibqp->qp_num); /* none of them is taken */

	if (!err)
		err = check_post(nic, qp, ah, count);
	for (int i = 0; i < count && !err; i++) {
		struct ibv_sge sge = {.addr = work[i].local, .length = work[i].length, .lkey = work[i].lkey};
		struct ibv_send_wr wr = {
			.wr_id = work[i].id, .sg_list = &sge, .num_sge = 1,
			.opcode = work[i].op == NV_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
			.send_flags = work[i].signal ? IBV_SEND_SIGNALED : 0,
		};

		wr.wr.rdma.remote_addr = work[i].remote;
		wr.wr.rdma.rkey = work[i].rkey;
		err = fk_post_one(nic, qp, &wr);
		if (err)
			break;
		struct fk_work *w = &qp->sq[(qp->tail - 1) % qp->cap.max_send_wr];

		w->ah = ah;
		w->dct = to->dct;
		w->key = to->key;
		ah->users++;
	}
	if (!err)
		fk_posted(nic, qp);
	fk_leave(nic);
	return err;
}

/* ---- Connections ---- */

static bool same_port(const struct ibv_ah_attr *a, const struct ibv_ah_attr *b)
{
	return a->dlid == b->dlid && a->is_global == b->is_global && a->grh.sgid_index == b->grh.sgid_index &&
	       memcmp(a->grh.dgid.raw, b->grh.dgid.raw, sizeof(a->grh.dgid.raw)) == 0;
}

bool fk_dc_connect(struct fk_nic *nic, struct fk_qp *qp, const struct fk_work *w)
{
	if (qp->connected && qp->attr.dest_qp_num == w->dct && qp->key == w->key &&
	    same_port(&qp->attr.ah_attr, &w->ah->attr))
		return true;
	if (qp->una < qp->cursor)
		return false;
	qp->connected = true;
	qp->attr.ah_attr = w->ah->attr;
	qp->attr.dest_qp_num = w->dct;
	qp->key = w->key;
	qp->session = ++nic->sessions;
	qp->session_psn = qp->next_psn;
	return true;
}

static bool from(const struct fk_qp *end, const struct fk_packet *p)
{
	if (end->attr.dest_qp_num != p->sqpn)
		return false;
	return end->dev->o.infiniband ? end->attr.ah_attr.dlid == p->slid
				      : memcmp(end->attr.ah_attr.grh.dgid.raw, p->sgid.raw, 16) == 0;
}

static struct fk_qp *new_end(struct fk_nic *nic, struct fk_qp *dct, const struct fk_packet *p)
{
	struct fk_qp *end = fk_alloc(nic, sizeof(*end));

	end->kind = FK_DCR;
	end->pd = dct->pd;
	end->ctx = dct->ctx;
	end->dev = dct->dev;
	end->cq = dct->cq;
	end->qp.qp_num = dct->qp.qp_num;
	end->qp.context = dct->qp.context;
	end->attr = dct->attr;
	end->attr.dest_qp_num = p->sqpn;
	end->attr.max_dest_rd_atomic = (uint8_t)dct->dev->o.max_rd;
	end->attr.ah_attr.dlid = p->slid;
	end->attr.ah_attr.grh.dgid = p->sgid;
	end->mtu = dct->mtu;
	end->parent = dct;
	end->established = true; /* no program waits for that */
	fk_qp_init(end);
	end->next_bucket = dct->ends;
	dct->ends = end;
	return end;
}

/* Answers leave from the address that was asked, whatever the DCT's own is. */
static uint8_t asked_of(const struct fk_device *dev, const struct fk_packet *p, uint8_t otherwise)
{
	for (int i = 0; !dev->o.infiniband && i < FK_GIDS; i++)
		if (dev->o.gids[i].type == p->gid_type && memcmp(dev->o.gids[i].raw, p->dgid.raw, 16) == 0)
			return (uint8_t)i;
	return otherwise;
}

struct fk_qp *fk_dc_end(struct fk_nic *nic, struct fk_qp *dct, const struct fk_packet *p)
{
	struct fk_qp *end = dct->ends;

	if (dct->state != IBV_QPS_RTR || p->session == 0 || p->key != dct->key)
		return NULL;
	while (end && !from(end, p))
		end = end->next_bucket;
	if (!end)
		end = new_end(nic, dct, p);
	if (p->session < end->session)
		return NULL; /* of a connection that its sender has given up */
	if (p->session > end->session) {
		fk_stop(nic, end);
		end->state = IBV_QPS_RTR;
		end->session = p->session;
		end->expected = p->session_psn;
		end->attr.ah_attr.grh.sgid_index = asked_of(dct->dev, p, dct->attr.ah_attr.grh.sgid_index);
		end->nak_sent = end->refused = end->writing = false;
		end->read_jobs = 0;
	}
	return end;
}

void fk_fill_dc_calls(struct fk_nic *nic)
{
	nic->dc.supported = supported;
	nic->dc.create_dci = create_dci;
	nic->dc.create_dct = create_dct;
	nic->dc.post = post;
	nic->dc.create_ah = create_ah;
	nic->dc.destroy_ah = destroy_ah;
	nic->dc.create_srq = create_srq;
	nic->dc.destroy_srq = destroy_srq;
	nic->api.dc = &nic->dc;
}

#endif /* NV_HAVE_VERBS */
