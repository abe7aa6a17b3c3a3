//go:build cgo

/*
 * The network: packets of one queue pair arrive in the order in which they left, those of different ones in any.
 * What left is no more its sender's: it arrives also when the sender's queue pair is gone.
 */

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <stdlib.h>
#include <string.h>

struct fk_packet *fk_packet_new(struct fk_qp *qp, enum fk_packet_kind kind, uint32_t psn, uint32_t len)
{
	struct fk_packet *p = malloc(sizeof(*p) + len);

	if (!p)
		abort();
	memset(p, 0, sizeof(*p));
	const struct fk_gid *source = &qp->dev->o.gids[qp->attr.ah_attr.grh.sgid_index];

	p->kind = kind;
	p->from = qp->dev;
	memcpy(p->sgid.raw, source->raw, sizeof(p->sgid.raw));
	p->dgid = qp->attr.ah_attr.grh.dgid;
	p->gid_type = source->type;
	p->dlid = qp->attr.ah_attr.dlid;
	p->slid = (uint16_t)qp->dev->o.lid;
	p->sqpn = qp->qp.qp_num;
	p->dqpn = qp->attr.dest_qp_num;
	p->psn = psn & FK_PSN_MASK;
	p->session = qp->session;
	p->session_psn = qp->session_psn;
	p->key = qp->key;
	p->len = len;
	p->act.kind = FK_ACT_LOOSE;
	p->act.owner = p;
	return p;
}

static enum fk_point point_of(enum fk_packet_kind kind)
{
	switch (kind) {
	case FK_WRITE:
		return FK_AT_WRITE_PACKET;
	case FK_READ:
		return FK_AT_READ_REQUEST;
	case FK_RESPONSE:
		return FK_AT_READ_RESPONSE;
	default:
		return FK_AT_ACK;
	}
}

static void append(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p)
{
	uint64_t due = nic->cur + nic->o.latency + (nic->o.jitter ? fk_random(nic) % nic->o.jitter : 0);

	p->due = due;
	p->next = NULL;
	*qp->egress_end = p;
	qp->egress_end = &p->next;
	qp->egress_count++;
	if (!qp->wire.at)
		fk_act_at(nic, &qp->wire, due);
}

void fk_transmit(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p)
{
	nic->n.packets++;
	if (!qp->dev->up || qp->dev->fatal) {
		nic->n.dropped++;
		free(p);
		return;
	}
	struct fk_rule *rule = fk_match(nic, point_of(p->kind), qp->dev, qp->qp.qp_num, 0);

	if (!rule) {
		append(nic, qp, p);
		return;
	}
	switch (rule->o.effect) {
	case FK_HOLD:
		*rule->held_end = p;
		rule->held_end = &p->next;
		break;
	case FK_TWICE: {
		struct fk_packet *twin = fk_packet_new(qp, p->kind, p->psn, p->len);

		memcpy(twin, p, sizeof(*p) + p->len);
		twin->act.owner = twin;
		append(nic, qp, p);
		append(nic, qp, twin);
		break;
	}
	default:
		nic->n.dropped++;
		free(p);
	}
}

/* fk_wire_turn lets the first packet of a queue pair arrive. */
void fk_wire_turn(struct fk_nic *nic, struct fk_qp *qp)
{
	struct fk_packet *p = qp->egress;

	if (!p)
		return;
	qp->egress = p->next;
	if (!qp->egress)
		qp->egress_end = &qp->egress;
	qp->egress_count--;
	if (qp->egress)
		fk_act_at(nic, &qp->wire, qp->egress->due > nic->cur ? qp->egress->due : nic->cur);
	if (qp->jobs && !qp->respond.at && !qp->dead)
		fk_act_at(nic, &qp->respond, nic->cur);
	fk_deliver(nic, p);
}

void fk_release_packets(struct fk_nic *nic, struct fk_rule *rule)
{
	uint64_t due = nic->cur;

	for (struct fk_packet *p = rule->held, *next; p; p = next) {
		next = p->next;
		p->next = NULL;
		fk_act_at(nic, &p->act, due++); /* one after another, as they came */
	}
	rule->held = NULL;
	rule->held_end = &rule->held;
}

/*
 * fk_deliver gives a packet to the queue pair that it is addressed to. As on a real network that is found by number
 * alone; the queue pair compares the sender's address with its peer's, and the PSN with what it expects. The number
 * of the sending queue pair is in packets of dynamic connections only.
 */
void fk_deliver(struct fk_nic *nic, struct fk_packet *p)
{
	struct fk_device *dev = fk_find_device(nic, p);
	struct fk_qp *qp = dev ? fk_find_qp(nic, dev, p->dqpn) : NULL;
	bool request = p->kind == FK_WRITE || p->kind == FK_READ;

	if (qp && qp->kind == FK_DCT)
		qp = request ? fk_dc_end(nic, qp, p) : NULL;
	else if (qp && (p->session != qp->session || (qp->kind == FK_DCI && request)))
		qp = NULL;
	bool peer = qp && (dev->o.infiniband ? qp->attr.ah_attr.dlid == p->slid
					     : memcmp(qp->attr.ah_attr.grh.dgid.raw, p->sgid.raw, 16) == 0);

	if (!peer) {
		nic->n.dropped++;
		free(p);
		return;
	}
	switch (p->kind) {
	case FK_WRITE:
	case FK_READ:
		fk_responder_request(nic, qp, p);
		break;
	case FK_RESPONSE:
		fk_requester_response(nic, qp, p);
		break;
	case FK_ACKNOWLEDGE:
		fk_requester_ack(nic, qp, p);
		break;
	}
	free(p);
}

#endif /* NV_HAVE_VERBS */
