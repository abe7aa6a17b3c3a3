/* The functions of libmlx5 and libibverbs by which nv_mlx5.c makes a table of nv_dc_api.h. */
#ifndef NV_MLX5_H
#define NV_MLX5_H

#include "nv_dc_api.h"

#if NV_HAVE_VERBS && !defined(NV_NO_MLX5_HEADERS) && defined(__has_include)
#if __has_include(<infiniband/mlx5dv.h>)
#define NV_HAVE_MLX5 1
#endif
#endif
#ifndef NV_HAVE_MLX5
#define NV_HAVE_MLX5 0
#endif

#if NV_HAVE_MLX5
#include <infiniband/mlx5dv.h>

struct nv_mlx5_calls {
	/* Of libmlx5. */
	bool (*is_supported)(struct ibv_device *device);
	struct ibv_qp *(*create_qp)(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr,
				    struct mlx5dv_qp_init_attr *mlx5);
	struct mlx5dv_qp_ex *(*qp_ex_from_ibv_qp_ex)(struct ibv_qp_ex *qp);
	/* Of libibverbs. */
	struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *qp);
	int (*destroy_qp)(struct ibv_qp *qp);
	struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
	int (*destroy_ah)(struct ibv_ah *ah);
	struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
	int (*destroy_srq)(struct ibv_srq *srq);
};

/* A table over the calls, to be freed; NULL: no memory. */
struct nv_dc_api *nv_mlx5_table(const struct nv_mlx5_calls *calls);
#endif

#endif /* NV_MLX5_H */
