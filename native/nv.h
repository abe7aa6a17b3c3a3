/*
 * Verbs for the Go package beside this file and for the C library: reliable connections, RDMA WRITE, with and without
 * an immediate, and READ. Every function may be called from any thread; the order in which objects must end, and
 * what may run at the same time, is in native.go.
 *
 * Names with nv_ are all that these files define. Structs are opaque and end by their close function; one
 * that reports an error has closed nothing, and may be called again. A CQ may be half closed then: its other
 * functions are EBADF.
 */
#ifndef NV_H
#define NV_H

#include "nv_api.h"

/* What a call came to: err is 0, or an errno value, and then call names the function that failed. */
struct nv_status {
	const char *call; /* static text */
	int err;
};

/* Why nv_open or nv_dc_open failed. */
enum nv_unavailable {
	NV_AVAILABLE = 0,
	NV_NO_HEADERS_BUILT = 1, /* built without infiniband/verbs.h */
	NV_NO_LIBRARY = 2,
	NV_NO_SYMBOL = 3,
	NV_NO_MEMORY = 4,
	NV_NO_MLX5_BUILT = 5, /* built without infiniband/mlx5dv.h */
	NV_NO_MLX5 = 6,
};

struct nv_lib;
struct nv_device;
struct nv_pd;
struct nv_mr;
struct nv_cq;
struct nv_qp;

#define NV_DETAIL_BYTES 512
#define NV_NAME_BYTES 64

/*
 * Opens a library by path; NULL: libibverbs.so.1. On failure detail has the words of the dynamic linker, or
 * the name of the missing symbol. nv_open_table takes a table that stays good until the library is released.
 */
enum nv_unavailable nv_open(const char *path, struct nv_lib **lib, char detail[NV_DETAIL_BYTES]);
enum nv_unavailable nv_open_table(const void *table, struct nv_lib **lib);
/* Every device that is open retains it by itself. */
void nv_release(struct nv_lib *lib);

struct nv_device_info {
	char name[NV_NAME_BYTES];
	char firmware[64];
	uint64_t guid;
	uint64_t max_mr_bytes;
	int32_t numa_node; /* -1: not known */
	int32_t ports;
	int32_t max_qp, max_cq, max_cq_depth, max_qp_depth, max_mr;
	int32_t max_reads;  /* that a QP answers at once */
	int32_t max_issued; /* that a QP has under way at once */
	int32_t unopened;   /* the errno of opening it, or 0; the limits are then 0 */
};

/* Lists the devices into an array that the caller frees by nv_free. */
struct nv_status nv_devices(struct nv_lib *lib, struct nv_device_info **list, int32_t *count);
void nv_free(void *memory);

/* ENODEV: no device has this name. */
struct nv_status nv_device_open(struct nv_lib *lib, const char *name, struct nv_device **device);
void nv_device_info(const struct nv_device *device, struct nv_device_info *info);
/* Whether a PD or CQ of it is open; closing it is then EBUSY, and so for the others. */
int nv_device_busy(const struct nv_device *device);
struct nv_status nv_device_close(struct nv_device *device);

enum nv_link {
	NV_LINK_UNKNOWN = 0,
	NV_LINK_INFINIBAND = 1,
	NV_LINK_ETHERNET = 2,
};

struct nv_port_info {
	int32_t active; /* 1 or 0 */
	int32_t link;	/* enum nv_link */
	int32_t mtu;	/* bytes; 0: not known */
	int32_t gids;	/* entries of the table, at most NV_GIDS */
	uint32_t max_message;
	uint16_t lid;
};

struct nv_gid {
	uint8_t raw[16];
	int32_t type; /* enum nv_gid_type */
	int32_t index;
	char network[NV_NETDEV_BYTES];
};

struct nv_status nv_port(struct nv_device *device, uint8_t port, struct nv_port_info *info);

/* Entries of a port's table, from first to before end. */
struct nv_range {
	int32_t first, end;
};

/* What is read of a table: the index of a GID in a path is a byte. */
#define NV_GIDS 256

/* Writes the entries that are not zero, at most room of them, and how many it wrote. */
struct nv_status nv_gids(struct nv_device *device, uint8_t port, struct nv_range entries, struct nv_gid *gids,
			 int32_t room, int32_t *count);

enum nv_event_type {
	NV_EVENT_OTHER = 0,
	NV_EVENT_PORT_UP = 1,
	NV_EVENT_PORT_DOWN = 2,
	NV_EVENT_GIDS = 3,
	NV_EVENT_DEVICE_FATAL = 4,
	NV_EVENT_QP_FATAL = 5,
};

struct nv_event {
	int32_t type;
	int32_t port; /* 0: not about a port */
	uint32_t qpn; /* 0: not about a QP */
};

/* The fd is readable when nv_device_event has one; with none that is EAGAIN. It never waits. */
int nv_device_fd(const struct nv_device *device);
struct nv_status nv_device_event(struct nv_device *device, struct nv_event *event);

struct nv_status nv_pd_open(struct nv_device *device, struct nv_pd **pd);
struct nv_status nv_pd_close(struct nv_pd *pd);

enum nv_access {
	NV_LOCAL_WRITE = 1,
	NV_REMOTE_WRITE = 2,
	NV_REMOTE_READ = 4,
};

struct nv_mr_info {
	uint64_t addr; /* for peers */
	uint32_t lkey;
	uint32_t rkey;
};

struct nv_dmabuf {
	uint64_t offset, length, iova;
	int32_t fd;
};

struct nv_status nv_mr_open(struct nv_pd *pd, void *addr, size_t length, int access, struct nv_mr **mr);
struct nv_status nv_mr_open_dmabuf(struct nv_pd *pd, const struct nv_dmabuf *buffer, int access,
				   struct nv_mr **mr);
void nv_mr_info(const struct nv_mr *mr, struct nv_mr_info *info);
struct nv_status nv_mr_close(struct nv_mr *mr);

/* A CQ with a completion channel of its own, whose fd is readable when nv_cq_event has an event. */
struct nv_status nv_cq_open(struct nv_device *device, int depth, struct nv_cq **cq);
int nv_cq_fd(const struct nv_cq *cq);
struct nv_status nv_cq_arm(struct nv_cq *cq);
/* Takes one event; EAGAIN: there is none. It never waits. */
struct nv_status nv_cq_event(struct nv_cq *cq);
int nv_cq_busy(const struct nv_cq *cq);
struct nv_status nv_cq_close(struct nv_cq *cq);

enum nv_completion_status {
	NV_OK = 0,
	NV_LOCAL = 1,
	NV_FLUSHED = 2,
	NV_REMOTE_ACCESS = 3,
	NV_REMOTE_OTHER = 4,
	NV_RETRY = 5,
	NV_OTHER = 6,
};

/* Go's native.Completion. */
struct nv_completion {
	uint64_t id;
	uint32_t status; /* enum nv_completion_status */
	uint32_t vendor;
	uint32_t qpn;
	uint32_t bytes; /* of a READ, or of what was received, that went well, else 0 */
	uint32_t imm;	/* where has_imm is 1 */
	uint8_t received; /* 1: of a receive; 0 also where an error leaves it open */
	uint8_t has_imm;  /* 1: of a peer's NV_WRITE_IMM */
	uint8_t reserved[2];
};

/* Takes at most room completions; count is right also when it fails. */
struct nv_status nv_cq_poll(struct nv_cq *cq, struct nv_completion *list, int32_t room, int32_t *count);

enum nv_opcode {
	NV_WRITE = 1,
	NV_READ = 2,
	NV_WRITE_IMM = 3, /* uses up a receive of the peer */
};

/* Go's native.Work. */
struct nv_work {
	uint64_t id;
	uint64_t local;
	uint64_t remote;
	uint32_t length;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t op; /* enum nv_opcode */
	uint8_t signal;
	uint8_t reserved[3];
	uint32_t imm; /* of NV_WRITE_IMM; the most significant byte goes first */
};

enum nv_qp_state {
	NV_QP_RESET = 0,
	NV_QP_INIT = 1,
	NV_QP_READY = 2, /* to receive */
	NV_QP_SEND = 3,	 /* and to send */
	NV_QP_ERROR = 4,
};

/* Go's native.Path and native.Peer in one. */
struct nv_path {
	uint8_t peer_gid[16];
	uint32_t peer_qpn;
	uint32_t peer_psn;
	uint32_t psn;
	int32_t mtu; /* bytes */
	int32_t gid_index;
	int32_t access; /* enum nv_access: what the peer may do */
	uint16_t peer_lid;
	uint8_t port;
	uint8_t reads;
	uint8_t hop_limit;
	uint8_t traffic_class;
	uint8_t timeout;
	uint8_t retries;
	uint8_t rnr_retries;
	uint8_t min_rnr_timer;
};

/* How many requests may be posted and not have completed. */
struct nv_depths {
	int32_t works, receives;
};

struct nv_status nv_qp_open(struct nv_pd *pd, struct nv_cq *cq, struct nv_depths depths, struct nv_qp **qp);
uint32_t nv_qp_number(const struct nv_qp *qp);
struct nv_status nv_qp_state(struct nv_qp *qp, int32_t *state);
/* Of the path, to_init needs port and access, to_receive all but psn, timeout and retries, to_send those. */
struct nv_status nv_qp_to_init(struct nv_qp *qp, const struct nv_path *path);
struct nv_status nv_qp_to_receive(struct nv_qp *qp, const struct nv_path *path);
struct nv_status nv_qp_to_send(struct nv_qp *qp, const struct nv_path *path);
struct nv_status nv_qp_to_error(struct nv_qp *qp);
struct nv_status nv_qp_to_reset(struct nv_qp *qp);
/*
 * Posts in order, in chains of a bounded length. Of n < count the first n are posted, and the status says
 * why the next one was not; where the library does not say which one it refused, its whole chain counts as
 * posted: the adapter may have it.
 */
struct nv_status nv_qp_post(struct nv_qp *qp, const struct nv_work *work, int32_t count, int32_t *posted);
/*
 * Posts a receive without memory, for the immediate of a peer's NV_WRITE_IMM; its completion has the id. From the
 * state NV_QP_INIT on.
 */
struct nv_status nv_qp_post_receive(struct nv_qp *qp, uint64_t id);
struct nv_status nv_qp_close(struct nv_qp *qp);

#endif /* NV_H */
