/*
 * What the tests of the core on the fake adapter share: two queue pairs of one device, connected to each other, in
 * plain C. The Go test TestCoreOnAnAdapter compiles them with the core and the adapter, once for each sanitizer.
 */
#ifndef TESTDATA_NIC_H
#define TESTDATA_NIC_H

#include "nv.h"

#include "fk.h"

#include <stdio.h>

extern int bad_checks; /* atomic */

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                         \
			printf(__VA_ARGS__);                                                                           \
			printf("\n");                                                                                  \
			__atomic_add_fetch(&bad_checks, 1, __ATOMIC_RELAXED);                                          \
		}                                                                                                      \
	} while (0)

enum { MEMORY = 16384, PIECE = 3000, WORKS = 4, DEPTH = 8 };

struct end {
	struct nv_cq *cq;
	struct nv_qp *qp;
	struct nv_mr *mr;
	struct nv_mr_info keys;
	uint8_t *memory;
	struct nv_path path;
};

struct pair {
	struct nv_lib *lib;
	struct nv_device *device;
	struct nv_pd *pd;
	struct end near, far;
};

/* An adapter "fake0" with one device. */
struct fk_nic *nic_new(const struct fk_options *options);
/* Checks that nothing is open and no rule of the adapter was broken, and frees it. */
void nic_end(struct fk_nic *nic, const char *what);

/* Makes a pair up to the first call that fails; pair_close takes what was made. */
struct nv_status pair_open(struct fk_nic *nic, struct pair *p);
/* Makes one end of a pair. */
struct nv_status end_open(struct pair *p, struct end *e, int rights);
struct nv_status end_connect(struct end *e, const struct end *to);
/* Closes; what fails is tried again. The status is the first failure's. */
struct nv_status end_close(struct end *e);
struct nv_status pair_close(struct pair *p);

/* Work requests of both opcodes between the same offsets of both ends. */
void works_of(const struct pair *p, struct nv_work works[WORKS]);

void test_faults(void);
void test_hostile(void);
void test_threads(void);

#endif /* TESTDATA_NIC_H */
