/* The verbs library, opened when rc is tried. */
#define _GNU_SOURCE
#include "cs_rc.h"

#include <dlfcn.h>
#include <string.h>

/*
 * A fork shares the pages of parent and child until one of them writes, and the writer gets the copy: an adapter would go on
 * with the other one's page, and what it writes would be lost. Kernels since 5.12 copy pinned pages at the fork. The
 * library's own cure for others, ibv_fork_init, leaves whole pages out of the child, those of malloc too, so that is the
 * application's to choose.
 */
static int survives_forks(void)
{
	enum { ENABLED = 1, UNNEEDED = 2 }; /* enum ibv_fork_status; older headers lack it */
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *found = library ? dlsym(library, "ibv_is_fork_initialized") : NULL;
	int (*status)(void) = NULL;

	memcpy(&status, &found, sizeof status);
	int how = status ? status() : 0;

	if (library)
		dlclose(library); /* it stays open: nv_open has it */
	return how == ENABLED || how == UNNEEDED;
}

int cs_verbs_open(struct nv_lib **lib, struct cs_why *why)
{
	char detail[NV_DETAIL_BYTES];

	switch (nv_open(NULL, lib, detail)) {
	case NV_AVAILABLE:
		break;
	case NV_NO_HEADERS_BUILT:
		return cs_fail(why, "the library was built without the headers of libibverbs");
	case NV_NO_LIBRARY:
		return cs_fail(why, "libibverbs does not open: %.150s", detail);
	case NV_NO_SYMBOL:
		return cs_fail(why, "libibverbs has no %.100s", detail);
	default:
		return cs_fail(why, "no memory");
	}
	if (survives_forks())
		return 0;
	nv_release(*lib);
	return cs_fail(why, "memory of an adapter would not be safe in a fork: Linux 5.12 and rdma-core 35 are needed");
}
