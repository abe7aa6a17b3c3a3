//go:build cgo

/*
 * The responder of a reliable connection. Requests are executed in the order of their PSNs, each once (a READ may be
 * asked for again), answers leave in that order too. What the region's key does not allow is refused with a NAK, and
 * the queue pair goes to its error state: an error of class C of the specification.
 */

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <stdlib.h>
#include <string.h>

static bool ready(const struct fk_qp *qp) { return qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS; }

static void acknowledge(struct fk_nic *nic, struct fk_qp *qp, enum fk_ack_code code, uint32_t psn)
{
	struct fk_packet *p = fk_packet_new(qp, FK_ACKNOWLEDGE, psn, 0);

	p->code = code;
	p->wait = qp->attr.min_rnr_timer;
	fk_transmit(nic, qp, p);
	if (code != FK_NAK_INVALID && code != FK_NAK_ACCESS)
		return;
	if (qp->kind == FK_DCR) { /* the DCT goes on: it is this sender's session that ends */
		fk_qp_error(nic, qp, false);
		return;
	}
	struct ibv_async_event event = {.event_type =
						code == FK_NAK_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR};

	event.element.qp = &qp->qp;
	fk_async(nic, qp->ctx, event);
	fk_qp_error(nic, qp, false);
}

static void add_job(struct fk_nic *nic, struct fk_qp *qp, const struct fk_job *job)
{
	struct fk_job *j = malloc(sizeof(*j));

	if (!j)
		abort();
	*j = *job;
	j->next = NULL;
	*qp->jobs_end = j;
	qp->jobs_end = &j->next;
	if (!qp->respond.at)
		fk_act_at(nic, &qp->respond, nic->cur);
}

static void answer(struct fk_nic *nic, struct fk_qp *qp, enum fk_ack_code code, uint32_t psn)
{
	if (code == FK_NAK_INVALID || code == FK_NAK_ACCESS)
		qp->refused = true;
	if (!qp->jobs) {
		acknowledge(nic, qp, code, psn);
		return;
	}
	struct fk_job job = {.kind = FK_JOB_ACK, .psn = psn, .code = code};

	add_job(nic, qp, &job);
}

/* read_turn sends the next packet of a READ's answer; true: it was the last. */
static bool read_turn(struct fk_nic *nic, struct fk_qp *qp, struct fk_job *j)
{
	uint64_t left = j->len - (uint64_t)j->done * qp->mtu;
	uint32_t len = left < qp->mtu ? (uint32_t)left : qp->mtu;
	uint64_t at = j->remote + (uint64_t)j->done * qp->mtu;
	uint8_t *host = len ? fk_remote(nic, qp, j->rkey, at, len, false) : NULL;

	if (len && !host) { /* deregistered meanwhile */
		j->psn = fk_psn_add(j->psn, j->done);
		j->kind = FK_JOB_ACK;
		j->code = FK_NAK_ACCESS;
		if (!j->again)
			qp->read_jobs--;
		return false;
	}
	struct fk_packet *p = fk_packet_new(qp, FK_RESPONSE, j->psn + j->done, len);

	if (len) {
		struct fk_access a = {.addr = (uintptr_t)host, .len = len, .remote = 1};

		memcpy(p->data, host, len);
		fk_log(nic, qp, &a);
	}
	j->done++;
	fk_transmit(nic, qp, p);
	return left <= qp->mtu;
}

void fk_respond_turn(struct fk_nic *nic, struct fk_qp *qp)
{
	struct fk_job *j = qp->jobs;

	if (!ready(qp) || !j || qp->egress_count >= FK_EGRESS)
		return; /* goes on when a packet has left */
	if (j->kind == FK_JOB_ACK || read_turn(nic, qp, j)) {
		struct fk_job job = *j;

		if (j->kind == FK_JOB_READ && !j->again)
			qp->read_jobs--;
		qp->jobs = j->next;
		if (!qp->jobs)
			qp->jobs_end = &qp->jobs;
		free(j);
		if (job.kind == FK_JOB_ACK)
			acknowledge(nic, qp, job.code, job.psn);
	}
	if (qp->jobs && !qp->respond.at)
		fk_act_at(nic, &qp->respond, nic->cur + nic->o.packet_time);
}

static uint32_t packets_of(const struct fk_qp *qp, uint32_t len)
{
	return len == 0 ? 1 : (len + qp->mtu - 1) / qp->mtu;
}

/* reachable looks at all that a message names, before its first byte moves. */
static bool reachable(struct fk_nic *nic, struct fk_qp *qp, const struct fk_packet *p, bool write)
{
	uint8_t *host = p->total ? fk_remote(nic, qp, p->rkey, p->remote, p->total, write) : NULL;

	return p->total == 0 || (host && fk_present(nic, qp, host, p->total));
}

static void start_read(struct fk_nic *nic, struct fk_qp *qp, const struct fk_packet *p, bool again)
{
	struct fk_job job = {
		.kind = FK_JOB_READ, .psn = p->psn, .remote = p->remote, .rkey = p->rkey, .len = p->total, .again = again};

	if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) ||
	    (!again && qp->read_jobs >= qp->attr.max_dest_rd_atomic)) {
		answer(nic, qp, FK_NAK_INVALID, p->psn);
		return;
	}
	if (!reachable(nic, qp, p, false)) {
		answer(nic, qp, FK_NAK_ACCESS, p->psn);
		return;
	}
	if (!again) {
		qp->expected = fk_psn_add(p->psn, packets_of(qp, p->total));
		qp->read_jobs++;
	}
	add_job(nic, qp, &job);
}

static void execute_write(struct fk_nic *nic, struct fk_qp *qp, const struct fk_packet *p)
{
	if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) || p->first == qp->writing ||
	    (p->last ? p->len > qp->mtu : p->len != qp->mtu)) {
		answer(nic, qp, FK_NAK_INVALID, p->psn);
		return;
	}
	if (p->first) {
		if (!reachable(nic, qp, p, true)) {
			answer(nic, qp, FK_NAK_ACCESS, p->psn);
			return;
		}
		qp->write_at = p->remote;
		qp->write_rkey = p->rkey;
		qp->write_left = qp->write_total = p->total;
	}
	if (p->last ? p->len != qp->write_left : p->len > qp->write_left) {
		answer(nic, qp, FK_NAK_INVALID, p->psn);
		return;
	}
	if (p->has_imm && qp->received == qp->posted) {
		answer(nic, qp, FK_NAK_NOT_READY, p->psn);
		qp->nak_sent = true; /* what came behind it is passed over in silence */
		return;
	}
	if (p->len > 0) {
		uint8_t *host = fk_remote(nic, qp, qp->write_rkey, qp->write_at, p->len, true);

		if (!host) { /* deregistered meanwhile */
			answer(nic, qp, FK_NAK_ACCESS, p->psn);
			return;
		}
		struct fk_access a = {.addr = (uintptr_t)host, .len = p->len, .write = 1, .remote = 1};

		memcpy(host, p->data, p->len);
		fk_log(nic, qp, &a);
		qp->write_bytes += p->len;
		nic->n.write_bytes += p->len;
	}
	qp->writing = !p->last;
	qp->write_at += p->len;
	qp->write_left -= p->len;
	qp->expected = fk_psn_add(p->psn, 1);
	if (p->has_imm) {
		struct ibv_wc wc = {.opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = qp->write_total,
				    .wc_flags = IBV_WC_WITH_IMM, .imm_data = p->imm};

		fk_receive(nic, qp, wc);
	}
	if (p->ack_request)
		answer(nic, qp, FK_ACK_OK, p->psn);
}

/* What was executed before is acknowledged again, a READ is answered again from its memory. */
static void duplicate(struct fk_nic *nic, struct fk_qp *qp, const struct fk_packet *p)
{
	nic->n.duplicates++;
	if (p->kind == FK_READ) {
		fk_purge_jobs(qp, p->psn, false);
		start_read(nic, qp, p, true);
	} else if (p->ack_request) {
		answer(nic, qp, FK_ACK_OK, fk_psn_add(qp->expected, FK_PSN_MASK));
	}
}

void fk_responder_request(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p)
{
	if (!ready(qp) || qp->refused) {
		nic->n.dropped++;
		return;
	}
	if (qp->state == IBV_QPS_RTR && !qp->established) {
		struct ibv_async_event event = {.event_type = IBV_EVENT_COMM_EST};

		event.element.qp = &qp->qp;
		qp->established = true;
		fk_async(nic, qp->ctx, event);
	}
	int32_t ahead = fk_psn_diff(p->psn, qp->expected);

	if (ahead < 0) {
		duplicate(nic, qp, p);
		return;
	}
	if (ahead > 0) {
		nic->n.dropped++;
		if (!qp->nak_sent)
			answer(nic, qp, FK_NAK_SEQUENCE, qp->expected);
		qp->nak_sent = true;
		return;
	}
	qp->nak_sent = false;
	if (p->kind == FK_WRITE) {
		execute_write(nic, qp, p);
		return;
	}
	if (qp->writing)
		answer(nic, qp, FK_NAK_INVALID, p->psn);
	else
		start_read(nic, qp, p, false);
}

#endif /* NV_HAVE_VERBS */
