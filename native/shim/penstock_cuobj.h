/*
 * libpenstock-cuobj-shim: tokens for S3 clients that load a library to make them. The environment says which node, with
 * which keys; docs/operations.md has the variables. Any thread may call any function; none waits longer than about
 * 20 s. After a fork the child has a session of its own, and no memory or token of its parent.
 */
#ifndef PENSTOCK_CUOBJ_H
#define PENSTOCK_CUOBJ_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_CUOBJ_API __attribute__((visibility("default")))

/* 1: a node gave this process a session, or has given one before that still lives; 0: not, see the last error. */
PENSTOCK_CUOBJ_API int cuobj_available(void);

/*
 * Books memory: 0, or -1. It must stay readable, writable and in place until it is deregistered as many times.
 * Deregistering releases tokens that are left. -1 from it means that the memory was not registered, or that the server did not
 * confirm that it lets go of it: then the memory must not be used for anything else, ever.
 */
PENSTOCK_CUOBJ_API int cuobj_register_buffer(void *ptr, size_t size);
PENSTOCK_CUOBJ_API int cuobj_deregister_buffer(void *ptr);

/*
 * A token for one request over [ptr + offset, + size) of memory registered at ptr: for a PUT, or else for a GET. The text
 * is the library's, until the token is put back; NULL: see the last error. It is a secret.
 */
PENSTOCK_CUOBJ_API const char *cuobj_get_rdma_token(void *ptr, size_t size, size_t offset, int is_put);

/* Takes a token back; 0 also for an unknown one. Afterwards no request can touch its window. -1: as above. */
PENSTOCK_CUOBJ_API int cuobj_put_rdma_token(const char *token);

/* The same under the names that another loader looks for. */
PENSTOCK_CUOBJ_API int kvikio_cuobj_available(void);
PENSTOCK_CUOBJ_API int kvikio_cuobj_register_buffer(void *ptr, size_t size);
PENSTOCK_CUOBJ_API int kvikio_cuobj_deregister_buffer(void *ptr);
PENSTOCK_CUOBJ_API const char *kvikio_cuobj_get_rdma_token(void *ptr, size_t size, size_t offset, int is_put);
PENSTOCK_CUOBJ_API int kvikio_cuobj_put_rdma_token(const char *token);

/* Why the calling thread's last failed call failed, for people; it has no secrets. */
PENSTOCK_CUOBJ_API const char *penstock_cuobj_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
