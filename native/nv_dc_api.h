/*
 * The functions behind dynamically connected queue pairs, as a table like that of nv_api.h, of which it is an optional
 * part: nv_dc_open fills one from libmlx5 and libibverbs, a test supplies its own. A DCI sends to whatever target each
 * work request names; a DCT is such a target, and takes what has its number and its access key.
 */
#ifndef NV_DC_API_H
#define NV_DC_API_H

#include "nv_api.h"

#if NV_HAVE_VERBS

struct nv_work; /* nv.h */

/* Where work requests of a DCI go. */
struct nv_dc_to {
	struct ibv_ah *ah;
	uint64_t key;
	uint32_t dct;
};

struct nv_dci_attr {
	struct ibv_cq *cq;
	uint32_t depth;
};

struct nv_dct_attr {
	struct ibv_cq *cq;
	struct ibv_srq *srq; /* nothing is ever received, but a DCT must have one */
	uint64_t key;
};

/*
 * Results are as in nv_api.h. Each function that gets the table finds its state by it. A queue pair made here is
 * changed, asked and destroyed by the functions of nv_api.
 *
 *   - supported returns 1 or 0.
 *   - post gets 1 to 32 requests, WRITEs and READs of at least one byte. It takes all or, when it fails, none.
 *   - An address handle stays until the requests that were posted with it have completed, or their queue pair was
 *     reset.
 *   - create_ah may ask the network for the neighbour, and so wait.
 */
struct nv_dc_api {
	int (*supported)(const struct nv_dc_api *dc, struct ibv_device *device);
	struct ibv_qp *(*create_dci)(const struct nv_dc_api *dc, struct ibv_pd *pd, const struct nv_dci_attr *attr);
	struct ibv_qp *(*create_dct)(const struct nv_dc_api *dc, struct ibv_pd *pd, const struct nv_dct_attr *attr);
	int (*post)(const struct nv_dc_api *dc, struct ibv_qp *dci, const struct nv_dc_to *to,
		    const struct nv_work *work, int count);
	struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
	int (*destroy_ah)(struct ibv_ah *ah);
	struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
	int (*destroy_srq)(struct ibv_srq *srq);
};

#endif /* NV_HAVE_VERBS */
#endif /* NV_DC_API_H */
