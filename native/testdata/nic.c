/* The tests of the core on the fake adapter: see nic.h. */
#define _GNU_SOURCE
#include "nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int bad_checks;

struct fk_nic *nic_new(const struct fk_options *options)
{
	struct fk_nic *nic = fk_new(options);
	struct fk_device_options device = {
		.name = "fake0", .guid = 1, .mtu = 3, .lid = 1, .max_qp = 1 << 10, .max_cq = 1 << 10, .max_cqe = 1 << 10,
		.max_wr = 1 << 10, .max_mr = 1 << 10, .max_rd = 4, .max_mr_bytes = 1 << 30, .max_message = 1 << 30,
		.gids = {[1] = {.raw = {[10] = 0xff, 0xff, 10, 99, 0, 1}, .type = NV_GID_ROCE_V2, .netdev = "fk0"}},
	};

	if (!nic || fk_add_device(nic, &device) != 0)
		abort();
	return nic;
}

void nic_end(struct fk_nic *nic, const char *what)
{
	struct fk_counters n;

	fk_read_counters(nic, &n);
	CHECK(n.contexts + n.pds + n.mrs + n.channels + n.cqs + n.qps == 0,
	      "%s: open: %d contexts, %d PDs, %d MRs, %d channels, %d CQs, %d QPs", what, (int)n.contexts, (int)n.pds,
	      (int)n.mrs, (int)n.channels, (int)n.cqs, (int)n.qps);
	for (int i = 0; i < fk_violations(nic); i++) {
		char text[FK_TEXT];

		fk_violation(nic, i, text);
		CHECK(0, "%s: %s", what, text);
	}
	fk_close(nic);
}

struct nv_status end_open(struct pair *p, struct end *e, int rights)
{
	struct nv_status s;

	e->memory = calloc(1, MEMORY);
	if (!e->memory)
		abort();
	e->path = (struct nv_path){
		.psn = 0xfffffe, .peer_psn = 0xfffffe, .mtu = 1024, .gid_index = 1, .port = 1, .reads = 2,
		.access = rights & ~NV_LOCAL_WRITE, .hop_limit = 64, .timeout = 14, .retries = 6, .rnr_retries = 6,
		.min_rnr_timer = 12, .peer_gid = {[10] = 0xff, 0xff, 10, 99, 0, 1},
	};
	s = nv_cq_open(p->device, 2 * DEPTH, &e->cq);
	if (!s.err)
		s = nv_mr_open(p->pd, e->memory, MEMORY, rights, &e->mr);
	if (!s.err)
		s = nv_qp_open(p->pd, e->cq, (struct nv_depths){.works = DEPTH}, &e->qp);
	if (!s.err)
		nv_mr_info(e->mr, &e->keys);
	return s;
}

struct nv_status end_connect(struct end *e, const struct end *to)
{
	struct nv_status s;

	e->path.peer_qpn = nv_qp_number(to->qp);
	s = nv_qp_to_init(e->qp, &e->path);
	if (!s.err)
		s = nv_qp_to_receive(e->qp, &e->path);
	if (!s.err)
		s = nv_qp_to_send(e->qp, &e->path);
	return s;
}

struct nv_status pair_open(struct fk_nic *nic, struct pair *p)
{
	struct nv_status s;

	memset(p, 0, sizeof(*p));
	if (nv_open_table(fk_table(nic), &p->lib) != NV_AVAILABLE)
		abort();
	s = nv_device_open(p->lib, "fake0", &p->device);
	if (!s.err)
		s = nv_pd_open(p->device, &p->pd);
	if (!s.err)
		s = end_open(p, &p->near, NV_LOCAL_WRITE);
	if (!s.err)
		s = end_open(p, &p->far, NV_LOCAL_WRITE | NV_REMOTE_WRITE | NV_REMOTE_READ);
	if (!s.err)
		s = end_connect(&p->far, &p->near);
	if (!s.err)
		s = end_connect(&p->near, &p->far);
	return s;
}

/* Closes one; one that fails is tried again, as its owner may. */
#define CLOSE(what, function)                                                                                          \
	do {                                                                                                           \
		struct nv_status s = what ? function(what) : (struct nv_status){NULL, 0};                              \
		if (s.err && !first.err)                                                                               \
			first = s;                                                                                     \
		for (int i = 0; s.err && i < 100; i++)                                                                 \
			s = function(what);                                                                            \
		CHECK(!s.err, "%s: %d", s.call, s.err);                                                                \
		what = NULL;                                                                                           \
	} while (0)

struct nv_status end_close(struct end *e)
{
	struct nv_status first = {NULL, 0};

	CLOSE(e->qp, nv_qp_close);
	CLOSE(e->mr, nv_mr_close);
	CLOSE(e->cq, nv_cq_close);
	free(e->memory);
	e->memory = NULL;
	return first;
}

struct nv_status pair_close(struct pair *p)
{
	struct nv_status first = end_close(&p->near), far = end_close(&p->far);

	if (!first.err)
		first = far;
	CLOSE(p->pd, nv_pd_close);
	CLOSE(p->device, nv_device_close);
	nv_release(p->lib);
	return first;
}

void works_of(const struct pair *p, struct nv_work works[WORKS])
{
	for (int i = 0; i < WORKS; i++) {
		uint64_t at = (uint64_t)i * PIECE;

		works[i] = (struct nv_work){
			.id = 7000 + (uint64_t)i, .local = p->near.keys.addr + at, .remote = p->far.keys.addr + at,
			.length = PIECE, .lkey = p->near.keys.lkey, .rkey = p->far.keys.rkey,
			.op = i % 2 ? NV_READ : NV_WRITE, .signal = 1,
		};
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	if (argc != 2)
		return 2;
	if (strcmp(argv[1], "faults") == 0)
		test_faults();
	else if (strcmp(argv[1], "hostile") == 0)
		test_hostile();
	else if (strcmp(argv[1], "threads") == 0)
		test_threads();
	else
		return 2;
	if (bad_checks)
		printf("%d checks failed\n", bad_checks);
	return bad_checks != 0;
}
