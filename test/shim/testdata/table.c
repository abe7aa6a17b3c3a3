/* In the place of cs_verbs.c: a table of functions that the test's process gives. */
#include "cs_rc.h"
#include "penstock_cuobj.h"

static _Atomic(const void *) table;

PENSTOCK_CUOBJ_API void penstock_cuobj_test_verbs(const void *given);

void penstock_cuobj_test_verbs(const void *given)
{
	atomic_store(&table, given);
}

int cs_verbs_open(struct nv_lib **lib, struct cs_why *why)
{
	return nv_open_table(atomic_load(&table), lib) == NV_AVAILABLE ? 0 : cs_fail(why, "no table of verbs");
}
