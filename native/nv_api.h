/*
 * The functions of libibverbs that the core calls, as a table: nv_open fills one from the library, a test
 * supplies its own. The file also compiles where infiniband/verbs.h is missing; then NV_HAVE_VERBS is 0
 * and the table is an incomplete type.
 */
#ifndef NV_API_H
#define NV_API_H

#include <stddef.h>
#include <stdint.h>

#if defined(NV_NO_HEADERS)
#define NV_HAVE_VERBS 0
#elif defined(__has_include)
#if __has_include(<infiniband/verbs.h>)
#define NV_HAVE_VERBS 1
#endif
#endif
#ifndef NV_HAVE_VERBS
#define NV_HAVE_VERBS 0
#endif

/* Types of GID, as in Go's native.GIDType. */
enum nv_gid_type {
	NV_GID_INFINIBAND = 0,
	NV_GID_ROCE_V1 = 1,
	NV_GID_ROCE_V2 = 2,
};

/* Room for the name of a network device, with its zero byte. */
#define NV_NETDEV_BYTES 16

/* What nv_api.size must be, so that a table of another version is refused. */
#define NV_API_SIZE ((uint32_t)sizeof(struct nv_api))

struct nv_api;
struct nv_dc_api; /* nv_dc_api.h */

#if NV_HAVE_VERBS
#include <infiniband/verbs.h>

/*
 * Arguments and results are those of the function ibv_NAME of libibverbs, unless said otherwise here:
 *
 *   - Those that return a pointer return NULL and set errno on failure.
 *   - Those that return int return 0, or else an errno value, or -1 with errno set; both are understood.
 *   - get_device_list gets the table too: a table that is the first member of a larger struct finds its
 *     state there. The core holds a list only while it opens a device of it or asks for its name, and
 *     frees it then; an open context stays good.
 *   - query_port fills a struct that the core has zeroed.
 *   - get_cq_event and get_async_event never wait: the core has set O_NONBLOCK on channel->fd and
 *     ctx->async_fd (by fcntl, on the open file), and waits for them with epoll, also by a dup of them.
 *     With nothing to tell they return -1 with errno EAGAIN.
 *   - ack_cq_events is called once for each event, before anything else is done with the queue.
 *   - post_send gets chains of at most 32; of a failed one it sets *bad to the first request not taken.
 *   - post_recv gets one request at a time, without memory.
 *   - poll_cq returns how many, or less than 0.
 *   - reg_dmabuf_mr may be NULL: then it is ENOTSUP.
 *   - All other functions must be there. All may be called from any thread.
 *
 * Destroy functions may refuse by EBUSY while something still uses the object.
 */
struct nv_api {
	uint32_t size; /* NV_API_SIZE */

	struct ibv_device **(*get_device_list)(const struct nv_api *api, int *count);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *device);
	__be64 (*get_device_guid)(struct ibv_device *device);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *ctx);
	int (*query_device)(struct ibv_context *ctx, struct ibv_device_attr *attr);
	int (*query_port)(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
	int (*query_gid)(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid);

	struct ibv_pd *(*alloc_pd)(struct ibv_context *ctx);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
					int fd, int access);
	int (*dereg_mr)(struct ibv_mr *mr);

	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *ctx);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *ctx, int cqe, void *cq_context,
				    struct ibv_comp_channel *channel, int comp_vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
	int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *wc);

	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init);
	int (*destroy_qp)(struct ibv_qp *qp);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

	int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *event);
	void (*ack_async_event)(struct ibv_async_event *event);

	/*
	 * Two that the library lacks; the core's own table reads sysfs. gid_info returns 0 or an errno value;
	 * type is an enum nv_gid_type, netdev is empty on InfiniBand. numa_node returns -1 where not known.
	 */
	int (*gid_info)(struct ibv_context *ctx, uint8_t port, int index, int *type,
			char netdev[NV_NETDEV_BYTES]);
	int (*numa_node)(struct ibv_device *device);

	/* Dynamically connected queue pairs; NULL where there are none. */
	const struct nv_dc_api *dc;
};
#endif /* NV_HAVE_VERBS */

#endif /* NV_API_H */
