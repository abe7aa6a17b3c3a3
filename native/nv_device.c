/* Devices, their ports, GIDs and events, and memory. */
#define _GNU_SOURCE

#include "nv_inner.h"

#if NV_HAVE_VERBS

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct nv_status list_devices(struct nv_lib *lib, struct ibv_device ***list, int *count)
{
	int most = 0;

	*count = 0;
	errno = 0;
	*list = lib->api->get_device_list(lib->api, &most);
	if (*list) {
		/* The list ends by NULL, too. */
		while (*count < most && (*list)[*count])
			++*count;
		return nv_ok();
	}
	/* A kernel without the RDMA modules has no directory of devices, or does not know the interface. */
	if (errno == ENOENT || errno == ENOSYS || errno == 0)
		return nv_ok();
	return nv_failed("ibv_get_device_list");
}

static struct nv_status query_limits(const struct nv_api *api, struct ibv_context *ctx, struct nv_device_info *info)
{
	struct ibv_device_attr attr;
	struct nv_status status;

	memset(&attr, 0, sizeof(attr));
	errno = 0;
	status = nv_result("ibv_query_device", api->query_device(ctx, &attr));
	if (status.err)
		return status;
	snprintf(info->firmware, sizeof(info->firmware), "%.*s", (int)sizeof(attr.fw_ver), attr.fw_ver);
	info->max_mr_bytes = attr.max_mr_size;
	info->ports = attr.phys_port_cnt;
	info->max_qp = attr.max_qp;
	info->max_cq = attr.max_cq;
	info->max_cq_depth = attr.max_cqe;
	info->max_qp_depth = attr.max_qp_wr;
	info->max_mr = attr.max_mr;
	info->max_reads = attr.max_qp_rd_atom;
	info->max_issued = attr.max_qp_init_rd_atom;
	return nv_ok();
}

static void name_device(const struct nv_api *api, struct ibv_device *device, struct nv_device_info *info)
{
	const char *name = api->get_device_name(device);

	memset(info, 0, sizeof(*info));
	snprintf(info->name, sizeof(info->name), "%.*s", NV_NAME_BYTES - 1, name ? name : "");
	info->guid = be64toh(api->get_device_guid(device));
	info->numa_node = api->numa_node(device);
}

/* Opens a device; on success info is complete. */
static struct nv_status open_device(const struct nv_api *api, struct ibv_device *device, struct ibv_context **ctx,
				    struct nv_device_info *info)
{
	struct nv_status status;

	name_device(api, device, info);
	errno = 0;
	*ctx = api->open_device(device);
	if (!*ctx)
		return nv_failed("ibv_open_device");
	status = query_limits(api, *ctx, info);
	if (status.err) {
		api->close_device(*ctx);
		*ctx = NULL;
	}
	return status;
}

struct nv_status nv_devices(struct nv_lib *lib, struct nv_device_info **out, int32_t *count)
{
	const struct nv_api *api = lib->api;
	struct nv_device_info *infos;
	struct ibv_device **list;
	int devices;
	struct nv_status status = list_devices(lib, &list, &devices);

	*out = NULL;
	*count = 0;
	if (status.err || !list)
		return status;
	infos = calloc((size_t)devices + 1, sizeof(*infos));
	if (!infos) {
		api->free_device_list(list);
		return nv_error("calloc", ENOMEM);
	}
	for (int i = 0; i < devices; i++) {
		struct ibv_context *ctx;

		/* One adapter that does not open must not hide the others. */
		infos[i].unopened = 0;
		status = open_device(api, list[i], &ctx, &infos[i]);
		if (status.err)
			infos[i].unopened = status.err;
		else
			api->close_device(ctx);
	}
	api->free_device_list(list);
	*out = infos;
	*count = devices;
	return nv_ok();
}

static struct nv_status find_and_open(struct nv_lib *lib, const char *name, struct nv_device *device)
{
	const struct nv_api *api = lib->api;
	struct ibv_device **list;
	int devices;
	struct nv_status status = list_devices(lib, &list, &devices);

	if (status.err)
		return status;
	status = nv_error("ibv_open_device", ENODEV);
	for (int i = 0; i < devices; i++) {
		const char *found = api->get_device_name(list[i]);

		if (found && strcmp(found, name) == 0) {
			status = open_device(api, list[i], &device->ctx, &device->info);
			break;
		}
	}
	if (list)
		api->free_device_list(list);
	return status;
}

struct nv_status nv_device_open(struct nv_lib *lib, const char *name, struct nv_device **out)
{
	struct nv_device *device = calloc(1, sizeof(*device));
	struct nv_status status;

	if (!device)
		return nv_error("calloc", ENOMEM);
	device->api = lib->api;
	status = find_and_open(lib, name, device);
	if (!status.err) {
		status = nv_nonblocking(device->ctx->async_fd);
		if (status.err)
			device->api->close_device(device->ctx);
	}
	if (status.err) {
		free(device);
		return status;
	}
	device->lib = nv_retain(lib);
	*out = device;
	return nv_ok();
}

void nv_device_info(const struct nv_device *device, struct nv_device_info *info)
{
	*info = device->info;
}

int nv_device_busy(const struct nv_device *device)
{
	return nv_in_use(&device->users);
}

struct nv_status nv_device_close(struct nv_device *device)
{
	struct nv_status status;

	if (nv_device_busy(device))
		return nv_error("ibv_close_device", EBUSY);
	errno = 0;
	status = nv_result("ibv_close_device", device->api->close_device(device->ctx));
	if (status.err)
		return status;
	nv_release(device->lib);
	free(device);
	return nv_ok();
}

static int link_of(int link_layer)
{
	switch (link_layer) {
	case IBV_LINK_LAYER_UNSPECIFIED: /* of drivers that know no other */
	case IBV_LINK_LAYER_INFINIBAND:
		return NV_LINK_INFINIBAND;
	case IBV_LINK_LAYER_ETHERNET:
		return NV_LINK_ETHERNET;
	default:
		return NV_LINK_UNKNOWN;
	}
}

static int mtu_bytes(enum ibv_mtu mtu)
{
	switch (mtu) {
	case IBV_MTU_256:
		return 256;
	case IBV_MTU_512:
		return 512;
	case IBV_MTU_1024:
		return 1024;
	case IBV_MTU_2048:
		return 2048;
	case IBV_MTU_4096:
		return 4096;
	default:
		return 0;
	}
}

/* What a driver says of its table's length, as an index that can be used. */
static int32_t within(int index)
{
	if (index < 0)
		return 0;
	return index < NV_GIDS ? index : NV_GIDS;
}

struct nv_status nv_port(struct nv_device *device, uint8_t port, struct nv_port_info *info)
{
	struct ibv_port_attr attr;
	struct nv_status status;

	memset(&attr, 0, sizeof(attr));
	memset(info, 0, sizeof(*info));
	errno = 0;
	status = nv_result("ibv_query_port", device->api->query_port(device->ctx, port, &attr));
	if (status.err)
		return status;
	info->active = attr.state == IBV_PORT_ACTIVE;
	info->link = link_of(attr.link_layer);
	info->mtu = mtu_bytes(attr.active_mtu);
	info->gids = within(attr.gid_tbl_len);
	info->max_message = attr.max_msg_sz;
	info->lid = attr.lid;
	return nv_ok();
}

struct nv_status nv_gids(struct nv_device *device, uint8_t port, struct nv_range entries, struct nv_gid *gids,
			 int32_t room, int32_t *count)
{
	static const uint8_t zero[16];
	const struct nv_api *api = device->api;
	struct nv_port_info info;
	struct nv_status status = nv_port(device, port, &info);
	int32_t end = within(entries.end);

	*count = 0;
	if (status.err)
		return status;
	for (int32_t i = within(entries.first); i < end && *count < room; i++) {
		struct nv_gid *gid = &gids[*count];
		union ibv_gid raw;
		int type = NV_GID_INFINIBAND;

		memset(&raw, 0, sizeof(raw));
		memset(gid, 0, sizeof(*gid));
		/* An entry that goes away while the table is read fails; the event of that follows. */
		if (api->query_gid(device->ctx, port, i, &raw) != 0 || memcmp(raw.raw, zero, sizeof(zero)) == 0)
			continue;
		if (api->gid_info(device->ctx, port, i, &type, gid->network) != 0)
			continue;
		gid->network[sizeof(gid->network) - 1] = '\0';
		memcpy(gid->raw, raw.raw, sizeof(gid->raw));
		gid->type = info.link == NV_LINK_INFINIBAND ? NV_GID_INFINIBAND : type;
		gid->index = i;
		++*count;
	}
	return nv_ok();
}

int nv_device_fd(const struct nv_device *device)
{
	return device->ctx->async_fd;
}

static uint32_t number_of(const struct ibv_qp *qp)
{
	return qp ? qp->qp_num : 0;
}

static void read_event(const struct ibv_async_event *from, struct nv_event *to)
{
	memset(to, 0, sizeof(*to));
	switch (from->event_type) {
	case IBV_EVENT_PORT_ACTIVE:
		to->type = NV_EVENT_PORT_UP;
		to->port = from->element.port_num;
		break;
	case IBV_EVENT_PORT_ERR:
		to->type = NV_EVENT_PORT_DOWN;
		to->port = from->element.port_num;
		break;
	case IBV_EVENT_GID_CHANGE:
		to->type = NV_EVENT_GIDS;
		to->port = from->element.port_num;
		break;
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
		to->port = from->element.port_num;
		break;
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_CQ_ERR: /* a CQ that lost completions: all that was posted with it is in doubt */
		to->type = NV_EVENT_DEVICE_FATAL;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		to->type = NV_EVENT_QP_FATAL;
		to->qpn = number_of(from->element.qp);
		break;
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		to->qpn = number_of(from->element.qp);
		break;
	default:
		break;
	}
}

struct nv_status nv_device_event(struct nv_device *device, struct nv_event *event)
{
	struct ibv_async_event from;
	struct nv_status status;

	memset(&from, 0, sizeof(from));
	errno = 0;
	status = nv_result("ibv_get_async_event", device->api->get_async_event(device->ctx, &from));
	if (status.err)
		return status;
	/* The QP of the event cannot be destroyed before the acknowledgement, and so can be read here. */
	read_event(&from, event);
	device->api->ack_async_event(&from);
	return nv_ok();
}

struct nv_status nv_pd_open(struct nv_device *device, struct nv_pd **out)
{
	struct nv_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return nv_error("calloc", ENOMEM);
	pd->api = device->api;
	pd->device = device;
	errno = 0;
	pd->pd = pd->api->alloc_pd(device->ctx);
	if (!pd->pd) {
		struct nv_status status = nv_failed("ibv_alloc_pd");

		free(pd);
		return status;
	}
	nv_enter(&device->users);
	*out = pd;
	return nv_ok();
}

struct nv_status nv_pd_close(struct nv_pd *pd)
{
	struct nv_status status;

	if (nv_in_use(&pd->users))
		return nv_error("ibv_dealloc_pd", EBUSY);
	errno = 0;
	status = nv_result("ibv_dealloc_pd", pd->api->dealloc_pd(pd->pd));
	if (status.err)
		return status;
	nv_leave(&pd->device->users);
	free(pd);
	return nv_ok();
}

/* Takes what a registration returned. */
static struct nv_status new_mr(struct nv_pd *pd, struct ibv_mr *found, const char *call, struct nv_mr **out)
{
	struct nv_status status = nv_failed(call);
	struct nv_mr *mr;

	if (!found)
		return status;
	mr = calloc(1, sizeof(*mr));
	if (!mr) {
		pd->api->dereg_mr(found);
		return nv_error("calloc", ENOMEM);
	}
	mr->api = pd->api;
	mr->mr = found;
	mr->pd = pd;
	nv_enter(&pd->users);
	*out = mr;
	return nv_ok();
}

struct nv_status nv_mr_open(struct nv_pd *pd, void *addr, size_t length, int access, struct nv_mr **out)
{
	struct nv_status status;

	errno = 0;
	status = new_mr(pd, pd->api->reg_mr(pd->pd, addr, length, nv_access_flags(access)), "ibv_reg_mr", out);
	if (!status.err)
		(*out)->addr = (uintptr_t)addr;
	return status;
}

struct nv_status nv_mr_open_dmabuf(struct nv_pd *pd, const struct nv_dmabuf *buffer, int access, struct nv_mr **out)
{
	const char *call = "ibv_reg_dmabuf_mr";
	struct nv_status status;

	if (!pd->api->reg_dmabuf_mr)
		return nv_error(call, ENOTSUP);
	errno = 0;
	status = new_mr(pd,
			pd->api->reg_dmabuf_mr(pd->pd, buffer->offset, buffer->length, buffer->iova, buffer->fd,
					       nv_access_flags(access)),
			call, out);
	if (!status.err)
		(*out)->addr = buffer->iova;
	return status;
}

void nv_mr_info(const struct nv_mr *mr, struct nv_mr_info *info)
{
	info->addr = mr->addr;
	info->lkey = mr->mr->lkey;
	info->rkey = mr->mr->rkey;
}

struct nv_status nv_mr_close(struct nv_mr *mr)
{
	struct nv_status status;

	errno = 0;
	status = nv_result("ibv_dereg_mr", mr->api->dereg_mr(mr->mr));
	if (status.err)
		return status;
	nv_leave(&mr->pd->users);
	free(mr);
	return nv_ok();
}

#endif /* NV_HAVE_VERBS */
