/* The core where infiniband/verbs.h was missing: it opens nothing, so the other functions are never called. */
#include "nv.h"

#if !NV_HAVE_VERBS

#include <errno.h>
#include <stdlib.h>

static const struct nv_status none = {"nv_open", ENOSYS};

enum nv_unavailable nv_open(const char *path, struct nv_lib **lib, char detail[NV_DETAIL_BYTES])
{
	(void)path, (void)lib;
	detail[0] = '\0';
	return NV_NO_HEADERS_BUILT;
}

enum nv_unavailable nv_open_table(const void *table, struct nv_lib **lib)
{
	(void)table, (void)lib;
	return NV_NO_HEADERS_BUILT;
}

void nv_release(struct nv_lib *lib)
{
	(void)lib;
}

void nv_free(void *memory)
{
	free(memory);
}

struct nv_status nv_devices(struct nv_lib *lib, struct nv_device_info **list, int32_t *count)
{
	(void)lib, (void)list, (void)count;
	return none;
}

struct nv_status nv_device_open(struct nv_lib *lib, const char *name, struct nv_device **device)
{
	(void)lib, (void)name, (void)device;
	return none;
}

void nv_device_info(const struct nv_device *device, struct nv_device_info *info)
{
	(void)device, (void)info;
}

int nv_device_busy(const struct nv_device *device)
{
	(void)device;
	return 0;
}

struct nv_status nv_device_close(struct nv_device *device)
{
	(void)device;
	return none;
}

struct nv_status nv_port(struct nv_device *device, uint8_t port, struct nv_port_info *info)
{
	(void)device, (void)port, (void)info;
	return none;
}

struct nv_status nv_gids(struct nv_device *device, uint8_t port, struct nv_range entries, struct nv_gid *gids,
			 int32_t room, int32_t *count)
{
	(void)device, (void)port, (void)entries, (void)gids, (void)room, (void)count;
	return none;
}

int nv_device_fd(const struct nv_device *device)
{
	(void)device;
	return -1;
}

struct nv_status nv_device_event(struct nv_device *device, struct nv_event *event)
{
	(void)device, (void)event;
	return none;
}

struct nv_status nv_pd_open(struct nv_device *device, struct nv_pd **pd)
{
	(void)device, (void)pd;
	return none;
}

struct nv_status nv_pd_close(struct nv_pd *pd)
{
	(void)pd;
	return none;
}

struct nv_status nv_mr_open(struct nv_pd *pd, void *addr, size_t length, int access, struct nv_mr **mr)
{
	(void)pd, (void)addr, (void)length, (void)access, (void)mr;
	return none;
}

struct nv_status nv_mr_open_dmabuf(struct nv_pd *pd, const struct nv_dmabuf *buffer, int access, struct nv_mr **mr)
{
	(void)pd, (void)buffer, (void)access, (void)mr;
	return none;
}

void nv_mr_info(const struct nv_mr *mr, struct nv_mr_info *info)
{
	(void)mr, (void)info;
}

struct nv_status nv_mr_close(struct nv_mr *mr)
{
	(void)mr;
	return none;
}

struct nv_status nv_cq_open(struct nv_device *device, int depth, struct nv_cq **cq)
{
	(void)device, (void)depth, (void)cq;
	return none;
}

int nv_cq_fd(const struct nv_cq *cq)
{
	(void)cq;
	return -1;
}

struct nv_status nv_cq_arm(struct nv_cq *cq)
{
	(void)cq;
	return none;
}

struct nv_status nv_cq_event(struct nv_cq *cq)
{
	(void)cq;
	return none;
}

int nv_cq_busy(const struct nv_cq *cq)
{
	(void)cq;
	return 0;
}

struct nv_status nv_cq_close(struct nv_cq *cq)
{
	(void)cq;
	return none;
}

struct nv_status nv_cq_poll(struct nv_cq *cq, struct nv_completion *list, int32_t room, int32_t *count)
{
	(void)cq, (void)list, (void)room, (void)count;
	return none;
}

struct nv_status nv_qp_open(struct nv_pd *pd, struct nv_cq *cq, struct nv_depths depths, struct nv_qp **qp)
{
	(void)pd, (void)cq, (void)depths, (void)qp;
	return none;
}

uint32_t nv_qp_number(const struct nv_qp *qp)
{
	(void)qp;
	return 0;
}

struct nv_status nv_qp_state(struct nv_qp *qp, int32_t *state)
{
	(void)qp, (void)state;
	return none;
}

struct nv_status nv_qp_to_init(struct nv_qp *qp, const struct nv_path *path)
{
	(void)qp, (void)path;
	return none;
}

struct nv_status nv_qp_to_receive(struct nv_qp *qp, const struct nv_path *path)
{
	(void)qp, (void)path;
	return none;
}

struct nv_status nv_qp_to_send(struct nv_qp *qp, const struct nv_path *path)
{
	(void)qp, (void)path;
	return none;
}

struct nv_status nv_qp_to_error(struct nv_qp *qp)
{
	(void)qp;
	return none;
}

struct nv_status nv_qp_to_reset(struct nv_qp *qp)
{
	(void)qp;
	return none;
}

struct nv_status nv_qp_post(struct nv_qp *qp, const struct nv_work *work, int32_t count, int32_t *posted)
{
	(void)qp, (void)work, (void)count, (void)posted;
	return none;
}

struct nv_status nv_qp_post_receive(struct nv_qp *qp, uint64_t id)
{
	(void)qp, (void)id;
	return none;
}

struct nv_status nv_qp_close(struct nv_qp *qp)
{
	(void)qp;
	return none;
}

#endif /* !NV_HAVE_VERBS */
