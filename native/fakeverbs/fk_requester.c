//go:build cgo

/*
 * The requester of a reliable connection: one packet of its queue pair at a time, in order; what is not acknowledged
 * is sent again from the oldest on; an answer to a READ acknowledges what came before it.
 */

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <string.h>

static struct fk_work *work_at(struct fk_qp *qp, uint64_t i) { return &qp->sq[i % qp->cap.max_send_wr]; }

static bool outstanding(const struct fk_qp *qp) { return qp->cursor > qp->una || qp->packet > 0; }

static uint64_t timeout(struct fk_nic *nic, const struct fk_qp *qp)
{
	uint64_t t = (uint64_t)(4096.0 * (double)(1ull << qp->attr.timeout) * nic->o.timeout_scale);
	uint64_t least = 4 * (nic->o.latency + nic->o.jitter) + 2 * FK_EGRESS * nic->o.packet_time + 1000;

	return t > least ? t : least; /* scaled down too far it would expire before an answer can come */
}

static void arm(struct fk_nic *nic, struct fk_qp *qp)
{
	if (qp->attr.timeout == 0 || !outstanding(qp))
		fk_act_cancel(nic, &qp->timer);
	else
		fk_act_at(nic, &qp->timer, nic->cur + timeout(nic, qp));
}

static void again(struct fk_nic *nic, struct fk_qp *qp)
{
	if (qp->cursor < qp->tail && !qp->send.at && !qp->waiting)
		fk_act_at(nic, &qp->send, nic->cur + nic->o.packet_time);
}

/* fail ends the oldest work request with an error, and the queue pair with it. */
static void fail(struct fk_nic *nic, struct fk_qp *qp, uint32_t status, uint32_t vendor)
{
	fk_complete(nic, qp, status, vendor);
	if (qp->cursor < qp->una)
		qp->cursor = qp->una;
	qp->packet = 0;
	fk_qp_error(nic, qp, false);
}

/* begin is when the adapter takes up a work request: it gets its PSNs, its local memory is checked, rules apply. */
static void begin(struct fk_nic *nic, struct fk_qp *qp, struct fk_work *w)
{
	w->started = true;
	w->psn = qp->next_psn;
	w->npsn = w->len == 0 ? 1 : (w->len + qp->mtu - 1) / qp->mtu;
	qp->next_psn = fk_psn_add(w->psn, w->npsn);
	uint8_t *host = w->len ? fk_local(nic, qp, w->lkey, w->local, w->len, w->read) : NULL;

	if (w->len > qp->dev->o.max_message)
		w->fail = IBV_WC_LOC_LEN_ERR;
	else if (w->len > 0 && (!host || !fk_present(nic, qp, host, w->len)))
		w->fail = IBV_WC_LOC_PROT_ERR;
	else if (w->read && qp->attr.max_rd_atomic == 0)
		w->fail = IBV_WC_LOC_QP_OP_ERR;
	if (w->fail) {
		w->vendor = 0x32;
		return;
	}
	struct fk_rule *rule = fk_match(nic, FK_AT_WORK, qp->dev, qp->qp.qp_num, w->read ? 2 : 1);

	if (!rule)
		return;
	switch (rule->o.effect) {
	case FK_LIE:
	case FK_FAIL:
		w->lie = rule->o.effect == FK_LIE;
		w->fail = w->lie ? IBV_WC_GENERAL_ERR : rule->o.status;
		w->vendor = rule->o.vendor;
		w->limit = (uint32_t)(rule->o.bytes / qp->mtu);
		if (w->limit > w->npsn)
			w->limit = w->npsn;
		break;
	case FK_SHORT:
		w->is_short = w->read && rule->o.bytes < w->len;
		w->cut = (uint32_t)rule->o.bytes;
		break;
	default:
		w->rule = rule;
	}
}

static void note_access(struct fk_nic *nic, struct fk_qp *qp, const struct fk_work *w, const uint8_t *host, uint32_t len)
{
	struct fk_access a = {.addr = (uintptr_t)host, .len = len, .work = w->id, .write = w->read};

	fk_log(nic, qp, &a);
}

/* send_write sends the next packet of a WRITE; false: the adapter cannot read the program's memory. */
static bool send_write(struct fk_nic *nic, struct fk_qp *qp, struct fk_work *w)
{
	uint64_t at = (uint64_t)qp->packet * qp->mtu;
	uint32_t len = w->len - at < qp->mtu ? (uint32_t)(w->len - at) : qp->mtu;
	uint8_t *host = len ? fk_local(nic, qp, w->lkey, w->local + at, len, false) : NULL;

	if (len && !host)
		return false;
	struct fk_packet *p = fk_packet_new(qp, FK_WRITE, w->psn + qp->packet, len);

	if (len) {
		memcpy(p->data, host, len);
		note_access(nic, qp, w, host, len);
	}
	p->first = qp->packet == 0;
	p->last = qp->packet + 1 == w->npsn;
	p->remote = w->remote;
	p->rkey = w->rkey;
	p->total = w->len;
	p->has_imm = p->last && w->has_imm;
	p->imm = w->imm;
	qp->packet++;
	p->ack_request = p->last || qp->packet % FK_ACK_EVERY == 0 || (w->fail && qp->packet == w->limit);
	fk_transmit(nic, qp, p);
	return true;
}

static void send_read(struct fk_nic *nic, struct fk_qp *qp, struct fk_work *w)
{
	uint64_t at = (uint64_t)w->got * qp->mtu;
	struct fk_packet *p = fk_packet_new(qp, FK_READ, w->psn + w->got, 0);

	p->remote = w->remote + at;
	p->rkey = w->rkey;
	p->total = w->len - (uint32_t)at;
	p->first = p->last = true;
	qp->reads++;
	fk_transmit(nic, qp, p);
}

static void sent_upto(struct fk_qp *qp, uint32_t psn)
{
	if (fk_psn_diff(psn, qp->sent_psn) > 0)
		qp->sent_psn = psn & FK_PSN_MASK;
}

/* fk_send_turn sends one packet, if one may be sent. */
void fk_send_turn(struct fk_nic *nic, struct fk_qp *qp)
{
	if ((qp->state != IBV_QPS_RTS && !qp->linger) || qp->cursor >= qp->tail || qp->waiting)
		return;
	struct fk_work *w = work_at(qp, qp->cursor);

	if (!w->started && qp->kind == FK_DCI && !fk_dc_connect(nic, qp, w))
		return; /* goes on when those before have been answered */
	if (!w->started)
		begin(nic, qp, w);
	if (w->fail && w->limit == qp->packet && (!w->read || w->limit == 0)) {
		/* Completions are in order, so those before must have ended. */
		if (qp->una == qp->cursor && (w->limit == 0 || qp->una_psn == fk_psn_add(w->psn, w->limit)))
			fail(nic, qp, w->fail, w->vendor);
		return;
	}
	if (w->read) {
		if (qp->reads >= qp->attr.max_rd_atomic)
			return; /* goes on when one has been answered */
		send_read(nic, qp, w);
		qp->cursor++;
		sent_upto(qp, w->psn + w->npsn);
	} else {
		if (fk_psn_diff(w->psn + qp->packet, qp->una_psn) >= FK_WINDOW)
			return; /* goes on with the next acknowledgement */
		if (!send_write(nic, qp, w)) {
			w->fail = IBV_WC_LOC_PROT_ERR;
			w->limit = qp->packet;
			again(nic, qp);
			return;
		}
		sent_upto(qp, w->psn + qp->packet);
		if (qp->packet == w->npsn && !(w->fail && w->limit == w->npsn)) {
			qp->cursor++;
			qp->packet = 0;
		}
	}
	if (!qp->timer.at && qp->state == IBV_QPS_RTS)
		arm(nic, qp);
	again(nic, qp);
}

/* go_back sends again from the oldest that is not acknowledged. */
static void go_back(struct fk_nic *nic, struct fk_qp *qp)
{
	qp->cursor = qp->una;
	qp->packet = 0;
	qp->reads = 0;
	if (qp->una < qp->tail) {
		struct fk_work *w = work_at(qp, qp->una);

		if (w->started && !w->read)
			qp->packet = (uint32_t)fk_psn_diff(qp->una_psn, w->psn);
	}
	again(nic, qp);
}

static void retry(struct fk_nic *nic, struct fk_qp *qp)
{
	if (qp->waiting)
		return;
	if (qp->retries == 0) {
		fail(nic, qp, IBV_WC_RETRY_EXC_ERR, 0x81);
		return;
	}
	qp->retries--;
	nic->n.retries++;
	go_back(nic, qp);
	fk_act_at(nic, &qp->timer, nic->cur + timeout(nic, qp));
	if (qp->attr.timeout == 0)
		fk_act_cancel(nic, &qp->timer);
}

/* The times of a receiver that is not ready, by their codes: after the first ones each second one is twice as long. */
static uint64_t rnr_time(uint32_t code)
{
	if (code == 0)
		return 655360000;
	return code == 1 ? 10000 : (code % 2 ? 15000ull : 10000ull) << code / 2;
}

/* not_ready waits as long as the peer said, and then sends again from what it had no receive for. */
static void not_ready(struct fk_nic *nic, struct fk_qp *qp, uint32_t wait)
{
	if (qp->waiting)
		return; /* said twice */
	if (qp->rnr_retries == 0) {
		fail(nic, qp, IBV_WC_RNR_RETRY_EXC_ERR, 0x82);
		return;
	}
	if (qp->attr.rnr_retry != 7) /* which means for ever */
		qp->rnr_retries--;
	nic->n.not_ready++;
	qp->waiting = true;
	fk_act_cancel(nic, &qp->send);
	fk_act_at(nic, &qp->timer, nic->cur + rnr_time(wait));
}

void fk_timer(struct fk_nic *nic, struct fk_qp *qp)
{
	qp->gap = false;
	if (qp->waiting) {
		qp->waiting = false;
		if (qp->state == IBV_QPS_RTS) {
			go_back(nic, qp);
			arm(nic, qp);
		}
		return;
	}
	if (qp->state == IBV_QPS_RTS && qp->una < qp->tail && work_at(qp, qp->una)->started)
		retry(nic, qp);
}

/* A gap is answered once: what arrives behind it until the resent packets come says nothing new. */
static void gap(struct fk_nic *nic, struct fk_qp *qp)
{
	if (qp->gap)
		return;
	qp->gap = true;
	retry(nic, qp);
}

static void progress(struct fk_nic *nic, struct fk_qp *qp)
{
	qp->gap = false;
	qp->retries = qp->attr.retry_cnt;
	qp->rnr_retries = qp->attr.rnr_retry;
	arm(nic, qp);
	again(nic, qp);
}

/* acknowledged takes everything before upto as done; false: a READ in it has not been answered. */
static bool acknowledged(struct fk_nic *nic, struct fk_qp *qp, uint32_t upto)
{
	while (qp->una < qp->tail && fk_psn_diff(upto, qp->una_psn) > 0) {
		struct fk_work *w = work_at(qp, qp->una);

		if (!w->started)
			break;
		if (w->read)
			return false;
		if (fk_psn_diff(upto, w->psn) < (int32_t)w->npsn || w->fail) {
			qp->una_psn = upto;
			break;
		}
		fk_complete(nic, qp, IBV_WC_SUCCESS, 0);
		if (qp->cursor < qp->una) { /* acknowledged while it was being sent again */
			qp->cursor = qp->una;
			qp->packet = 0;
		}
	}
	return true;
}

void fk_requester_ack(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p)
{
	static const uint32_t statuses[] = {[FK_NAK_INVALID] = IBV_WC_REM_INV_REQ_ERR,
					    [FK_NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR};
	uint32_t upto = p->code == FK_ACK_OK ? fk_psn_add(p->psn, 1) : p->psn;

	if (qp->state != IBV_QPS_RTS || fk_psn_diff(upto, qp->una_psn) < 0 || fk_psn_diff(upto, qp->sent_psn) > 0)
		return; /* old, or of something that was never sent */
	uint32_t before = qp->una_psn;
	bool whole = acknowledged(nic, qp, upto);

	if (qp->una_psn != before)
		progress(nic, qp);
	if (!whole) {
		gap(nic, qp);
		return;
	}
	if (p->code == FK_ACK_OK || !outstanding(qp))
		return;
	if (p->code == FK_NAK_SEQUENCE)
		retry(nic, qp);
	else if (p->code == FK_NAK_NOT_READY)
		not_ready(nic, qp, p->wait);
	else
		fail(nic, qp, statuses[p->code], 0x88 + (uint32_t)p->code);
}

/* take puts a piece of a READ's answer into the program's memory; false: it may not be written any more. */
static bool take(struct fk_nic *nic, struct fk_qp *qp, struct fk_work *w, const struct fk_packet *p)
{
	uint64_t at = (uint64_t)w->got * qp->mtu;
	uint32_t len = p->len;

	if (w->is_short && at + len > w->cut)
		len = at < w->cut ? (uint32_t)(w->cut - at) : 0;
	if (len == 0)
		return true;
	uint8_t *host = fk_local(nic, qp, w->lkey, w->local + at, len, true);

	if (!host)
		return false;
	if (nic->o.poison)
		for (uint32_t i = 0; i < len; i++)
			if (host[i] != 0xdb) {
				fk_blame(nic, "work request %llu of queue pair %u: the program wrote where it reads to",
					 (unsigned long long)w->id, qp->qp.qp_num);
				break;
			}
	memcpy(host, p->data, len);
	note_access(nic, qp, w, host, len);
	qp->read_bytes += len;
	nic->n.read_bytes += len;
	return true;
}

void fk_requester_response(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p)
{
	if ((qp->state != IBV_QPS_RTS && !qp->linger) || fk_psn_diff(p->psn, qp->una_psn) < 0 ||
	    fk_psn_diff(p->psn, qp->sent_psn) >= 0)
		return;
	uint32_t before = qp->una_psn;
	bool whole = qp->linger || acknowledged(nic, qp, p->psn);
	struct fk_work *w = qp->una < qp->tail ? work_at(qp, qp->una) : NULL;

	if (!w || !w->started || !w->read || w->got == w->npsn) /* all of it: what lingers never ends */
		return;
	if (!whole || p->psn != fk_psn_add(w->psn, w->got)) {
		if (qp->state != IBV_QPS_RTS)
			return;
		if (qp->una_psn != before)
			progress(nic, qp);
		if (fk_psn_diff(p->psn, fk_psn_add(w->psn, w->got)) > 0)
			gap(nic, qp); /* one before it was lost */
		return;
	}
	uint64_t left = w->len - (uint64_t)w->got * qp->mtu;

	if (p->len != (left < qp->mtu ? left : qp->mtu)) {
		if (qp->state == IBV_QPS_RTS)
			fail(nic, qp, IBV_WC_BAD_RESP_ERR, 0x8f);
		return;
	}
	if (!take(nic, qp, w, p)) {
		if (qp->state == IBV_QPS_RTS)
			fail(nic, qp, IBV_WC_LOC_PROT_ERR, 0x32);
		return;
	}
	w->got++;
	qp->una_psn = fk_psn_add(w->psn, w->got);
	if (qp->state != IBV_QPS_RTS)
		return;
	if (w->fail && w->got >= w->limit) {
		fail(nic, qp, w->fail, w->vendor);
		return;
	}
	if (w->got == w->npsn) {
		if (qp->reads > 0)
			qp->reads--;
		fk_complete(nic, qp, IBV_WC_SUCCESS, 0);
		if (qp->cursor < qp->una)
			qp->cursor = qp->una;
	}
	progress(nic, qp);
}

#endif /* NV_HAVE_VERBS */
