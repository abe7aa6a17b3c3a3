/* The verbs library, opened when rc is tried. */
#define _GNU_SOURCE
#include "cs_rc.h"

#include <dlfcn.h>
#include <string.h>

/*
 * A fork shares the pages of parent and child until one of them writes, and the writer gets the copy: an adapter would go on
 * with the other one's page. Newer kernels copy pinned pages at the fork; elsewhere the library must be told before memory
 * is registered, which then is not in children.
 */
static int survive_forks(struct cs_why *why)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *found = library ? dlsym(library, "ibv_fork_init") : NULL;
	int (*init)(void) = NULL;

	memcpy(&init, &found, sizeof init);
	int bad = !init || init() != 0;

	if (library)
		dlclose(library); /* it stays open: nv_open has it */
	return bad ? cs_fail(why, "this process has used verbs before ibv_fork_init, so its memory would not be safe in a fork")
		   : 0;
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
	if (survive_forks(why) == 0)
		return 0;
	nv_release(*lib);
	return -1;
}
