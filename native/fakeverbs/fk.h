/*
 * The fake adapter as the Go package sees it. Everything here is plain C without verbs types, so that the package
 * also builds where infiniband/verbs.h is missing; fk_supported says which it was. All functions may be called from
 * any thread. Times are nanoseconds.
 */
#ifndef FK_H
#define FK_H

#include <stddef.h>
#include <stdint.h>

struct fk_nic;

/* Where a rule applies. */
enum fk_point {
	FK_AT_OPEN_DEVICE,
	FK_AT_QUERY_PORT,
	FK_AT_ALLOC_PD,
	FK_AT_REG_MR,
	FK_AT_DEREG_MR,
	FK_AT_CREATE_CHANNEL,
	FK_AT_CREATE_CQ,
	FK_AT_CREATE_QP,
	FK_AT_DESTROY_QP,
	FK_AT_RESET,
	FK_AT_INIT,
	FK_AT_RTR,
	FK_AT_RTS,
	FK_AT_ERROR,
	FK_AT_POST,
	FK_AT_POLL,
	FK_AT_NOTIFY,
	FK_AT_CREATE_AH,
	FK_AT_DESTROY_AH,
	FK_AT_WORK,
	FK_AT_WRITE_PACKET,
	FK_AT_READ_REQUEST,
	FK_AT_READ_RESPONSE,
	FK_AT_ACK,
};

/* What a rule does. */
enum fk_effect {
	FK_FAIL,  /* calls: an errno; work requests: a status; packets: lost */
	FK_HOLD,  /* calls wait, completions and packets are kept, until released */
	FK_SHORT, /* a READ that completes well with fewer bytes */
	FK_LOSE,  /* no completion */
	FK_TWICE, /* two completions, two packets */
	FK_LIE,   /* a work request that completes well and did not: its queue pair fails */
};

enum { FK_GIDS = 16, FK_NAME = 64, FK_NETDEV = 16, FK_TEXT = 256 };

struct fk_gid {
	uint8_t raw[16];
	int type; /* as in native.GIDType */
	char netdev[FK_NETDEV];
};

struct fk_device_options {
	char name[FK_NAME];
	uint64_t guid;
	int numa;
	int mtu;      /* enum ibv_mtu */
	int infiniband; /* link layer; else Ethernet */
	uint32_t lid;
	int gid_count;
	struct fk_gid gids[FK_GIDS];
	int max_qp, max_cq, max_cqe, max_wr, max_mr, max_rd;
	uint64_t max_mr_bytes;
	uint32_t max_message;
	int no_dc;
};

struct fk_options {
	uint64_t seed;
	uint64_t latency, jitter; /* of the network, one way */
	uint64_t packet_time;     /* between two packets of one queue pair */
	uint64_t flush_time;      /* from the error state to the flushed completions */
	double timeout_scale;     /* of acknowledgement timeouts */
	int stepped;              /* no thread: fk_step moves things */
	int poison;
	int keep_completions; /* a reset leaves completions in the queue */
	int reuse_numbers;    /* of queue pairs, at once */
	int shuffle;          /* what is due at the same time runs in an order chosen by the seed */
	int log;              /* accesses that are remembered */
};

struct fk_rule_options {
	int point, effect;
	int device;   /* index, or -1 for any */
	uint32_t qpn; /* 0: any */
	int op;       /* as in native.Opcode; 0: any */
	uint64_t skip;
	int64_t times; /* less than 0: for ever */
	int err;
	uint32_t status, vendor;
	uint64_t bytes;
	uint32_t batch;
	int late;     /* what is held outlives a reset */
	int overtake; /* completions behind a held one pass it */
};

struct fk_access {
	uint64_t seq, addr, len, work;
	uint32_t qpn;
	uint8_t write, remote;
};

struct fk_counters {
	uint64_t posts, works, polls, completions, packets, retries, duplicates, dropped, gids, not_ready;
	uint64_t write_bytes, read_bytes; /* that reached memory, each once */
	uint64_t contexts, pds, mrs, channels, cqs, qps, ahs, srqs; /* now */
};

struct fk_qp_counters {
	uint64_t works, write_bytes, read_bytes, owned; /* owned: work requests now */
	int state;
};

int fk_supported(void);
struct fk_nic *fk_new(const struct fk_options *options);
int fk_add_device(struct fk_nic *nic, const struct fk_device_options *options);
/* Stops the thread. Frees everything if no object is open; else the objects stay, so that late calls are harmless. */
void fk_close(struct fk_nic *nic);
/* The struct nv_api. */
void *fk_table(struct fk_nic *nic);

/* Does what is due next and returns 1; 0 when nothing is under way. Of stepped adapters only. */
int fk_step(struct fk_nic *nic);
/* The adapter's clock. */
uint64_t fk_now(struct fk_nic *nic);
/* Does what is due within a time and sets the clock there; how many things that were. Of stepped adapters only. */
uint64_t fk_advance(struct fk_nic *nic, uint64_t time);
/* A number that changes when something may have changed, and the wait for that. */
uint64_t fk_changes(struct fk_nic *nic);
void fk_await(struct fk_nic *nic, uint64_t seen, int timeout_ms);
/* Whether something is under way. */
int fk_busy(struct fk_nic *nic);

int fk_inject(struct fk_nic *nic, const struct fk_rule_options *options);
uint64_t fk_rule_hits(struct fk_nic *nic, int rule);
void fk_rule_release(struct fk_nic *nic, int rule);
void fk_rule_remove(struct fk_nic *nic, int rule);

void fk_set_port(struct fk_nic *nic, int device, int up);
void fk_set_gid(struct fk_nic *nic, int device, int index, const struct fk_gid *gid);
void fk_set_fatal(struct fk_nic *nic, int device);
void fk_fail_qp(struct fk_nic *nic, uint32_t qpn);

int fk_owned(struct fk_nic *nic, uint64_t addr, uint64_t len);
uint64_t fk_mark(struct fk_nic *nic);
/* Accesses to [addr, addr+len) after mark, at most max, oldest first; -1 when the log no longer reaches back to it. */
int fk_accesses(struct fk_nic *nic, uint64_t mark, uint64_t addr, uint64_t len, struct fk_access *out, int max);
int fk_violations(struct fk_nic *nic);
void fk_violation(struct fk_nic *nic, int index, char text[FK_TEXT]);
void fk_read_counters(struct fk_nic *nic, struct fk_counters *out);
/* 0 when there is no such queue pair. */
int fk_read_qp_counters(struct fk_nic *nic, uint32_t qpn, struct fk_qp_counters *out);

#endif /* FK_H */
