//go:build cgo

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <stdlib.h>
#include <string.h>

static struct fk_nic *nic_of(struct fk_qp *qp) { return qp->dev->nic; }

struct fk_qp *fk_find_qp(struct fk_nic *nic, struct fk_device *dev, uint32_t qpn)
{
	struct fk_qp *qp = nic->qp_buckets[qpn % FK_BUCKETS];

	while (qp && (qp->qp.qp_num != qpn || qp->dev != dev))
		qp = qp->next_bucket;
	return qp;
}

static uint32_t new_qpn(struct fk_nic *nic)
{
	if (nic->o.reuse_numbers && nic->free_qpn_len > 0)
		return nic->free_qpn[--nic->free_qpn_len];
	nic->next_qpn = (nic->next_qpn + 1) & 0xffffff;
	if (nic->next_qpn < 2) /* 0 and 1 are the management queue pairs */
		nic->next_qpn = 2;
	return nic->next_qpn;
}

static void act_init(struct fk_act *act, enum fk_act_kind kind, struct fk_qp *qp)
{
	act->kind = kind;
	act->owner = qp;
}

static int check_create(struct fk_nic *nic, struct fk_pd *pd, const struct ibv_qp_init_attr *attr, enum fk_kind kind)
{
	struct fk_device *dev = pd->ctx->dev;
	struct fk_cq *cq = (struct fk_cq *)attr->send_cq, *rq = (struct fk_cq *)attr->recv_cq;
	int err = fk_call_rule(nic, FK_AT_CREATE_QP, dev, 0);

	if (err)
		return err;
	if (pd->dead || !cq || !rq || cq->dead || rq->dead || cq->ctx != pd->ctx || rq->ctx != pd->ctx) {
		fk_blame(nic, "create_qp: protection domain or completion queue is not there");
		return EINVAL;
	}
	if (dev->fatal)
		return EIO;
	if (kind == FK_RC && (attr->qp_type != IBV_QPT_RC || attr->srq))
		return EOPNOTSUPP;
	if (kind != FK_DCT && attr->cap.max_send_wr < 1)
		return EINVAL;
	if (attr->cap.max_send_wr > (uint32_t)dev->o.max_wr ||
	    attr->cap.max_recv_wr > (uint32_t)dev->o.max_wr || attr->cap.max_send_sge > 1 ||
	    attr->cap.max_recv_sge > 1 || attr->cap.max_inline_data > 0)
		return EINVAL;
	return dev->qps >= (uint64_t)dev->o.max_qp ? ENOMEM : 0;
}

/* fk_qp_init is what every queue pair needs, also one that no program made. */
void fk_qp_init(struct fk_qp *qp)
{
	pthread_mutex_init(&qp->qp.mutex, NULL);
	pthread_cond_init(&qp->qp.cond, NULL);
	act_init(&qp->send, FK_ACT_SEND, qp);
	act_init(&qp->timer, FK_ACT_TIMER, qp);
	act_init(&qp->flush, FK_ACT_FLUSH, qp);
	act_init(&qp->respond, FK_ACT_RESPOND, qp);
	act_init(&qp->wire, FK_ACT_WIRE, qp);
	qp->jobs_end = &qp->jobs;
	qp->egress_end = &qp->egress;
	qp->next = qp->dev->nic->qps;
	qp->dev->nic->qps = qp;
}

/* fk_qp_number gives it a number, by which packets find it. */
void fk_qp_number(struct fk_nic *nic, struct fk_qp *qp)
{
	qp->qp.qp_num = new_qpn(nic);
	struct fk_qp **bucket = &nic->qp_buckets[qp->qp.qp_num % FK_BUCKETS];

	qp->next_bucket = *bucket;
	*bucket = qp;
}

/* fk_create_qp returns NULL with errno. */
struct fk_qp *fk_create_qp(struct fk_pd *pd, struct ibv_qp_init_attr *attr, enum fk_kind kind)
{
	struct fk_device *dev = pd->ctx->dev;
	struct fk_nic *nic = dev->nic;

	fk_enter(nic);
	int err = check_create(nic, pd, attr, kind);

	if (err) {
		fk_leave(nic);
		errno = err;
		return NULL;
	}
	struct fk_qp *qp = fk_alloc(nic, sizeof(*qp));

	qp->sq = calloc(attr->cap.max_send_wr + 1, sizeof(*qp->sq)); /* none is no error */
	qp->rq = calloc(attr->cap.max_recv_wr + 1, sizeof(*qp->rq));
	if (!qp->sq || !qp->rq)
		abort();
	qp->kind = kind;
	qp->pd = pd;
	qp->ctx = pd->ctx;
	qp->dev = dev;
	qp->cq = (struct fk_cq *)attr->send_cq;
	qp->cap = attr->cap;
	qp->signal_all = attr->sq_sig_all;
	qp->qp.context = pd->pd.context;
	qp->qp.qp_context = attr->qp_context;
	qp->qp.pd = &pd->pd;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.qp_type = attr->qp_type;
	fk_qp_init(qp);
	if (kind != FK_DCT)
		fk_qp_number(nic, qp); /* a DCT gets it when it begins to answer */
	pd->users++;
	qp->cq->users++;
	((struct fk_cq *)attr->recv_cq)->users++;
	dev->qps++;
	nic->n.qps++;
	fk_leave(nic);
	return qp;
}

static struct ibv_qp *create_qp(struct ibv_pd *ibpd, struct ibv_qp_init_attr *attr)
{
	struct fk_qp *qp = fk_create_qp((struct fk_pd *)ibpd, attr, FK_RC);

	return qp ? &qp->qp : NULL;
}

/* ---- Ownership and completions ---- */

/* fk_release_work gives buffers back to the program: up to a work request whose completion it polled. */
void fk_release_work(struct fk_nic *nic, struct fk_qp *qp, uint64_t upto)
{
	for (; qp->freed < upto; qp->freed++) {
		struct fk_work *w = &qp->sq[qp->freed % qp->cap.max_send_wr];
		uint8_t *host;

		if (w->ah)
			w->ah->users--;
		if (!nic->o.poison || w->len == 0 || !w->done)
			continue;
		host = fk_local(nic, qp, w->lkey, w->local, w->len, false);
		if (host && fk_hash(host, w->len) != w->hash)
			fk_blame(nic, "buffer of work request %llu of queue pair %u changed while the adapter owned it",
				 (unsigned long long)w->id, qp->qp.qp_num);
	}
}

static bool blocked(struct fk_held *held)
{
	for (; held; held = held->next)
		if (held->rule && held->cqe.qp && !held->rule->released && !held->rule->o.overtake)
			return true;
	return false;
}

static void hold(struct fk_qp *qp, const struct fk_cqe *cqe, struct fk_rule *rule)
{
	struct fk_held **at = &qp->held, *h = calloc(1, sizeof(*h));

	if (!h)
		abort();
	while (*at)
		at = &(*at)->next;
	h->cqe = *cqe;
	h->rule = rule;
	*at = h;
}

void fk_release_held(struct fk_nic *nic, struct fk_qp *qp)
{
	for (struct fk_held **at = &qp->held; *at && !qp->dev->fatal;) {
		struct fk_held *h = *at;

		if (h->rule && !h->rule->released) {
			if (h->cqe.qp && !h->rule->o.overtake)
				return; /* those behind wait */
			at = &h->next;
			continue;
		}
		*at = h->next;
		fk_cq_add(nic, qp->cq, &h->cqe);
		free(h);
	}
}

/* drop_held forgets completions at a reset, but those that shall come late: they belong to no queue pair then. */
static void drop_held(struct fk_qp *qp)
{
	for (struct fk_held **at = &qp->held; *at;) {
		struct fk_held *h = *at;

		if (h->rule && h->rule->o.late) {
			h->cqe.qp = NULL;
			at = &h->next;
			continue;
		}
		*at = h->next;
		free(h);
	}
}

/* fk_complete ends the oldest work request that has not ended. */
void fk_complete(struct fk_nic *nic, struct fk_qp *qp, uint32_t status, uint32_t vendor)
{
	struct fk_work *w = &qp->sq[qp->una % qp->cap.max_send_wr];
	struct fk_cqe e = {.qp = qp, .upto = ++qp->una};
	struct fk_rule *rule = w->rule;

	if (w->started)
		qp->una_psn = fk_psn_add(w->psn, w->npsn);
	if (w->read && nic->o.poison && w->len > 0) {
		uint8_t *host = fk_local(nic, qp, w->lkey, w->local, w->len, false);

		if (host)
			w->hash = fk_hash(host, w->len);
	}
	w->done = true;
	if (w->lie && status == w->fail)
		status = IBV_WC_SUCCESS;
	e.wc.wr_id = w->id;
	e.wc.status = (enum ibv_wc_status)status;
	e.wc.opcode = w->read ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
	e.wc.vendor_err = vendor;
	e.wc.byte_len = w->is_short ? w->cut : w->len;
	e.wc.qp_num = qp->qp.qp_num;
	if (status == IBV_WC_SUCCESS && !w->signaled)
		return;
	if (rule && rule->o.effect == FK_LOSE)
		return;
	if (rule && rule->o.effect == FK_HOLD && !rule->released)
		hold(qp, &e, rule);
	else if (blocked(qp->held))
		hold(qp, &e, NULL);
	else
		fk_cq_add(nic, qp->cq, &e);
	if (rule && rule->o.effect == FK_TWICE)
		fk_cq_add(nic, qp->cq, &e);
}

void fk_receive(struct fk_nic *nic, struct fk_qp *qp, struct ibv_wc wc)
{
	struct fk_cqe e = {.qp = qp}; /* it releases no work request */

	if (qp->received == qp->posted)
		return;
	e.wc = wc;
	e.wc.wr_id = qp->rq[qp->received++ % qp->cap.max_recv_wr];
	e.wc.qp_num = qp->qp.qp_num;
	fk_cq_add(nic, (struct fk_cq *)qp->qp.recv_cq, &e);
}

/* ---- States ---- */

void fk_purge_jobs(struct fk_qp *qp, uint32_t from, bool all)
{
	struct fk_job **at = &qp->jobs;

	while (*at) {
		struct fk_job *j = *at;

		if (!all && fk_psn_diff(j->psn, from) < 0) {
			at = &j->next;
			continue;
		}
		if (j->kind == FK_JOB_READ && !j->again)
			qp->read_jobs--;
		*at = j->next;
		free(j);
	}
	qp->jobs_end = at;
}

void fk_stop(struct fk_nic *nic, struct fk_qp *qp)
{
	fk_act_cancel(nic, &qp->send);
	fk_act_cancel(nic, &qp->timer);
	fk_act_cancel(nic, &qp->respond);
	fk_act_cancel(nic, &qp->flush);
	fk_purge_jobs(qp, 0, true);
	qp->linger = false;
}

/*
 * fk_qp_error takes a queue pair to its error state. The responder stops at once. When it was the program that asked,
 * the requester lingers: it may go on with what it has until the work requests are flushed.
 */
void fk_qp_error(struct fk_nic *nic, struct fk_qp *qp, bool linger)
{
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET)
		return;
	linger = linger && qp->state == IBV_QPS_RTS;
	qp->state = IBV_QPS_ERR;
	fk_act_cancel(nic, &qp->timer);
	fk_act_cancel(nic, &qp->respond);
	fk_purge_jobs(qp, 0, true);
	qp->linger = linger;
	if (!linger)
		fk_act_cancel(nic, &qp->send);
	fk_act_at(nic, &qp->flush, nic->cur + nic->o.flush_time);
	fk_changed(nic);
}

void fk_qp_flush(struct fk_nic *nic, struct fk_qp *qp)
{
	fk_act_cancel(nic, &qp->send);
	qp->linger = false;
	while (qp->una < qp->tail)
		fk_complete(nic, qp, IBV_WC_WR_FLUSH_ERR, 0);
	while (qp->received < qp->posted)
		fk_receive(nic, qp, (struct ibv_wc){.status = IBV_WC_WR_FLUSH_ERR});
	qp->cursor = qp->una;
	qp->packet = 0;
	qp->reads = 0;
}

/* A queue pair that fails on its own says so by an event. */
void fk_fail_qp(struct fk_nic *nic, uint32_t qpn)
{
	fk_enter(nic);
	for (struct fk_qp *qp = nic->qps; qp; qp = qp->next) {
		if (qp->dead || qp->kind == FK_DCR || qp->qp.qp_num != qpn)
			continue;
		struct ibv_async_event event = {.event_type = IBV_EVENT_QP_FATAL};

		event.element.qp = &qp->qp;
		fk_qp_error(nic, qp, false);
		fk_async(nic, qp->ctx, event);
		break;
	}
	fk_leave(nic);
}

/* reset takes everything from the adapter: after it no buffer is owned and nothing is sent. */
static void reset(struct fk_nic *nic, struct fk_qp *qp)
{
	fk_stop(nic, qp);
	if (!nic->o.keep_completions) {
		fk_cq_forget(qp->cq, qp);
		fk_cq_forget((struct fk_cq *)qp->qp.recv_cq, qp);
	}
	drop_held(qp);
	memset(&qp->attr, 0, sizeof(qp->attr));
	qp->state = IBV_QPS_RESET;
	for (uint64_t i = qp->una; i < qp->tail; i++) /* of a READ that did not end nothing is known */
		qp->sq[i % qp->cap.max_send_wr].done = !qp->sq[i % qp->cap.max_send_wr].read;
	fk_release_work(nic, qp, qp->tail);
	qp->una = qp->cursor = qp->tail;
	qp->packet = 0;
	qp->reads = 0;
	qp->gap = qp->waiting = false;
	qp->received = qp->posted;
	qp->nak_sent = qp->refused = qp->established = qp->writing = false;
	qp->connected = false;
	qp->read_jobs = 0;
	fk_changed(nic);
}

static int destroy_qp(struct ibv_qp *ibqp)
{
	struct fk_qp *qp = (struct fk_qp *)ibqp;
	struct fk_nic *nic = nic_of(qp);

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_DESTROY_QP, qp->dev, qp->qp.qp_num);

	if (!err)
		fk_await_acks(nic, &qp->unacked, "destroy_qp");
	if (!err && qp->dead) {
		fk_blame(nic, "destroy_qp: destroyed before");
		err = EINVAL;
	}
	if (err) {
		fk_leave(nic);
		return err;
	}
	reset(nic, qp);
	qp->dead = true;
	struct fk_qp **at = &nic->qp_buckets[qp->qp.qp_num % FK_BUCKETS];

	while (*at && *at != qp)
		at = &(*at)->next_bucket;
	if (*at)
		*at = qp->next_bucket;
	fk_dc_destroyed(nic, qp);
	if (nic->o.reuse_numbers && qp->qp.qp_num != 0) {
		if (nic->free_qpn_len == nic->free_qpn_room) {
			nic->free_qpn_room = nic->free_qpn_room ? 2 * nic->free_qpn_room : 64;
			nic->free_qpn = realloc(nic->free_qpn, nic->free_qpn_room * sizeof(*nic->free_qpn));
			if (!nic->free_qpn)
				abort();
		}
		nic->free_qpn[nic->free_qpn_len++] = qp->qp.qp_num;
	}
	fk_async_forget(qp->ctx, qp);
	free(qp->sq);
	free(qp->rq);
	qp->sq = NULL;
	qp->rq = NULL;
	qp->pd->users--;
	qp->cq->users--;
	((struct fk_cq *)qp->qp.recv_cq)->users--;
	qp->dev->qps--;
	nic->n.qps--;
	fk_changed(nic);
	fk_leave(nic);
	return 0;
}

/* What each change of state must and may name: the table of ibv_modify_qp(3) for RC. */
struct change {
	enum ibv_qp_state from, to;
	int required, optional;
};

/* Of a DCI, which learns of its peers by its work requests, and a DCT: what mlx5dv_create_qp(3)'s users must name. */
static const struct change dci_changes[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT, 0},
	{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_PATH_MTU, 0},
	{IBV_QPS_RTR, IBV_QPS_RTS,
	 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT, 0},
};

static const struct change dct_changes[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
	{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER, 0},
};

static const struct change changes[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
	{IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
	{IBV_QPS_INIT, IBV_QPS_RTR,
	 IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		 IBV_QP_MIN_RNR_TIMER,
	 IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
	{IBV_QPS_RTR, IBV_QPS_RTS,
	 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT,
	 IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
	{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

static bool allowed(const struct fk_qp *qp, enum ibv_qp_state to, int mask)
{
	int named = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
	const struct change *list = changes;
	size_t count = sizeof(changes) / sizeof(changes[0]);

	if (qp->kind == FK_DCI) {
		list = dci_changes;
		count = sizeof(dci_changes) / sizeof(dci_changes[0]);
	} else if (qp->kind == FK_DCT) { /* only destroying it ends it */
		list = dct_changes;
		count = sizeof(dct_changes) / sizeof(dct_changes[0]);
	}
	if (qp->kind != FK_DCT && (mask & IBV_QP_STATE) && to == IBV_QPS_RESET)
		return named == 0;
	if (qp->kind != FK_DCT && (mask & IBV_QP_STATE) && to == IBV_QPS_ERR)
		return named == 0 && qp->state != IBV_QPS_RESET;
	for (size_t i = 0; i < count; i++) {
		const struct change *c = &list[i];

		if (c->from == qp->state && c->to == to)
			return (named & c->required) == c->required &&
			       (named & ~(c->required | c->optional)) == 0;
	}
	return false;
}

static bool valid(const struct fk_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	const struct fk_device *dev = qp->dev;
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	static const uint8_t zero[16];
	const struct ibv_ah_attr *ah = &a->ah_attr;

	if ((mask & IBV_QP_PORT) && a->port_num != 1)
		return false;
	if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index != 0)
		return false;
	if ((mask & IBV_QP_ACCESS_FLAGS) && (a->qp_access_flags & ~(unsigned)access) != 0)
		return false;
	if ((mask & IBV_QP_PATH_MTU) && (a->path_mtu < IBV_MTU_256 || (int)a->path_mtu > dev->o.mtu))
		return false;
	if ((mask & IBV_QP_AV) && (ah->port_num != 1 || (!dev->o.infiniband && !ah->is_global)))
		return false;
	if ((mask & IBV_QP_AV) && ah->is_global &&
	    (ah->grh.sgid_index >= FK_GIDS || memcmp(dev->o.gids[ah->grh.sgid_index].raw, zero, 16) == 0 ||
	     (qp->kind != FK_DCT && memcmp(ah->grh.dgid.raw, zero, 16) == 0)))
		return false;
	return !((mask & IBV_QP_DEST_QPN) && a->dest_qp_num > 0xffffff) &&
	       !((mask & IBV_QP_RQ_PSN) && a->rq_psn > FK_PSN_MASK) &&
	       !((mask & IBV_QP_SQ_PSN) && a->sq_psn > FK_PSN_MASK) &&
	       !((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > dev->o.max_rd) &&
	       !((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > dev->o.max_rd) &&
	       !((mask & IBV_QP_TIMEOUT) && a->timeout > 31) && !((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7) &&
	       !((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7) &&
	       !((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31);
}

static void apply(struct fk_nic *nic, struct fk_qp *qp, const struct ibv_qp_attr *a, int mask, enum ibv_qp_state to)
{
	if (mask & IBV_QP_PORT)
		qp->attr.port_num = a->port_num;
	if (mask & IBV_QP_ACCESS_FLAGS)
		qp->attr.qp_access_flags = a->qp_access_flags;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		qp->attr.min_rnr_timer = a->min_rnr_timer;
	if (qp->state == IBV_QPS_INIT && to == IBV_QPS_RTR) {
		qp->attr.ah_attr = a->ah_attr;
		qp->attr.path_mtu = a->path_mtu;
		qp->attr.dest_qp_num = a->dest_qp_num;
		qp->attr.rq_psn = a->rq_psn;
		qp->attr.max_dest_rd_atomic = a->max_dest_rd_atomic;
		qp->mtu = 128u << a->path_mtu;
		qp->expected = a->rq_psn;
		if (qp->kind == FK_DCT)
			fk_qp_number(nic, qp);
	}
	if (qp->state == IBV_QPS_RTR && to == IBV_QPS_RTS) {
		qp->attr.sq_psn = a->sq_psn;
		qp->attr.max_rd_atomic = a->max_rd_atomic;
		qp->attr.retry_cnt = a->retry_cnt;
		qp->attr.rnr_retry = a->rnr_retry;
		qp->attr.timeout = a->timeout;
		qp->retries = a->retry_cnt;
		qp->rnr_retries = a->rnr_retry;
		qp->una_psn = qp->next_psn = qp->sent_psn = a->sq_psn;
	}
	qp->state = to;
	fk_changed(nic);
}

static int modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	static const enum fk_point points[] = {[IBV_QPS_RESET] = FK_AT_RESET, [IBV_QPS_INIT] = FK_AT_INIT,
					       [IBV_QPS_RTR] = FK_AT_RTR,     [IBV_QPS_RTS] = FK_AT_RTS,
					       [IBV_QPS_ERR] = FK_AT_ERROR};
	struct fk_qp *qp = (struct fk_qp *)ibqp;
	struct fk_nic *nic = nic_of(qp);

	fk_enter(nic);
	enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
	int err = 0;

	if (mask & IBV_QP_STATE) {
		if (to > IBV_QPS_ERR || to == IBV_QPS_SQD || to == IBV_QPS_SQE)
			err = EINVAL;
		else
			err = fk_call_rule(nic, points[to], qp->dev, ibqp->qp_num);
	}
	if (!err && qp->dead) {
		fk_blame(nic, "modify_qp: queue pair is destroyed");
		err = EINVAL;
	}
	if (!err && qp->dev->fatal)
		err = EIO;
	if (!err && ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != qp->state))
		err = EINVAL;
	if (!err && (!allowed(qp, to, mask) || !valid(qp, attr, mask)))
		err = EINVAL;
	if (!err) {
		if ((mask & IBV_QP_STATE) && to == IBV_QPS_RESET)
			reset(nic, qp);
		else if ((mask & IBV_QP_STATE) && to == IBV_QPS_ERR)
			fk_qp_error(nic, qp, true);
		else
			apply(nic, qp, attr, mask, to);
		ibqp->state = qp->state;
	}
	fk_leave(nic);
	return err;
}

static int query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct fk_qp *qp = (struct fk_qp *)ibqp;
	struct fk_nic *nic = nic_of(qp);

	(void)mask;
	fk_enter(nic);
	int rc = qp->dead ? EINVAL : qp->dev->fatal ? EIO : 0;

	if (qp->dead)
		fk_blame(nic, "query_qp: queue pair is destroyed");
	if (rc == 0) {
		*attr = qp->attr;
		attr->qp_state = attr->cur_qp_state = qp->state;
		attr->cap = qp->cap;
		if (init) {
			memset(init, 0, sizeof(*init));
			init->send_cq = ibqp->send_cq;
			init->recv_cq = ibqp->recv_cq;
			init->cap = qp->cap;
			init->qp_type = ibqp->qp_type;
			init->sq_sig_all = qp->signal_all;
		}
	}
	fk_leave(nic);
	return rc;
}

/* ---- Posting ---- */

int fk_post_one(struct fk_nic *nic, struct fk_qp *qp, const struct ibv_send_wr *wr)
{
	if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) {
		fk_blame(nic, "post_send: queue pair %u is in state %d", qp->qp.qp_num, (int)qp->state);
		return EINVAL;
	}
	bool imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	if ((wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_READ && !imm) || wr->num_sge < 0 ||
	    wr->num_sge > 1 || (wr->send_flags & IBV_SEND_INLINE))
		return EINVAL;
	if (qp->tail - qp->freed >= qp->cap.max_send_wr) {
		fk_blame(nic, "post_send: queue pair %u has all of its %u work requests posted", qp->qp.qp_num,
			 qp->cap.max_send_wr);
		return ENOMEM;
	}
	struct fk_work *w = &qp->sq[qp->tail++ % qp->cap.max_send_wr];

	memset(w, 0, sizeof(*w));
	w->id = wr->wr_id;
	w->read = wr->opcode == IBV_WR_RDMA_READ;
	w->has_imm = imm;
	w->imm = imm ? wr->imm_data : 0;
	w->signaled = qp->signal_all || (wr->send_flags & IBV_SEND_SIGNALED);
	w->remote = wr->wr.rdma.remote_addr;
	w->rkey = wr->wr.rdma.rkey;
	if (wr->num_sge == 1) {
		w->local = wr->sg_list[0].addr;
		w->len = wr->sg_list[0].length;
		w->lkey = wr->sg_list[0].lkey;
	}
	if (nic->o.poison && w->len > 0) {
		uint8_t *host = fk_local(nic, qp, w->lkey, w->local, w->len, w->read);

		if (host && !fk_present(nic, qp, host, w->len))
			host = NULL;
		if (host && w->read)
			memset(host, 0xdb, w->len);
		if (host)
			w->hash = fk_hash(host, w->len);
	}
	qp->works++;
	nic->n.works++;
	return 0;
}

/* fk_posted lets the adapter begin with what was posted. */
void fk_posted(struct fk_nic *nic, struct fk_qp *qp)
{
	if (qp->dev->fatal)
		return;
	if (qp->state == IBV_QPS_RTS && !qp->send.at)
		fk_act_at(nic, &qp->send, nic->cur);
	else if (qp->state == IBV_QPS_ERR && !qp->flush.at)
		fk_act_at(nic, &qp->flush, nic->cur + nic->o.flush_time);
}

static int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fk_qp *qp = (struct fk_qp *)ibqp;
	struct fk_nic *nic = nic_of(qp);
	uint32_t taken = 0, stop_at = UINT32_MAX;
	int rc = 0;

	fk_enter(nic);
	nic->n.posts++;
	struct fk_rule *rule = fk_match(nic, FK_AT_POST, qp->dev, ibqp->qp_num, 0);

	if (rule && rule->o.effect == FK_HOLD) {
		fk_hold_call(nic, rule);
		if (!rule->o.err)
			rule = NULL;
	}
	if (qp->dead || qp->kind != FK_RC) {
		fk_blame(nic, "post_send: queue pair is destroyed, or no reliable connection");
		rc = EINVAL;
	}
	bool whole = rule && rule->o.batch == UINT32_MAX;

	if (rule && !whole) /* of a shorter chain the last one fails */
		for (const struct ibv_send_wr *at = wr; at && taken <= rule->o.batch; at = at->next)
			stop_at = taken++;
	taken = 0;
	while (wr && rc == 0) {
		rc = taken == stop_at ? rule->o.err : fk_post_one(nic, qp, wr);
		if (rc == 0) {
			taken++;
			wr = wr->next;
		}
	}
	if (rc != 0)
		*bad = wr;
	else if (whole)
		rc = rule->o.err;
	if (taken > 0)
		fk_posted(nic, qp);
	fk_leave(nic);
	return rc;
}

/* A receive has no memory: only immediates of WRITEs are received. */
static int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fk_qp *qp = (struct fk_qp *)ibqp;
	struct fk_nic *nic = nic_of(qp);
	int rc = 0;

	fk_enter(nic);
	for (; wr && rc == 0; wr = wr->next) {
		if (qp->dead || qp->kind != FK_RC || qp->state == IBV_QPS_RESET) {
			fk_blame(nic, "post_recv: queue pair %u is destroyed or reset", ibqp->qp_num);
			rc = EINVAL;
		} else if (wr->num_sge != 0) {
			rc = EINVAL;
		} else if (qp->posted - qp->received >= qp->cap.max_recv_wr) {
			rc = ENOMEM;
		} else {
			qp->rq[qp->posted++ % qp->cap.max_recv_wr] = wr->wr_id;
			continue;
		}
		*bad = wr;
	}
	if (qp->state == IBV_QPS_ERR && qp->posted > qp->received && !qp->flush.at && !qp->dev->fatal)
		fk_act_at(nic, &qp->flush, nic->cur + nic->o.flush_time);
	fk_leave(nic);
	return rc;
}

/* ---- What tests ask ---- */

int fk_owned(struct fk_nic *nic, uint64_t addr, uint64_t len)
{
	int owned = 0;

	fk_enter(nic);
	for (struct fk_qp *qp = nic->qps; qp && !owned; qp = qp->next)
		for (uint64_t i = qp->freed; !qp->dead && !owned && i < qp->tail; i++) {
			const struct fk_work *w = &qp->sq[i % qp->cap.max_send_wr];

			owned = w->local < addr + len && addr < w->local + w->len;
		}
	fk_leave(nic);
	return owned;
}

int fk_read_qp_counters(struct fk_nic *nic, uint32_t qpn, struct fk_qp_counters *out)
{
	int found = 0;

	fk_enter(nic);
	for (struct fk_qp *qp = nic->qps; qp && !found; qp = qp->next) {
		if (qp->qp.qp_num != qpn || qp->kind == FK_DCR)
			continue;
		out->works = qp->works;
		out->write_bytes = qp->write_bytes;
		for (struct fk_qp *end = qp->ends; end; end = end->next_bucket)
			out->write_bytes += end->write_bytes;
		out->read_bytes = qp->read_bytes;
		out->owned = qp->tail - qp->freed;
		out->state = (int)qp->state;
		found = 1;
	}
	fk_leave(nic);
	return found;
}

void fk_fill_qp_calls(struct nv_api *api)
{
	api->create_qp = create_qp;
	api->destroy_qp = destroy_qp;
	api->modify_qp = modify_qp;
	api->query_qp = query_qp;
	api->post_send = post_send;
	api->post_recv = post_recv;
}

#endif /* NV_HAVE_VERBS */
