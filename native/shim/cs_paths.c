/* The queue pairs of an rc session: docs/wire.md §10.2 and §10.5. */
#define _GNU_SOURCE
#include "cs_rc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
	CQ_DEPTH = 16, /* nothing is ever posted here; drivers refuse queues of no depth */
	QP_DEPTH = 1,
	MOST_READS = 255,  /* in a byte */
	HOP_LIMIT = 64,    /* packets cross routers */
	RNR_TIMER = 12,    /* never used: nothing is received */
	PSN_BITS = 24,
	LEAST_MTU = 1,     /* numbers of MTUs: 256 */
	MOST_MTU = 5,      /* and 4096 bytes */
	STEADY_MS = 10000, /* a path that lived so long failed for a reason of the moment, and is offered again at once */
	FIRST_MS = 100,    /* bounds of the wait before what failed again is tried again: an adapter takes up to 2 s to */
	MOST_MS = 5000     /* find that a peer is silent, and each failure costs its transfers that time */
};

static int32_t mtu_bytes(uint8_t number)
{
	return 128 << number;
}

static uint8_t mtu_number(int32_t bytes)
{
	uint8_t n = LEAST_MTU;

	while (n < MOST_MTU && mtu_bytes((uint8_t)(n + 1)) <= bytes)
		n++;
	return n;
}

static uint32_t number(const uint8_t *from)
{
	return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static void put_number(uint8_t *to, uint32_t n)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(n >> (8 * i));
}

static struct cs_delay *delay_of(struct cs_rc *rc, uint8_t rail, uint32_t port)
{
	struct cs_delay *oldest = rc->delays;

	for (uint32_t i = 0; i < rc->delay_count; i++) {
		struct cs_delay *d = &rc->delays[i];

		if (d->rail == rail && d->port == port)
			return d;
		if (d->until < oldest->until)
			oldest = d;
	}
	struct cs_delay *d = rc->delay_count < CS_MAX_DELAYS ? &rc->delays[rc->delay_count++] : oldest;

	*d = (struct cs_delay){.rail = rail, .port = port};
	return d;
}

void cs_rc_failed(struct cs_rc *rc, uint8_t rail, uint32_t port, int64_t since)
{
	struct cs_delay *d = delay_of(rc, rail, port);
	int64_t now = cs_now();

	if (since > 0 && now - since > STEADY_MS)
		d->wait = 0;
	d->until = now + d->wait;
	d->wait = d->wait ? 2 * d->wait : FIRST_MS;
	if (d->wait > MOST_MS)
		d->wait = MOST_MS;
}

int64_t cs_rc_due(const struct cs_rc *rc, uint8_t rail, uint32_t port)
{
	for (uint32_t i = 0; i < rc->delay_count; i++)
		if (rc->delays[i].rail == rail && rc->delays[i].port == port)
			return rc->delays[i].until > 0 ? rc->delays[i].until : 1;
	return 0;
}

static int refuse(struct cs_rc *rc, struct nv_status status)
{
	return cs_fail(&rc->refusal, "%s: errno %d%s", status.call, status.err,
		       status.err == 12 ? " (locked memory: see ulimit -l)" : "");
}

/* adapter opens the port's adapter for the session, or shares it; -1: it cannot be had. */
static int adapter(struct cs_rc *rc, const struct cs_port *p, uint32_t *on)
{
	for (*on = 0; *on < rc->adapter_count; ++*on)
		if (strcmp(rc->adapters[*on].name, p->device) == 0)
			return 0;
	struct cs_adapter *a = &rc->adapters[*on]; /* the caller has seen that there is room */
	struct nv_device_info info;
	struct nv_status status = nv_device_open(rc->lib, p->device, &a->device);

	if (status.err)
		return refuse(rc, status);
	status = nv_pd_open(a->device, &a->pd);
	if (!status.err) {
		status = nv_cq_open(a->device, CQ_DEPTH, &a->cq);
		if (status.err)
			nv_pd_close(a->pd);
	}
	if (status.err) {
		nv_device_close(a->device);
		return refuse(rc, status);
	}
	nv_device_info(a->device, &info);
	a->reads = (uint8_t)(info.max_reads < 1 ? 1 : info.max_reads > MOST_READS ? MOST_READS : info.max_reads);
	memcpy(a->name, p->device, sizeof a->name);
	rc->adapter_count++;
	return 0;
}

static struct nv_path own_path(const struct cs_port *port, const struct cs_path *p)
{
	return (struct nv_path){
		.psn = p->psn,
		.port = port->number,
		.gid_index = port->gid_index,
		.access = NV_REMOTE_READ | NV_REMOTE_WRITE,
		.hop_limit = HOP_LIMIT,
		.min_rnr_timer = RNR_TIMER,
	};
}

/* bury ends a queue pair. It is destroyed: some drivers let a packet that they are just copying finish after it has
 * changed its state (soft-RoCE), and none after that. -1: it does not end, and so the session does. */
static int bury(struct cs_link *l, struct cs_path *p)
{
	struct cs_session *s = l->session;
	int failed = nv_qp_to_error(p->qp).err, closed = nv_qp_close(p->qp).err;

	p->qp = NULL;
	p->state = CS_PATH_FREE;
	if (!failed || !closed)
		return 0;
	pthread_mutex_lock(&s->mu);
	s->rc->stuck++;
	pthread_mutex_unlock(&s->mu);
	cs_end(s, "an adapter does not let go of a queue pair");
	return -1;
}

/* prepare makes a queue pair that can be connected. */
static int prepare(struct cs_rc *rc, struct cs_path *p)
{
	const struct cs_port *port = &rc->ports[p->port];
	struct cs_adapter *a;
	uint32_t random;

	if (getrandom(&random, sizeof random, 0) != sizeof random)
		return cs_fail(&rc->refusal, "the kernel gave no random bytes");
	p->psn = random >> (32 - PSN_BITS);
	if (adapter(rc, port, &p->on))
		return -1;
	a = &rc->adapters[p->on];
	struct nv_status status = nv_qp_open(a->pd, a->cq, (struct nv_depths){.works = QP_DEPTH}, &p->qp);

	if (status.err) {
		p->qp = NULL;
		return refuse(rc, status);
	}
	struct nv_path own = own_path(port, p);

	status = nv_qp_to_init(p->qp, &own);
	return status.err ? refuse(rc, status) : 0;
}

int cs_rc_offer(struct cs_link *l, uint32_t rail, uint32_t port)
{
	struct cs_rc *rc = l->session->rc;
	struct cs_path *p = rc->paths;
	uint8_t body[CS_PATH_BYTES] = {0};

	while (p->state != CS_PATH_FREE) /* the caller has seen that there is one */
		p++;
	*p = (struct cs_path){.rail = rc->rails[rail].index, .port = port};
	if (prepare(rc, p)) {
		cs_rc_failed(rc, p->rail, port, 0);
		return p->qp ? bury(l, p) : 0;
	}
	const struct cs_port *own = &rc->ports[port];

	p->state = CS_PATH_OFFERED;
	p->id = ++rc->last;
	p->since = cs_now();
	put_number(body, nv_qp_number(p->qp));
	put_number(body + 4, p->psn);
	memcpy(body + 8, own->gid, sizeof own->gid);
	body[24] = (uint8_t)own->lid;
	body[25] = (uint8_t)(own->lid >> 8);
	body[26] = mtu_number(own->mtu);
	body[27] = (uint8_t)p->on;
	body[28] = rc->adapters[p->on].reads;
	return cs_write(l, &(struct cs_frame){.type = CS_PATH, .id = p->id, .region = p->rail, .length = sizeof body}, body);
}

/* read_peer takes the server's end; -1: it is none. */
static int read_peer(const struct cs_rc *rc, const struct cs_path *p, const uint8_t body[CS_PATH_BYTES],
		     struct nv_path *path)
{
	static const uint8_t zero[CS_PATH_BYTES - 29];
	uint32_t qpn = number(body), psn = number(body + 4);
	int32_t own = rc->ports[p->port].mtu;

	if (memcmp(body + 29, zero, sizeof zero) != 0 || qpn < 2 || qpn >= (1U << PSN_BITS) - 1 || psn >= 1U << PSN_BITS ||
	    body[26] < LEAST_MTU || body[26] > MOST_MTU || body[27] != p->on || body[28] == 0 ||
	    body[28] > rc->adapters[p->on].reads)
		return -1;
	path->peer_qpn = qpn;
	path->peer_psn = psn;
	memcpy(path->peer_gid, body + 8, sizeof path->peer_gid);
	path->peer_lid = (uint16_t)(body[24] | body[25] << 8);
	path->mtu = mtu_bytes(body[26]) < own ? mtu_bytes(body[26]) : own;
	path->reads = body[28];
	return 0;
}

int cs_rc_accept(struct cs_link *l, struct cs_path *p, const uint8_t body[CS_PATH_BYTES])
{
	struct cs_rc *rc = l->session->rc;
	struct nv_path path = own_path(&rc->ports[p->port], p);
	struct nv_status status = {0};

	if (read_peer(rc, p, body, &path))
		return cs_broke(l->session, "a path that was not offered so");
	if (!p->doomed) {
		status = nv_qp_to_receive(p->qp, &path);
		if (status.err)
			refuse(rc, status);
	}
	if (p->doomed || status.err) {
		p->since = 0;
		return cs_rc_retire(l, p, 1);
	}
	p->state = CS_PATH_IS_UP;
	return cs_write(l, &(struct cs_frame){.type = CS_PATH_UP, .id = p->id}, NULL);
}

int cs_rc_retire(struct cs_link *l, struct cs_path *p, int told)
{
	cs_rc_failed(l->session->rc, p->rail, p->port, p->since);
	if (bury(l, p))
		return -1;
	return told ? cs_write(l, &(struct cs_frame){.type = CS_FENCED, .id = p->id}, NULL) : 0;
}
