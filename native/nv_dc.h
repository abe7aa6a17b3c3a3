/* Dynamically connected queue pairs, of mlx5 adapters. What nv.h says of its functions holds for these too. */
#ifndef NV_DC_H
#define NV_DC_H

#include "nv.h"

/*
 * Opens what DC needs besides libibverbs, by path; NULL: libmlx5.so.1. A library that has it already is left as it is;
 * one of a table has what the table has. On failure the library is as it was, and detail has the words of the dynamic
 * linker, or the name of the missing symbol.
 */
enum nv_unavailable nv_dc_open(struct nv_lib *lib, const char *path, char detail[NV_DETAIL_BYTES]);

/* ENOTSUP: the adapter has no DC, or nv_dc_open did not go well before. It is also what opening an object of it is. */
struct nv_status nv_dc_device(const struct nv_device *device);

struct nv_ah;
struct nv_dci;
struct nv_dct;

/* A peer's port. */
struct nv_address {
	uint8_t gid[16];
	int32_t gid_index; /* of this end */
	uint16_t lid;	   /* on InfiniBand */
	uint8_t global;	   /* it has a GID; on Ethernet it must */
	uint8_t port;	   /* of this end */
	uint8_t hop_limit;
	uint8_t traffic_class;
};

/* It may wait for the network to tell who the neighbour is. */
struct nv_status nv_ah_open(struct nv_pd *pd, const struct nv_address *address, struct nv_ah **ah);
struct nv_status nv_ah_close(struct nv_ah *ah);

struct nv_status nv_dci_open(struct nv_pd *pd, struct nv_cq *cq, int depth, struct nv_dci **dci);
/* For nv_qp_number, nv_qp_state, nv_qp_to_error and nv_qp_to_reset, and no other function. */
struct nv_qp *nv_dci_qp(struct nv_dci *dci);
/* Of the path, port, psn, mtu, reads, timeout and both retries. From the state of a reset to that of sending. */
struct nv_status nv_dci_connect(struct nv_dci *dci, const struct nv_path *path);

/* Where a chain of work requests goes. */
struct nv_target {
	struct nv_ah *ah; /* stays open until they have completed, or the DCI was reset */
	uint64_t key;
	uint32_t dct;
};

/* As nv_qp_post; a work request has at least one byte. One at a time for a DCI. */
struct nv_status nv_dci_post(struct nv_dci *dci, const struct nv_target *to, const struct nv_work *work,
			     int32_t count, int32_t *posted);
struct nv_status nv_dci_close(struct nv_dci *dci);

struct nv_status nv_dct_open(struct nv_pd *pd, struct nv_cq *cq, uint64_t key, struct nv_dct **dct);
/* Of the path, port, access, mtu, gid_index, hop_limit, traffic_class and min_rnr_timer. From now on it answers. */
struct nv_status nv_dct_answer(struct nv_dct *dct, const struct nv_path *path);
/* Good once it answers. */
uint32_t nv_dct_number(const struct nv_dct *dct);
/* One that reports an error may be half closed: then it answers nobody, and only closing it again is left. */
struct nv_status nv_dct_close(struct nv_dct *dct);

#endif /* NV_DC_H */
