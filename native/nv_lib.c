/* Opening libibverbs at run time: nothing of it is needed when the program is linked or started. */
#define _GNU_SOURCE

#include "nv_inner.h"

#if NV_HAVE_VERBS

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nv_status nv_ok(void)
{
	return (struct nv_status){NULL, 0};
}

struct nv_status nv_error(const char *call, int err)
{
	return (struct nv_status){call, err};
}

struct nv_status nv_failed(const char *call)
{
	return nv_error(call, errno > 0 ? errno : EIO);
}

struct nv_status nv_result(const char *call, int result)
{
	if (result == 0)
		return nv_ok();
	if (result > 0)
		return nv_error(call, result);
	return nv_failed(call);
}

struct nv_status nv_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return nv_failed("fcntl");
	return nv_ok();
}

int nv_access_flags(int access)
{
	int flags = 0;

	if (access & NV_LOCAL_WRITE)
		flags |= IBV_ACCESS_LOCAL_WRITE;
	if (access & NV_REMOTE_WRITE)
		flags |= IBV_ACCESS_REMOTE_WRITE;
	if (access & NV_REMOTE_READ)
		flags |= IBV_ACCESS_REMOTE_READ;
	return flags;
}

void nv_enter(int *users)
{
	__atomic_add_fetch(users, 1, __ATOMIC_RELAXED);
}

void nv_leave(int *users)
{
	__atomic_sub_fetch(users, 1, __ATOMIC_RELEASE);
}

int nv_in_use(const int *users)
{
	return __atomic_load_n(users, __ATOMIC_ACQUIRE) != 0;
}

/* The header has these as inline functions, which call the driver of the device. */

static int call_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, wr, bad);
}

static int call_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, wr, bad);
}

static int call_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	return cq->context->ops.poll_cq(cq, count, wc);
}

static int call_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return cq->context->ops.req_notify_cq(cq, solicited_only);
}

static struct ibv_device **call_get_device_list(const struct nv_api *api, int *count)
{
	const struct nv_lib *lib = (const struct nv_lib *)((const char *)api - offsetof(struct nv_lib, own));

	return lib->get_device_list(count);
}

/* A function that the table needs: its name, and where its address goes. */
struct symbol {
	const char *name;
	size_t offset; /* in struct nv_lib */
	int optional;
};

#define OWN(member, symbol_name, is_optional) {symbol_name, offsetof(struct nv_lib, own.member), is_optional}
#define MUST(member) OWN(member, "ibv_" #member, 0)
#define MAY(member) OWN(member, "ibv_" #member, 1)

static const struct symbol symbols[] = {
	{"ibv_get_device_list", offsetof(struct nv_lib, get_device_list), 0},
	MUST(free_device_list),
	MUST(get_device_name),
	MUST(get_device_guid),
	MUST(open_device),
	MUST(close_device),
	MUST(query_device),
	/* The function behind this name knows the fields up to flags; those after it stay zero. */
	MUST(query_port),
	MUST(query_gid),
	MUST(alloc_pd),
	MUST(dealloc_pd),
	MUST(reg_mr),
	MAY(reg_dmabuf_mr), /* since rdma-core 34 */
	MUST(dereg_mr),
	MUST(create_comp_channel),
	MUST(destroy_comp_channel),
	MUST(create_cq),
	MUST(destroy_cq),
	MUST(get_cq_event),
	MUST(ack_cq_events),
	MUST(create_qp),
	MUST(modify_qp),
	MUST(query_qp),
	MUST(destroy_qp),
	MUST(get_async_event),
	MUST(ack_async_event),
};

_Static_assert(sizeof(void *) == sizeof(void (*)(void)), "dlsym gives functions as data pointers");

static const char *missing_symbol(struct nv_lib *lib)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *found = dlsym(lib->mapped, symbols[i].name);

		if (!found && !symbols[i].optional)
			return symbols[i].name;
		memcpy((char *)lib + symbols[i].offset, &found, sizeof(found));
	}
	return NULL;
}

static struct nv_lib *new_lib(void)
{
	struct nv_lib *lib = calloc(1, sizeof(*lib));

	if (lib)
		lib->users = 1;
	return lib;
}

enum nv_unavailable nv_open(const char *path, struct nv_lib **out, char detail[NV_DETAIL_BYTES])
{
	struct nv_lib *lib = new_lib();
	const char *missing;

	detail[0] = '\0';
	if (!lib)
		return NV_NO_MEMORY;
	/*
	 * NODELETE: drivers of adapters that the library has loaded stay in the process with handlers and
	 * thread-local data of their own, so unmapping the library under them is not safe.
	 */
	lib->mapped = dlopen(path ? path : "libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib->mapped) {
		const char *words = dlerror();

		snprintf(detail, NV_DETAIL_BYTES, "%s", words ? words : "");
		free(lib);
		return NV_NO_LIBRARY;
	}
	missing = missing_symbol(lib);
	if (missing) {
		snprintf(detail, NV_DETAIL_BYTES, "%s", missing);
		nv_release(lib);
		return NV_NO_SYMBOL;
	}
	lib->own.size = NV_API_SIZE;
	lib->own.get_device_list = call_get_device_list;
	lib->own.post_send = call_post_send;
	lib->own.post_recv = call_post_recv;
	lib->own.poll_cq = call_poll_cq;
	lib->own.req_notify_cq = call_req_notify_cq;
	lib->own.gid_info = nv_sysfs_gid_info;
	lib->own.numa_node = nv_sysfs_numa_node;
	lib->api = &lib->own;
	*out = lib;
	return NV_AVAILABLE;
}

enum nv_unavailable nv_open_table(const void *table, struct nv_lib **out)
{
	const struct nv_api *api = table;
	struct nv_lib *lib;

	if (!api || api->size != NV_API_SIZE)
		return NV_NO_SYMBOL;
	lib = new_lib();
	if (!lib)
		return NV_NO_MEMORY;
	lib->api = api;
	*out = lib;
	return NV_AVAILABLE;
}

struct nv_lib *nv_retain(struct nv_lib *lib)
{
	__atomic_add_fetch(&lib->users, 1, __ATOMIC_RELAXED);
	return lib;
}

void nv_release(struct nv_lib *lib)
{
	if (__atomic_sub_fetch(&lib->users, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	if (lib->mapped)
		dlclose(lib->mapped);
	free(lib->mlx5);
	free(lib);
}

void nv_free(void *memory)
{
	free(memory);
}

/* Reads the first line of a file of sysfs into text, without its line end. Returns 0 or an errno value. */
static int read_line(const char *path, char *text, int room)
{
	FILE *file = fopen(path, "re");
	int err = 0;

	if (!file)
		return errno;
	errno = 0;
	if (!fgets(text, room, file))
		err = errno ? errno : ENODATA;
	fclose(file);
	if (!err)
		text[strcspn(text, "\n")] = '\0';
	return err;
}

/* A path of sysfs: the device's directory, the port's GID attributes, the index. */
#define NV_PATH_BYTES 384

static int read_gid_attribute(struct ibv_context *ctx, const char *attribute, const int at[2], char text[32])
{
	char path[NV_PATH_BYTES];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/gid_attrs/%s/%d", ctx->device->name,
		 at[0], attribute, at[1]);
	return read_line(path, text, 32);
}

int nv_sysfs_gid_info(struct ibv_context *ctx, uint8_t port, int index, int *type, char netdev[NV_NETDEV_BYTES])
{
	const int at[2] = {port, index};
	char text[32];
	int err = read_gid_attribute(ctx, "types", at, text);

	netdev[0] = '\0';
	if (err)
		return err;
	if (strcmp(text, "IB/RoCE v1") == 0)
		*type = NV_GID_ROCE_V1; /* or InfiniBand: the port's link layer tells */
	else if (strcmp(text, "RoCE v2") == 0)
		*type = NV_GID_ROCE_V2;
	else
		return EPROTONOSUPPORT;
	/* An InfiniBand port has no network device here: the file is missing, or reading it fails. */
	if (read_gid_attribute(ctx, "ndevs", at, text) == 0)
		snprintf(netdev, NV_NETDEV_BYTES, "%.*s", NV_NETDEV_BYTES - 1, text);
	return 0;
}

int nv_sysfs_numa_node(struct ibv_device *device)
{
	char path[NV_PATH_BYTES], text[32], *end;
	long node;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/numa_node", device->name);
	if (read_line(path, text, sizeof(text)) != 0)
		return -1;
	node = strtol(text, &end, 10);
	return end == text || node < 0 || node > 4096 ? -1 : (int)node;
}

#endif /* NV_HAVE_VERBS */
