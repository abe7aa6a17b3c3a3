/*
 * Dynamically connected queue pairs by libmlx5, opened at run time. What its header has as inline functions are
 * members of the structs that the library returns.
 */
#define _GNU_SOURCE

#include "nv_dc.h"
#include "nv_inner.h"
#include "nv_mlx5.h"

#if NV_HAVE_VERBS

#include <errno.h>

#if NV_HAVE_MLX5

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mlx5 {
	struct nv_dc_api api; /* first: the table is found by it */
	struct nv_mlx5_calls calls;
};

static const struct nv_mlx5_calls *calls_of(const struct nv_dc_api *dc)
{
	return &((const struct mlx5 *)dc)->calls;
}

static int supported(const struct nv_dc_api *dc, struct ibv_device *device)
{
	return calls_of(dc)->is_supported(device);
}

static struct ibv_qp *create_dci(const struct nv_dc_api *dc, struct ibv_pd *pd, const struct nv_dci_attr *attr)
{
	const struct nv_mlx5_calls *calls = calls_of(dc);
	struct ibv_qp_init_attr_ex init;
	struct mlx5dv_qp_init_attr mlx5;
	struct ibv_qp_ex *ex;
	struct ibv_qp *qp;

	memset(&init, 0, sizeof(init));
	memset(&mlx5, 0, sizeof(mlx5));
	init.qp_type = IBV_QPT_DRIVER;
	init.send_cq = attr->cq;
	init.recv_cq = attr->cq;
	init.pd = pd;
	init.cap.max_send_wr = attr->depth;
	init.cap.max_send_sge = 1;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ;
	mlx5.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
	mlx5.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI;
	/* The bytes of a short READ must be in its buffer, and not in the completion. */
	mlx5.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
	qp = calls->create_qp(pd->context, &init, &mlx5);
	if (!qp)
		return NULL;
	ex = calls->qp_to_qp_ex(qp);
	if (!ex || !calls->qp_ex_from_ibv_qp_ex(ex)) {
		calls->destroy_qp(qp);
		errno = EOPNOTSUPP;
		return NULL;
	}
	return qp;
}

static struct ibv_qp *create_dct(const struct nv_dc_api *dc, struct ibv_pd *pd, const struct nv_dct_attr *attr)
{
	struct ibv_qp_init_attr_ex init;
	struct mlx5dv_qp_init_attr mlx5;

	memset(&init, 0, sizeof(init));
	memset(&mlx5, 0, sizeof(mlx5));
	init.qp_type = IBV_QPT_DRIVER;
	init.send_cq = attr->cq;
	init.recv_cq = attr->cq;
	init.srq = attr->srq;
	init.pd = pd;
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	mlx5.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC;
	mlx5.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCT;
	mlx5.dc_init_attr.dct_access_key = attr->key;
	return calls_of(dc)->create_qp(pd->context, &init, &mlx5);
}

static int post(const struct nv_dc_api *dc, struct ibv_qp *dci, const struct nv_dc_to *to,
		const struct nv_work *work, int count)
{
	const struct nv_mlx5_calls *calls = calls_of(dc);
	struct ibv_qp_ex *qp = calls->qp_to_qp_ex(dci);
	struct mlx5dv_qp_ex *mlx5 = calls->qp_ex_from_ibv_qp_ex(qp);

	qp->wr_start(qp);
	for (int i = 0; i < count; i++) {
		const struct nv_work *w = &work[i];

		qp->wr_id = w->id;
		qp->wr_flags = w->signal ? IBV_SEND_SIGNALED : 0;
		if (w->op == NV_READ)
			qp->wr_rdma_read(qp, w->rkey, w->remote);
		else
			qp->wr_rdma_write(qp, w->rkey, w->remote);
		mlx5->wr_set_dc_addr(mlx5, to->ah, to->dct, to->key);
		qp->wr_set_sge(qp, w->lkey, w->local, w->length);
	}
	return qp->wr_complete(qp);
}

struct nv_dc_api *nv_mlx5_table(const struct nv_mlx5_calls *calls)
{
	struct mlx5 *mlx5 = calloc(1, sizeof(*mlx5));

	if (!mlx5)
		return NULL;
	mlx5->calls = *calls;
	mlx5->api.supported = supported;
	mlx5->api.create_dci = create_dci;
	mlx5->api.create_dct = create_dct;
	mlx5->api.post = post;
	mlx5->api.create_ah = calls->create_ah;
	mlx5->api.destroy_ah = calls->destroy_ah;
	mlx5->api.create_srq = calls->create_srq;
	mlx5->api.destroy_srq = calls->destroy_srq;
	return &mlx5->api;
}

/* A function that is needed: its name, and where its address goes. */
struct symbol {
	const char *name;
	size_t offset; /* in struct nv_mlx5_calls */
	int of_mlx5;
};

#define MLX5(member) {"mlx5dv_" #member, offsetof(struct nv_mlx5_calls, member), 1}
#define VERBS(member) {"ibv_" #member, offsetof(struct nv_mlx5_calls, member), 0}

static const struct symbol symbols[] = {
	MLX5(is_supported),  MLX5(create_qp),	MLX5(qp_ex_from_ibv_qp_ex), VERBS(qp_to_qp_ex), VERBS(destroy_qp),
	VERBS(create_ah),    VERBS(destroy_ah), VERBS(create_srq),	    VERBS(destroy_srq),
};

static const char *missing_symbol(const struct nv_lib *lib, void *mapped, struct nv_mlx5_calls *calls)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *found = dlsym(symbols[i].of_mlx5 ? mapped : lib->mapped, symbols[i].name);

		if (!found)
			return symbols[i].name;
		memcpy((char *)calls + symbols[i].offset, &found, sizeof(found));
	}
	return NULL;
}

static enum nv_unavailable load(struct nv_lib *lib, const char *path, char detail[NV_DETAIL_BYTES])
{
	struct nv_mlx5_calls calls;
	struct nv_dc_api *table;
	const struct nv_dc_api *before = NULL;
	const char *missing;
	/* It is the driver too, which libibverbs opens by itself: the same file, so the same objects. */
	void *mapped = dlopen(path ? path : "libmlx5.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!mapped) {
		const char *words = dlerror();

		snprintf(detail, NV_DETAIL_BYTES, "%s", words ? words : "");
		return NV_NO_MLX5;
	}
	missing = missing_symbol(lib, mapped, &calls);
	dlclose(mapped); /* it stays */
	if (missing) {
		snprintf(detail, NV_DETAIL_BYTES, "%s", missing);
		return NV_NO_SYMBOL;
	}
	table = nv_mlx5_table(&calls);
	if (!table)
		return NV_NO_MEMORY;
	if (__atomic_compare_exchange_n(&lib->own.dc, &before, table, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		lib->mlx5 = table;
	else
		free(table); /* another thread was first */
	return NV_AVAILABLE;
}

#else

static enum nv_unavailable load(struct nv_lib *lib, const char *path, char detail[NV_DETAIL_BYTES])
{
	(void)lib, (void)path, (void)detail;
	return NV_NO_MLX5_BUILT;
}

#endif /* NV_HAVE_MLX5 */

enum nv_unavailable nv_dc_open(struct nv_lib *lib, const char *path, char detail[NV_DETAIL_BYTES])
{
	detail[0] = '\0';
	if (__atomic_load_n(&lib->api->dc, __ATOMIC_ACQUIRE))
		return NV_AVAILABLE;
	if (lib->api != &lib->own)
		return NV_NO_MLX5;
	return load(lib, path, detail);
}

#endif /* NV_HAVE_VERBS */
