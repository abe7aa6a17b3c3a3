//go:build cgo

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct fk_nic *nic_of(struct fk_cq *cq) { return cq->ctx->dev->nic; }

/* ---- Completion channels ---- */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct fk_ctx *ctx = fk_ctx_of(context);
	struct fk_nic *nic = ctx->dev->nic;
	struct fk_channel *ch = NULL;

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_CREATE_CHANNEL, ctx->dev, 0);

	if (!err && ctx->dev->fatal)
		err = EIO;
	int fd = err ? -1 : eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);

	if (!err && fd < 0)
		err = errno;
	if (!err) {
		ch = fk_alloc(nic, sizeof(*ch));
		ch->ctx = ctx;
		ch->channel.context = context;
		ch->channel.fd = fd;
		ctx->users++;
		nic->n.channels++;
	}
	fk_leave(nic);
	errno = err;
	return ch ? &ch->channel : NULL;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct fk_channel *ch = (struct fk_channel *)channel;
	struct fk_nic *nic = ch->ctx->dev->nic;
	int rc = 0;

	fk_enter(nic);
	if (ch->dead) {
		fk_blame(nic, "destroy_comp_channel: destroyed before");
		rc = EINVAL;
	} else if (ch->users > 0) {
		fk_blame(nic, "destroy_comp_channel: %llu completion queues still use it",
			 (unsigned long long)ch->users);
		rc = EBUSY;
	} else {
		ch->dead = true;
		close(channel->fd);
		free(ch->queue);
		ch->queue = NULL;
		ch->ctx->users--;
		nic->n.channels--;
		fk_changed(nic);
	}
	fk_leave(nic);
	return rc;
}

static void channel_add(struct fk_nic *nic, struct fk_channel *ch, struct fk_cq *cq)
{
	uint64_t one = 1;

	if (ch->count == ch->room) {
		size_t room = ch->room ? 2 * ch->room : 16;
		struct fk_cq **queue = calloc(room, sizeof(*queue));

		if (!queue)
			abort();
		for (size_t i = 0; i < ch->count; i++)
			queue[i] = ch->queue[(ch->head + i) % ch->room];
		free(ch->queue);
		ch->queue = queue;
		ch->room = room;
		ch->head = 0;
	}
	ch->queue[(ch->head + ch->count++) % ch->room] = cq;
	if (write(ch->channel.fd, &one, sizeof(one)) != sizeof(one))
		fk_blame(nic, "completion event lost: errno %d", errno);
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	struct fk_channel *ch = (struct fk_channel *)channel;
	struct fk_nic *nic = ch->ctx->dev->nic;
	uint64_t one;

	if (read(channel->fd, &one, sizeof(one)) != sizeof(one))
		return -1;
	fk_enter(nic);
	if (ch->count == 0) { /* its queue was destroyed meanwhile */
		fk_leave(nic);
		errno = EAGAIN;
		return -1;
	}
	struct fk_cq *first = ch->queue[ch->head];

	ch->head = (ch->head + 1) % ch->room;
	ch->count--;
	first->unacked++;
	*cq = &first->cq;
	*context = first->cq.cq_context;
	fk_leave(nic);
	return 0;
}

static void ack_cq_events(struct ibv_cq *ibcq, unsigned int count)
{
	struct fk_cq *cq = (struct fk_cq *)ibcq;
	struct fk_nic *nic = nic_of(cq);

	fk_enter(nic);
	if (cq->unacked < count) {
		fk_blame(nic, "ack_cq_events: %u acknowledged of %llu taken", count, (unsigned long long)cq->unacked);
		cq->unacked = 0;
	} else {
		cq->unacked -= count;
	}
	fk_changed(nic);
	fk_leave(nic);
}

/* ---- Completion queues ---- */

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel, int vector)
{
	struct fk_ctx *ctx = fk_ctx_of(context);
	struct fk_channel *ch = (struct fk_channel *)channel;
	struct fk_device *dev = ctx->dev;
	struct fk_nic *nic = dev->nic;
	struct fk_cq *cq = NULL;

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_CREATE_CQ, dev, 0);

	if (!err && ((ch && (ch->dead || ch->ctx != ctx)) || ctx->dead)) {
		fk_blame(nic, "create_cq: channel or context is not there");
		err = EINVAL;
	}
	if (!err && dev->fatal)
		err = EIO;
	if (!err && (cqe < 1 || cqe > dev->o.max_cqe || vector != 0))
		err = EINVAL;
	if (!err && dev->cqs >= (uint64_t)dev->o.max_cq)
		err = ENOMEM;
	if (!err) {
		cq = fk_alloc(nic, sizeof(*cq));
		cq->ring = calloc((size_t)cqe, sizeof(*cq->ring));
		if (!cq->ring)
			abort();
		cq->ctx = ctx;
		cq->depth = (uint32_t)cqe;
		cq->cq.context = context;
		cq->cq.channel = channel;
		cq->cq.cq_context = cq_context;
		cq->cq.cqe = cqe;
		pthread_mutex_init(&cq->cq.mutex, NULL);
		pthread_cond_init(&cq->cq.cond, NULL);
		if (ch)
			ch->users++;
		ctx->users++;
		dev->cqs++;
		nic->n.cqs++;
	}
	fk_leave(nic);
	errno = err;
	return cq ? &cq->cq : NULL;
}

static int destroy_cq(struct ibv_cq *ibcq)
{
	struct fk_cq *cq = (struct fk_cq *)ibcq;
	struct fk_channel *ch = (struct fk_channel *)ibcq->channel;
	struct fk_nic *nic = nic_of(cq);

	fk_enter(nic);
	fk_await_acks(nic, &cq->unacked, "destroy_cq");
	fk_await_acks(nic, &cq->unacked_async, "destroy_cq");
	if (cq->dead) {
		fk_blame(nic, "destroy_cq: destroyed before");
		fk_leave(nic);
		return EINVAL;
	}
	if (cq->users > 0) {
		fk_blame(nic, "destroy_cq: %llu queue pairs still use it", (unsigned long long)cq->users);
		fk_leave(nic);
		return EBUSY;
	}
	cq->dead = true;
	if (ch) {
		size_t kept = 0;

		for (size_t i = 0; i < ch->count; i++) {
			struct fk_cq *q = ch->queue[(ch->head + i) % ch->room];

			if (q != cq)
				ch->queue[(ch->head + kept++) % ch->room] = q;
		}
		ch->count = kept;
		ch->users--;
	}
	fk_async_forget(cq->ctx, cq);
	free(cq->ring);
	cq->ring = NULL;
	cq->count = 0;
	cq->ctx->users--;
	cq->ctx->dev->cqs--;
	nic->n.cqs--;
	fk_changed(nic);
	fk_leave(nic);
	return 0;
}

/* An event comes for what is added from now on, not for what is in the queue. */
static int req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct fk_cq *cq = (struct fk_cq *)ibcq;
	struct fk_nic *nic = nic_of(cq);

	fk_enter(nic);
	int rc = fk_call_rule(nic, FK_AT_NOTIFY, cq->ctx->dev, 0);

	if (!rc && cq->dead) {
		fk_blame(nic, "req_notify_cq: completion queue is destroyed");
		rc = EINVAL;
	}
	if (!rc) {
		/* Armed for all stays so: asking for less does not take back what was asked. */
		cq->armed_solicited = solicited_only && (!cq->armed || cq->armed_solicited);
		cq->armed = true;
	}
	fk_leave(nic);
	return rc;
}

static int poll_cq(struct ibv_cq *ibcq, int count, struct ibv_wc *wc)
{
	struct fk_cq *cq = (struct fk_cq *)ibcq;
	struct fk_nic *nic = nic_of(cq);
	int n = 0;

	fk_enter(nic);
	nic->n.polls++;
	int err = fk_call_rule(nic, FK_AT_POLL, cq->ctx->dev, 0);

	if (!err && cq->dead) {
		fk_blame(nic, "poll_cq: completion queue is destroyed");
		err = EINVAL;
	}
	if (!err && cq->broken)
		err = EIO;
	while (!err && n < count && cq->count > 0) {
		struct fk_cqe *e = &cq->ring[cq->head];

		wc[n++] = e->wc;
		cq->head = (cq->head + 1) % cq->depth;
		cq->count--;
		if (e->qp && !e->qp->dead)
			fk_release_work(nic, e->qp, e->upto);
	}
	if (n > 0)
		fk_changed(nic);
	fk_leave(nic);
	return err ? -err : n;
}

/* overrun puts a queue into its error state, and all that complete into it. */
static void overrun(struct fk_nic *nic, struct fk_cq *cq)
{
	struct ibv_async_event event = {.event_type = IBV_EVENT_CQ_ERR};

	fk_blame(nic, "completion queue of depth %u overran", cq->depth);
	cq->broken = true;
	event.element.cq = &cq->cq;
	fk_async(nic, cq->ctx, event);
	for (struct fk_qp *qp = nic->qps; qp; qp = qp->next)
		if (!qp->dead && (qp->cq == cq || qp->qp.recv_cq == &cq->cq) && qp->state != IBV_QPS_RESET)
			fk_qp_error(nic, qp, false);
}

void fk_cq_add(struct fk_nic *nic, struct fk_cq *cq, const struct fk_cqe *cqe)
{
	if (cq->dead || cq->broken)
		return;
	if (cq->count == cq->depth) {
		overrun(nic, cq);
		return;
	}
	cq->ring[(cq->head + cq->count++) % cq->depth] = *cqe;
	nic->n.completions++;
	if (cq->armed && (!cq->armed_solicited || cqe->wc.status != IBV_WC_SUCCESS)) {
		cq->armed = false;
		if (cq->cq.channel)
			channel_add(nic, (struct fk_channel *)cq->cq.channel, cq);
	}
	fk_changed(nic);
}

/* fk_cq_forget drops the completions of a queue pair that is reset or destroyed. */
void fk_cq_forget(struct fk_cq *cq, struct fk_qp *qp)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < cq->count; i++) {
		struct fk_cqe e = cq->ring[(cq->head + i) % cq->depth];

		if (e.qp != qp)
			cq->ring[(cq->head + kept++) % cq->depth] = e;
	}
	cq->count = kept;
}

void fk_fill_cq_calls(struct nv_api *api)
{
	api->create_comp_channel = create_comp_channel;
	api->destroy_comp_channel = destroy_comp_channel;
	api->create_cq = create_cq;
	api->destroy_cq = destroy_cq;
	api->req_notify_cq = req_notify_cq;
	api->get_cq_event = get_cq_event;
	api->ack_cq_events = ack_cq_events;
	api->poll_cq = poll_cq;
}

#endif /* NV_HAVE_VERBS */
