//go:build cgo

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int fk_add_device(struct fk_nic *nic, const struct fk_device_options *options)
{
	fk_enter(nic);
	int index = nic->device_count < FK_MAX_DEVICES ? nic->device_count : -1;

	if (index >= 0) {
		struct fk_device *dev = fk_alloc(nic, sizeof(*dev));

		dev->o = *options;
		dev->nic = nic;
		dev->index = index;
		dev->up = true;
		dev->device.node_type = IBV_NODE_CA;
		dev->device.transport_type = IBV_TRANSPORT_IB;
		snprintf(dev->device.name, sizeof(dev->device.name), "%s", options->name);
		snprintf(dev->device.dev_name, sizeof(dev->device.dev_name), "fake%d", index);
		nic->devices[nic->device_count++] = dev;
	}
	fk_leave(nic);
	return index;
}

/* ---- Devices and contexts ---- */

static struct ibv_device **get_device_list(const struct nv_api *api, int *count)
{
	struct fk_nic *nic = (struct fk_nic *)api;

	fk_enter(nic);
	struct ibv_device **list = calloc((size_t)nic->device_count + 1, sizeof(*list));

	if (!list) {
		fk_leave(nic);
		errno = ENOMEM;
		return NULL;
	}
	for (int i = 0; i < nic->device_count; i++)
		list[i] = &nic->devices[i]->device;
	if (count)
		*count = nic->device_count;
	fk_leave(nic);
	return list;
}

static void free_device_list(struct ibv_device **list) { free(list); }

static const char *get_device_name(struct ibv_device *device) { return device->name; }

/* In network order, as the library has it. */
static __be64 get_device_guid(struct ibv_device *device)
{
	uint64_t guid = fk_device_of(device)->o.guid;
	uint8_t bytes[8];
	__be64 be;

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(guid >> (8 * (7 - i)));
	memcpy(&be, bytes, sizeof(be));
	return be;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct fk_device *dev = fk_device_of(device);
	struct fk_nic *nic = dev->nic;

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_OPEN_DEVICE, dev, 0);
	int fd = err || dev->fatal ? -1 : eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);

	if (fd < 0) {
		if (!err)
			err = dev->fatal ? ENODEV : errno;
		fk_leave(nic);
		errno = err;
		return NULL;
	}
	struct fk_ctx *ctx = fk_alloc(nic, sizeof(*ctx));

	ctx->dev = dev;
	ctx->ctx.device = device;
	ctx->ctx.async_fd = fd;
	ctx->ctx.cmd_fd = -1;
	ctx->ctx.num_comp_vectors = 1;
	pthread_mutex_init(&ctx->ctx.mutex, NULL);
	ctx->ctx.ops.poll_cq = nic->api.poll_cq;
	ctx->ctx.ops.req_notify_cq = nic->api.req_notify_cq;
	ctx->ctx.ops.post_send = nic->api.post_send;
	ctx->ctx.ops.post_recv = nic->api.post_recv;
	ctx->events_end = &ctx->events;
	ctx->next = nic->contexts;
	nic->contexts = ctx;
	nic->n.contexts++;
	fk_leave(nic);
	return &ctx->ctx;
}

static int close_device(struct ibv_context *context)
{
	struct fk_ctx *ctx = fk_ctx_of(context);
	struct fk_nic *nic = ctx->dev->nic;
	int rc = 0;

	fk_enter(nic);
	if (ctx->dead) {
		fk_blame(nic, "close_device: context closed before");
		rc = EINVAL;
	} else if (ctx->users > 0) {
		fk_blame(nic, "close_device: %llu objects still use the context", (unsigned long long)ctx->users);
		rc = EBUSY;
	} else {
		ctx->dead = true;
		fk_async_forget(ctx, NULL);
		close(context->async_fd);
		nic->n.contexts--;
		fk_changed(nic);
	}
	fk_leave(nic);
	return rc;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct fk_device *dev = fk_ctx_of(context)->dev;

	fk_enter(dev->nic);
	int rc = dev->fatal ? EIO : 0;

	if (rc == 0) {
		memset(attr, 0, sizeof(*attr));
		snprintf(attr->fw_ver, sizeof(attr->fw_ver), "fake.1");
		attr->node_guid = get_device_guid(context->device);
		attr->sys_image_guid = attr->node_guid;
		attr->max_mr_size = dev->o.max_mr_bytes;
		attr->page_size_cap = 0xfffff000;
		attr->max_qp = dev->o.max_qp;
		attr->max_qp_wr = dev->o.max_wr;
		attr->max_sge = 1;
		attr->max_sge_rd = 1;
		attr->max_cq = dev->o.max_cq;
		attr->max_cqe = dev->o.max_cqe;
		attr->max_mr = dev->o.max_mr;
		attr->max_pd = 1 << 16;
		attr->max_qp_rd_atom = dev->o.max_rd;
		attr->max_qp_init_rd_atom = dev->o.max_rd;
		attr->max_res_rd_atom = dev->o.max_rd * dev->o.max_qp;
		attr->atomic_cap = IBV_ATOMIC_NONE;
		attr->max_pkeys = 1;
		attr->phys_port_cnt = 1;
	}
	fk_leave(dev->nic);
	return rc;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	struct fk_device *dev = fk_ctx_of(context)->dev;

	if (port != 1)
		return EINVAL;
	fk_enter(dev->nic);
	int rc = fk_call_rule(dev->nic, FK_AT_QUERY_PORT, dev, 0);

	if (rc == 0 && dev->fatal)
		rc = EIO;
	if (rc == 0) {
		memset(attr, 0, sizeof(*attr));
		attr->state = dev->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
		attr->max_mtu = IBV_MTU_4096;
		attr->active_mtu = (enum ibv_mtu)dev->o.mtu;
		attr->gid_tbl_len = FK_GIDS;
		attr->max_msg_sz = dev->o.max_message;
		attr->pkey_tbl_len = 1;
		attr->lid = (uint16_t)dev->o.lid;
		attr->phys_state = dev->up ? 5 : 3;
		attr->link_layer = dev->o.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	}
	fk_leave(dev->nic);
	return rc;
}

static int query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	struct fk_device *dev = fk_ctx_of(context)->dev;

	if (port != 1 || index < 0 || index >= FK_GIDS)
		return EINVAL;
	fk_enter(dev->nic);
	dev->nic->n.gids++;
	memcpy(gid->raw, dev->o.gids[index].raw, sizeof(gid->raw));
	fk_leave(dev->nic);
	return 0;
}

/* An entry that is not set has no type: the files of sysfs that tell it cannot be read then. */
static int gid_info(struct ibv_context *context, uint8_t port, int index, int *type, char netdev[NV_NETDEV_BYTES])
{
	static const uint8_t zero[16];
	struct fk_device *dev = fk_ctx_of(context)->dev;

	if (port != 1 || index < 0 || index >= FK_GIDS)
		return EINVAL;
	fk_enter(dev->nic);
	const struct fk_gid *g = &dev->o.gids[index];
	int rc = memcmp(g->raw, zero, sizeof(zero)) == 0 ? EINVAL : 0;

	if (rc == 0) {
		*type = g->type;
		snprintf(netdev, NV_NETDEV_BYTES, "%s", g->netdev);
	}
	fk_leave(dev->nic);
	return rc;
}

static int numa_node(struct ibv_device *device) { return fk_device_of(device)->o.numa; }

/* fk_find_device is the adapter that has a packet's destination, or NULL. */
struct fk_device *fk_find_device(struct fk_nic *nic, const struct fk_packet *p)
{
	for (int i = 0; i < nic->device_count; i++) {
		struct fk_device *dev = nic->devices[i];

		if (dev->o.infiniband != p->from->o.infiniband || !dev->up || dev->fatal)
			continue;
		if (dev->o.infiniband && dev->o.lid == p->dlid)
			return dev;
		for (int g = 0; !dev->o.infiniband && g < FK_GIDS; g++)
			if (dev->o.gids[g].type == p->gid_type &&
			    memcmp(dev->o.gids[g].raw, p->dgid.raw, sizeof(p->dgid.raw)) == 0)
				return dev;
	}
	return NULL;
}

/* ---- Asynchronous events ---- */

void fk_async(struct fk_nic *nic, struct fk_ctx *ctx, struct ibv_async_event event)
{
	uint64_t one = 1;

	if (ctx->dead)
		return;
	struct fk_event *e = calloc(1, sizeof(*e));

	if (!e)
		abort();
	e->event = event;
	*ctx->events_end = e;
	ctx->events_end = &e->next;
	if (write(ctx->ctx.async_fd, &one, sizeof(one)) != sizeof(one))
		fk_blame(nic, "async event lost: errno %d", errno);
	fk_changed(nic);
}

/* fk_async_forget drops the events of an object that is destroyed and that the program did not take; NULL: all. */
void fk_async_forget(struct fk_ctx *ctx, void *element)
{
	struct fk_event **at = &ctx->events;

	while (*at) {
		struct fk_event *e = *at;
		bool port = e->event.event_type == IBV_EVENT_PORT_ACTIVE || e->event.event_type == IBV_EVENT_PORT_ERR ||
			    e->event.event_type == IBV_EVENT_GID_CHANGE ||
			    e->event.event_type == IBV_EVENT_DEVICE_FATAL;

		if (!element || (!port && (void *)e->event.element.qp == element)) {
			*at = e->next;
			free(e);
		} else {
			at = &e->next;
		}
	}
	ctx->events_end = at;
}

static uint64_t *unacked_of(struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		return &((struct fk_cq *)event->element.cq)->unacked_async;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
		return &((struct fk_qp *)event->element.qp)->unacked;
	default:
		return NULL;
	}
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct fk_ctx *ctx = fk_ctx_of(context);
	struct fk_nic *nic = ctx->dev->nic;
	uint64_t one;

	if (read(context->async_fd, &one, sizeof(one)) != sizeof(one))
		return -1;
	fk_enter(nic);
	struct fk_event *e = ctx->events;

	if (!e) { /* its object was destroyed meanwhile */
		fk_leave(nic);
		errno = EAGAIN;
		return -1;
	}
	ctx->events = e->next;
	if (!e->next)
		ctx->events_end = &ctx->events;
	*event = e->event;
	free(e);
	uint64_t *unacked = unacked_of(event);

	if (unacked)
		(*unacked)++;
	fk_leave(nic);
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	uint64_t *unacked = unacked_of(event);

	if (!unacked)
		return;
	struct fk_nic *nic = event->event_type == IBV_EVENT_CQ_ERR ? fk_nic_of(event->element.cq->context)
								   : fk_nic_of(event->element.qp->context);

	fk_enter(nic);
	if (*unacked == 0)
		fk_blame(nic, "ack_async_event: more events acknowledged than taken");
	else
		--*unacked;
	fk_changed(nic);
	fk_leave(nic);
}

static void port_event(struct fk_nic *nic, struct fk_device *dev, enum ibv_event_type type)
{
	struct ibv_async_event event = {.event_type = type};

	event.element.port_num = 1;
	for (struct fk_ctx *c = nic->contexts; c; c = c->next)
		if (c->dev == dev)
			fk_async(nic, c, event);
}

void fk_set_port(struct fk_nic *nic, int device, int up)
{
	fk_enter(nic);
	struct fk_device *dev = nic->devices[device];

	if (dev->up != (up != 0)) {
		dev->up = up != 0;
		port_event(nic, dev, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
	}
	fk_leave(nic);
}

void fk_set_gid(struct fk_nic *nic, int device, int index, const struct fk_gid *gid)
{
	fk_enter(nic);
	struct fk_device *dev = nic->devices[device];

	dev->o.gids[index] = *gid;
	/* An entry of the table belongs to the port's network device, that of the first entry. */
	if (gid->netdev[0])
		memcpy(dev->o.gids[index].netdev, dev->o.gids[0].netdev, sizeof(gid->netdev));
	port_event(nic, dev, IBV_EVENT_GID_CHANGE);
	fk_leave(nic);
}

/* A lost device moves nothing, completes nothing and refuses every call but those that destroy. */
void fk_set_fatal(struct fk_nic *nic, int device)
{
	fk_enter(nic);
	struct fk_device *dev = nic->devices[device];

	if (!dev->fatal) {
		dev->fatal = true;
		dev->up = false;
		for (struct fk_qp *qp = nic->qps; qp; qp = qp->next) {
			if (qp->dev != dev || qp->dead)
				continue;
			fk_act_cancel(nic, &qp->send);
			fk_act_cancel(nic, &qp->timer);
			fk_act_cancel(nic, &qp->respond);
			fk_act_cancel(nic, &qp->flush);
		}
		port_event(nic, dev, IBV_EVENT_DEVICE_FATAL);
	}
	fk_leave(nic);
}

void fk_fill_device_calls(struct nv_api *api)
{
	api->get_device_list = get_device_list;
	api->free_device_list = free_device_list;
	api->get_device_name = get_device_name;
	api->get_device_guid = get_device_guid;
	api->open_device = open_device;
	api->close_device = close_device;
	api->query_device = query_device;
	api->query_port = query_port;
	api->query_gid = query_gid;
	api->gid_info = gid_info;
	api->numa_node = numa_node;
	api->get_async_event = get_async_event;
	api->ack_async_event = ack_async_event;
}

#endif /* NV_HAVE_VERBS */
