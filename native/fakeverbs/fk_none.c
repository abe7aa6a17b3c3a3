//go:build cgo

/* Where infiniband/verbs.h is missing there is no fake adapter: fk_supported says so, and nothing else is called. */

#include "fk_nic.h"

#if !NV_HAVE_VERBS

int fk_supported(void) { return 0; }
struct fk_nic *fk_new(const struct fk_options *o) { (void)o; return NULL; }
int fk_add_device(struct fk_nic *n, const struct fk_device_options *o) { (void)n; (void)o; return -1; }
void fk_close(struct fk_nic *n) { (void)n; }
void *fk_table(struct fk_nic *n) { (void)n; return NULL; }
int fk_step(struct fk_nic *n) { (void)n; return 0; }
uint64_t fk_now(struct fk_nic *n) { (void)n; return 0; }
uint64_t fk_advance(struct fk_nic *n, uint64_t t) { (void)n; (void)t; return 0; }
uint64_t fk_changes(struct fk_nic *n) { (void)n; return 0; }
void fk_await(struct fk_nic *n, uint64_t s, int t) { (void)n; (void)s; (void)t; }
int fk_busy(struct fk_nic *n) { (void)n; return 0; }
int fk_inject(struct fk_nic *n, const struct fk_rule_options *o) { (void)n; (void)o; return -1; }
uint64_t fk_rule_hits(struct fk_nic *n, int r) { (void)n; (void)r; return 0; }
void fk_rule_release(struct fk_nic *n, int r) { (void)n; (void)r; }
void fk_rule_remove(struct fk_nic *n, int r) { (void)n; (void)r; }
void fk_set_port(struct fk_nic *n, int d, int up) { (void)n; (void)d; (void)up; }
void fk_set_gid(struct fk_nic *n, int d, int i, const struct fk_gid *g) { (void)n; (void)d; (void)i; (void)g; }
void fk_set_fatal(struct fk_nic *n, int d) { (void)n; (void)d; }
void fk_fail_qp(struct fk_nic *n, uint32_t q) { (void)n; (void)q; }
int fk_owned(struct fk_nic *n, uint64_t a, uint64_t l) { (void)n; (void)a; (void)l; return 0; }
uint64_t fk_mark(struct fk_nic *n) { (void)n; return 0; }
int fk_accesses(struct fk_nic *n, uint64_t m, uint64_t a, uint64_t l, struct fk_access *o, int x)
{
	(void)n; (void)m; (void)a; (void)l; (void)o; (void)x;
	return 0;
}
int fk_violations(struct fk_nic *n) { (void)n; return 0; }
void fk_violation(struct fk_nic *n, int i, char t[FK_TEXT]) { (void)n; (void)i; t[0] = 0; }
void fk_read_counters(struct fk_nic *n, struct fk_counters *o) { (void)n; (void)o; }
int fk_read_qp_counters(struct fk_nic *n, uint32_t q, struct fk_qp_counters *o)
{
	(void)n; (void)q; (void)o;
	return 0;
}

#endif /* !NV_HAVE_VERBS */
