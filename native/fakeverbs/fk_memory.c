//go:build cgo

#include "fk_nic.h"

#if NV_HAVE_VERBS

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Protection domains ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct fk_ctx *ctx = fk_ctx_of(context);
	struct fk_nic *nic = ctx->dev->nic;

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_ALLOC_PD, ctx->dev, 0);

	if (!err && ctx->dead) {
		fk_blame(nic, "alloc_pd: context is closed");
		err = EINVAL;
	}
	if (!err && ctx->dev->fatal)
		err = EIO;
	if (err) {
		fk_leave(nic);
		errno = err;
		return NULL;
	}
	struct fk_pd *pd = fk_alloc(nic, sizeof(*pd));

	pd->ctx = ctx;
	pd->pd.context = context;
	ctx->users++;
	nic->n.pds++;
	fk_leave(nic);
	return &pd->pd;
}

static int dealloc_pd(struct ibv_pd *ibpd)
{
	struct fk_pd *pd = (struct fk_pd *)ibpd;
	struct fk_nic *nic = pd->ctx->dev->nic;
	int rc = 0;

	fk_enter(nic);
	if (pd->dead) {
		fk_blame(nic, "dealloc_pd: destroyed before");
		rc = EINVAL;
	} else if (pd->users > 0) {
		fk_blame(nic, "dealloc_pd: %llu objects still use it", (unsigned long long)pd->users);
		rc = EBUSY;
	} else {
		pd->dead = true;
		pd->ctx->users--;
		nic->n.pds--;
		fk_changed(nic);
	}
	fk_leave(nic);
	return rc;
}

/* ---- Memory regions ---- */

/* mapped says whether all pages are there: mincore refuses a range with a hole. */
static bool mapped(void *addr, size_t length)
{
	uintptr_t page = (uintptr_t)getpagesize();
	uintptr_t from = (uintptr_t)addr & ~(page - 1), to = (uintptr_t)addr + length;
	unsigned char seen[4096];

	while (from < to) {
		uintptr_t n = to - from;

		if (n > page * sizeof(seen))
			n = page * sizeof(seen);
		if (mincore((void *)from, n, seen) != 0)
			return false;
		from += n;
	}
	return true;
}

/* Keys are never used again: the lower byte and the order make a stale one meet nothing. */
static uint32_t new_key(struct fk_nic *nic)
{
	nic->next_key += 0x101 + (uint32_t)(fk_random(nic) & 0xff) * 0x100;
	return nic->next_key ? nic->next_key : ++nic->next_key;
}

static struct fk_mr *find(struct fk_mr *mr, uint32_t key, bool remote)
{
	while (mr && (remote ? mr->mr.rkey : mr->mr.lkey) != key)
		mr = remote ? mr->next_rkey : mr->next_lkey;
	return mr;
}

static int check_mr(struct fk_nic *nic, struct fk_pd *pd, size_t length, int access)
{
	const int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			  IBV_ACCESS_RELAXED_ORDERING;
	struct fk_device *dev = pd->ctx->dev;
	int err = fk_call_rule(nic, FK_AT_REG_MR, dev, 0);

	if (err)
		return err;
	if (pd->dead) {
		fk_blame(nic, "reg_mr: protection domain is destroyed");
		return EINVAL;
	}
	if (dev->fatal)
		return EIO;
	if ((access & ~known) != 0 || ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)))
		return EINVAL;
	if (length == 0 || length > dev->o.max_mr_bytes)
		return EINVAL;
	if (dev->mrs >= (uint64_t)dev->o.max_mr)
		return ENOMEM;
	return 0;
}

static struct fk_mr *add_mr(struct fk_nic *nic, struct fk_pd *pd, size_t length, int access)
{
	struct fk_mr *mr = fk_alloc(nic, sizeof(*mr));

	mr->pd = pd;
	mr->access = access;
	mr->mr.context = pd->pd.context;
	mr->mr.pd = &pd->pd;
	mr->mr.length = length;
	mr->mr.lkey = new_key(nic);
	mr->mr.rkey = new_key(nic);
	struct fk_mr **l = &nic->lkeys[mr->mr.lkey % FK_BUCKETS], **r = &nic->rkeys[mr->mr.rkey % FK_BUCKETS];

	mr->next_lkey = *l;
	mr->next_rkey = *r;
	*l = mr;
	*r = mr;
	pd->users++;
	pd->ctx->dev->mrs++;
	nic->n.mrs++;
	return mr;
}

static struct ibv_mr *reg_mr(struct ibv_pd *ibpd, void *addr, size_t length, int access)
{
	struct fk_pd *pd = (struct fk_pd *)ibpd;
	struct fk_nic *nic = pd->ctx->dev->nic;
	struct fk_mr *mr = NULL;

	fk_enter(nic);
	int err = check_mr(nic, pd, length, access);

	if (!err && ((uintptr_t)addr + length < (uintptr_t)addr || !mapped(addr, length)))
		err = EFAULT;
	if (!err) {
		mr = add_mr(nic, pd, length, access);
		mr->mr.addr = addr;
		mr->iova = (uintptr_t)addr;
		mr->host = addr;
	}
	fk_leave(nic);
	errno = err;
	return mr ? &mr->mr : NULL;
}

/* Any file that can be mapped stands for a dma-buf. */
static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *ibpd, uint64_t offset, size_t length, uint64_t iova, int fd,
				    int access)
{
	struct fk_pd *pd = (struct fk_pd *)ibpd;
	struct fk_nic *nic = pd->ctx->dev->nic;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skew = offset % page;
	int prot = PROT_READ | (access & IBV_ACCESS_LOCAL_WRITE ? PROT_WRITE : 0);
	struct fk_mr *mr = NULL;
	void *map = MAP_FAILED;

	fk_enter(nic);
	int err = check_mr(nic, pd, length, access);

	if (!err && iova % page != skew)
		err = EINVAL;
	if (!err) {
		off_t end = lseek(fd, 0, SEEK_END);

		if (end < 0)
			err = errno;
		else if (offset > (uint64_t)end || length > (uint64_t)end - offset)
			err = EINVAL;
	}
	if (!err) {
		map = mmap(NULL, length + skew, prot, MAP_SHARED, fd, (off_t)(offset - skew));
		if (map == MAP_FAILED)
			err = errno;
	}
	if (!err) {
		mr = add_mr(nic, pd, length, access);
		mr->iova = iova;
		mr->host = (uint8_t *)map + skew;
		mr->mapping = map;
		mr->mapping_len = length + skew;
	}
	fk_leave(nic);
	errno = err;
	return mr ? &mr->mr : NULL;
}

static void unlink_mr(struct fk_mr **at, struct fk_mr *mr, bool remote)
{
	while (*at != mr)
		at = remote ? &(*at)->next_rkey : &(*at)->next_lkey;
	*at = remote ? mr->next_rkey : mr->next_lkey;
}

static int dereg_mr(struct ibv_mr *ibmr)
{
	struct fk_mr *mr = (struct fk_mr *)ibmr;
	struct fk_nic *nic = mr->pd->ctx->dev->nic;

	fk_enter(nic);
	int err = fk_call_rule(nic, FK_AT_DEREG_MR, mr->pd->ctx->dev, 0);

	if (!err && mr->dead) {
		fk_blame(nic, "dereg_mr: destroyed before");
		err = EINVAL;
	}
	if (err) {
		fk_leave(nic);
		return err;
	}
	for (struct fk_qp *qp = nic->qps; qp; qp = qp->next)
		for (uint64_t i = qp->una; !qp->dead && i < qp->tail; i++)
			if (qp->sq[i % qp->cap.max_send_wr].lkey == mr->mr.lkey) {
				fk_blame(nic, "dereg_mr: work request %llu of queue pair %u still uses it",
					 (unsigned long long)qp->sq[i % qp->cap.max_send_wr].id, qp->qp.qp_num);
				i = qp->tail;
			}
	unlink_mr(&nic->lkeys[mr->mr.lkey % FK_BUCKETS], mr, false);
	unlink_mr(&nic->rkeys[mr->mr.rkey % FK_BUCKETS], mr, true);
	if (mr->mapping)
		munmap(mr->mapping, mr->mapping_len);
	mr->dead = true;
	mr->pd->users--;
	mr->pd->ctx->dev->mrs--;
	nic->n.mrs--;
	fk_changed(nic);
	fk_leave(nic);
	return 0;
}

/* ---- Lookups of the data path ---- */

static uint8_t *reach(struct fk_mr *mr, struct fk_pd *pd, uint64_t addr, uint64_t len, int need)
{
	if (!mr || mr->pd != pd || (mr->access & need) != need)
		return NULL;
	if (addr < mr->iova || len > mr->mr.length || addr - mr->iova > mr->mr.length - len)
		return NULL;
	return mr->host + (addr - mr->iova);
}

uint8_t *fk_local(struct fk_nic *nic, struct fk_qp *qp, uint32_t lkey, uint64_t addr, uint64_t len, bool write)
{
	return reach(find(nic->lkeys[lkey % FK_BUCKETS], lkey, false), qp->pd, addr, len,
		     write ? IBV_ACCESS_LOCAL_WRITE : 0);
}

uint8_t *fk_remote(struct fk_nic *nic, struct fk_qp *qp, uint32_t rkey, uint64_t addr, uint64_t len, bool write)
{
	return reach(find(nic->rkeys[rkey % FK_BUCKETS], rkey, true), qp->pd, addr, len,
		     write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
}

/*
 * fk_present says whether registered memory is still there, at the beginning of a message. A real adapter pins pages,
 * so it would go on with memory that nobody sees any more; here the test shall fail, and not crash if it can be.
 */
bool fk_present(struct fk_nic *nic, struct fk_qp *qp, uint8_t *host, uint32_t len)
{
	if (mapped(host, len))
		return true;
	fk_blame(nic, "queue pair %u: %u bytes of registered memory are not mapped any more", qp->qp.qp_num, len);
	return false;
}

/* FNV-1a over words: good enough to see that somebody changed a buffer. */
uint64_t fk_hash(const uint8_t *p, uint64_t len)
{
	uint64_t h = 0xcbf29ce484222325u, word;

	for (; len >= 8; p += 8, len -= 8) {
		memcpy(&word, p, 8);
		h = (h ^ word) * 0x100000001b3u;
		h ^= h >> 29;
	}
	for (; len > 0; p++, len--)
		h = (h ^ *p) * 0x100000001b3u;
	return h;
}

void fk_fill_memory_calls(struct nv_api *api)
{
	api->alloc_pd = alloc_pd;
	api->dealloc_pd = dealloc_pd;
	api->reg_mr = reg_mr;
	api->reg_dmabuf_mr = reg_dmabuf_mr;
	api->dereg_mr = dereg_mr;
}

#endif /* NV_HAVE_VERBS */
