/* What the files of the core share. */
#ifndef NV_INNER_H
#define NV_INNER_H

#include "nv.h"

#if NV_HAVE_VERBS

struct nv_lib {
	const struct nv_api *api;
	int users; /* atomic: the opener and each device */
	void *mapped; /* of dlopen, or NULL */
	struct nv_api own; /* what api points to, if the library was opened here */
	struct ibv_device **(*get_device_list)(int *count); /* of the library */
	void *mlx5; /* what own.dc points to, to be freed */
};

struct nv_device {
	struct nv_lib *lib;
	const struct nv_api *api;
	struct ibv_context *ctx;
	int users; /* atomic: PDs and CQs */
	struct nv_device_info info;
};

struct nv_pd {
	const struct nv_api *api;
	struct ibv_pd *pd;
	struct nv_device *device;
	int users; /* atomic: MRs and QPs */
};

struct nv_mr {
	const struct nv_api *api;
	struct ibv_mr *mr;
	struct nv_pd *pd;
	uint64_t addr;
};

struct nv_cq {
	const struct nv_api *api;
	struct ibv_cq *cq; /* NULL once destroyed while the channel was not */
	struct ibv_comp_channel *channel;
	struct nv_device *device;
	int users; /* atomic: QPs */
};

struct nv_qp {
	const struct nv_api *api;
	struct ibv_qp *qp;
	struct nv_pd *pd;
	struct nv_cq *cq;
};

struct nv_lib *nv_retain(struct nv_lib *lib);

/*
 * What was made from an object keeps it from being closed: the library frees a context, and some drivers
 * other objects, without asking who still uses them.
 */
void nv_enter(int *users);
void nv_leave(int *users);
int nv_in_use(const int *users);

/* The status of a call that returned 0, or an errno value, or -1 with errno set. */
struct nv_status nv_result(const char *call, int result);
/* The status of a call that failed with errno set. */
struct nv_status nv_failed(const char *call);
struct nv_status nv_error(const char *call, int err);
struct nv_status nv_ok(void);

/* Sets O_NONBLOCK. */
struct nv_status nv_nonblocking(int fd);

/* Bits of enum nv_access as those of the library. */
int nv_access_flags(int access);

/* gid_info and numa_node of the library's own table, from sysfs. */
int nv_sysfs_gid_info(struct ibv_context *ctx, uint8_t port, int index, int *type, char netdev[NV_NETDEV_BYTES]);
int nv_sysfs_numa_node(struct ibv_device *device);

#endif /* NV_HAVE_VERBS */
#endif /* NV_INNER_H */
