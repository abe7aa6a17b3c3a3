/*
 * The fake adapter inside. One mutex guards everything of an fk_nic. Time is that of a discrete event simulation:
 * what is under way stands in a heap of acts, and what an act causes is dated from the time at which the act was due,
 * not from the time at which the thread came to run it. So a slow machine makes tests slower, but no timeout expires
 * because of it.
 *
 * Objects that the program destroyed stay allocated, marked dead, until the adapter is closed: using one is found,
 * and a packet that is under way survives the queue pair that sent it.
 */
#ifndef FK_NIC_H
#define FK_NIC_H

#include "fk.h"
#include "nv_api.h"
#include "nv_dc_api.h"

#if NV_HAVE_VERBS

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
	FK_BUCKETS = 4096,
	FK_WINDOW = 64,        /* packets of a WRITE that are sent before one of them is acknowledged */
	FK_ACK_EVERY = 16,     /* packets, and the last of each message */
	FK_EGRESS = 256,       /* packets of answers that may be under way from one queue pair */
	FK_MAX_VIOLATIONS = 256,
	FK_MAX_DEVICES = 16,
	FK_PSN_MASK = 0xffffff,
};

enum fk_act_kind { FK_ACT_SEND, FK_ACT_TIMER, FK_ACT_RESPOND, FK_ACT_WIRE, FK_ACT_FLUSH, FK_ACT_LOOSE };

/* Something that is due at a time. */
struct fk_act {
	uint64_t due, tie;
	size_t at; /* position in the heap + 1; 0: not in it */
	enum fk_act_kind kind;
	void *owner;
};

enum fk_packet_kind { FK_WRITE, FK_READ, FK_RESPONSE, FK_ACKNOWLEDGE };

enum fk_ack_code { FK_ACK_OK, FK_NAK_SEQUENCE, FK_NAK_INVALID, FK_NAK_ACCESS, FK_NAK_NOT_READY };

struct fk_packet {
	struct fk_packet *next;
	struct fk_act act; /* when it travels alone */
	enum fk_packet_kind kind;
	struct fk_device *from;
	union ibv_gid sgid, dgid;
	int gid_type;
	uint16_t dlid, slid;
	uint32_t sqpn, dqpn, psn;
	uint64_t due;
	bool first, last, ack_request;
	bool has_imm;        /* of the last packet of a WRITE */
	uint32_t imm;        /* as on the wire */
	enum fk_ack_code code;
	uint32_t wait;       /* of FK_NAK_NOT_READY: the code of a time */
	uint32_t session, session_psn; /* of dynamic connections, else 0 */
	uint64_t key;
	uint64_t remote; /* of a first WRITE packet and a READ */
	uint32_t rkey, total;
	uint32_t len;
	uint8_t data[];
};

struct fk_rule {
	struct fk_rule_options o;
	uint64_t hits;
	bool released, removed;
	struct fk_packet *held, **held_end;
};

struct fk_device {
	struct ibv_device device;
	struct fk_nic *nic;
	struct fk_device_options o;
	int index;
	bool up, fatal;
	uint64_t qps, cqs, mrs;
};

struct fk_event {
	struct fk_event *next;
	struct ibv_async_event event;
};

struct fk_ctx {
	struct ibv_context ctx;
	struct fk_device *dev;
	struct fk_ctx *next; /* of all of the adapter */
	struct fk_event *events, **events_end;
	uint64_t users;
	bool dead;
};

struct fk_pd {
	struct ibv_pd pd;
	struct fk_ctx *ctx;
	uint64_t users;
	bool dead;
};

struct fk_mr {
	struct ibv_mr mr;
	struct fk_pd *pd;
	uint64_t iova;
	uint8_t *host;
	void *mapping; /* of a dma-buf */
	size_t mapping_len;
	int access;
	struct fk_mr *next_lkey, *next_rkey;
	bool dead;
};

struct fk_ah {
	struct ibv_ah ah;
	struct fk_pd *pd;
	struct ibv_ah_attr attr;
	uint64_t users; /* work requests */
	bool dead;
};

struct fk_srq {
	struct ibv_srq srq;
	struct fk_pd *pd;
	uint64_t users;
	bool dead;
};

struct fk_channel {
	struct ibv_comp_channel channel;
	struct fk_ctx *ctx;
	struct fk_cq **queue; /* ring */
	size_t head, count, room;
	uint64_t users;
	bool dead;
};

struct fk_cqe {
	struct ibv_wc wc;
	struct fk_qp *qp;
	uint64_t upto; /* work requests below are released when it is polled; after a reset they are already */
};

struct fk_cq {
	struct ibv_cq cq;
	struct fk_ctx *ctx;
	struct fk_cqe *ring;
	uint32_t head, count, depth;
	uint64_t users;
	uint64_t unacked, unacked_async;
	bool armed, armed_solicited, broken, dead;
};

struct fk_held {
	struct fk_held *next;
	struct fk_cqe cqe;
	struct fk_rule *rule; /* NULL: waits behind another */
};

struct fk_work {
	uint64_t id, local, remote;
	uint32_t len, lkey, rkey;
	bool read, signaled, started, done;
	bool has_imm;
	uint32_t imm; /* as on the wire */
	uint32_t psn, npsn;
	uint32_t got; /* packets of a READ's answer */
	uint32_t fail; /* enum ibv_wc_status to end with; 0: none */
	uint32_t vendor;
	uint32_t limit; /* packets before that */
	uint32_t cut;   /* bytes of a short READ */
	bool is_short;
	bool lie; /* what it fails with is reported as success */
	struct fk_rule *rule; /* of its completion */
	uint64_t hash;
	struct fk_ah *ah; /* where it goes, of a DCI */
	uint32_t dct;
	uint64_t key;
};

enum fk_job_kind { FK_JOB_READ, FK_JOB_ACK };

struct fk_job {
	struct fk_job *next;
	enum fk_job_kind kind;
	uint32_t psn;
	enum fk_ack_code code;
	uint64_t remote;
	uint32_t rkey, len, done;
	bool again; /* a READ that was asked for before */
};

/* FK_DCR is the end that a DCT has for each DCI that has connected to it: a responder that no program knows. */
enum fk_kind { FK_RC, FK_DCI, FK_DCT, FK_DCR };

struct fk_qp {
	struct ibv_qp qp;
	enum fk_kind kind;
	struct fk_pd *pd;
	struct fk_ctx *ctx;
	struct fk_device *dev;
	struct fk_cq *cq;
	struct fk_qp *next_bucket, *next;
	struct ibv_qp_cap cap;
	struct ibv_qp_attr attr;
	bool signal_all, dead;
	enum ibv_qp_state state;
	uint32_t mtu;   /* bytes */

	/* Requester. Indices into the ring sq grow for ever: freed <= una <= cursor <= tail. */
	struct fk_work *sq;
	uint64_t freed, una, cursor, tail;
	uint32_t packet; /* of the work request at cursor that is sent next */
	uint32_t una_psn, next_psn, sent_psn;
	uint32_t reads; /* asked for and not answered */
	uint32_t retries, rnr_retries;
	bool waiting; /* the peer was not ready: nothing is sent until the timer says so */
	bool gap; /* something was lost, and is being sent again */
	bool linger;
	struct fk_act send, timer, flush;
	struct fk_held *held;

	/* Responder. */
	uint32_t expected;
	bool nak_sent, refused, established;
	uint64_t write_at;
	uint32_t write_rkey, write_left, write_total;
	bool writing;
	uint64_t *rq; /* ids of receives: a ring whose indices grow for ever */
	uint64_t received, posted;
	uint32_t read_jobs;
	struct fk_job *jobs, **jobs_end;
	struct fk_act respond;

	/* Packets under way from here, in order. */
	struct fk_packet *egress, **egress_end;
	uint32_t egress_count;
	struct fk_act wire;

	/* Dynamic connections: of a DCI and a DCR the session, of a DCI and a DCT the key, of a DCT its DCRs. */
	bool connected;
	uint32_t session, session_psn;
	uint64_t key;
	struct fk_srq *srq;
	struct fk_qp *parent, *ends;

	uint64_t works, write_bytes, read_bytes;
	uint64_t unacked; /* asynchronous events that the program took */
};

struct fk_nic {
	struct nv_api api; /* first: the table is the adapter */
	struct nv_dc_api dc;
	uint32_t sessions;
	struct fk_options o;
	pthread_mutex_t mu;
	pthread_cond_t work, change;
	atomic_int waiters;
	pthread_t thread;
	bool running, stop;
	uint64_t start; /* of the clock */
	uint64_t cur;   /* the time of what is being done */
	uint64_t random;
	uint64_t serial;
	uint64_t changes;
	struct fk_act **heap;
	size_t heap_len, heap_room;

	struct fk_device *devices[FK_MAX_DEVICES];
	int device_count;
	struct fk_ctx *contexts;
	struct fk_qp *qps; /* all, also the dead */
	struct fk_qp *qp_buckets[FK_BUCKETS];
	struct fk_mr *lkeys[FK_BUCKETS], *rkeys[FK_BUCKETS];
	uint32_t next_qpn, next_key;
	uint32_t *free_qpn;
	size_t free_qpn_len, free_qpn_room;
	void **all; /* every object, for the end */
	size_t all_len, all_room;

	struct fk_rule **rules;
	int rule_count, rule_room;
	char (*violations)[FK_TEXT];
	int violation_count;
	struct fk_access *log;
	uint64_t log_seq;
	struct fk_counters n;
};

static inline struct fk_ctx *fk_ctx_of(struct ibv_context *c) { return (struct fk_ctx *)c; }
static inline struct fk_device *fk_device_of(struct ibv_device *d) { return (struct fk_device *)d; }
static inline struct fk_nic *fk_nic_of(struct ibv_context *c) { return fk_device_of(c->device)->nic; }

/* a - b of 24 bits, with sign. */
static inline int32_t fk_psn_diff(uint32_t a, uint32_t b) { return (int32_t)((a - b) << 8) >> 8; }
static inline uint32_t fk_psn_add(uint32_t a, uint32_t b) { return (a + b) & FK_PSN_MASK; }

/* fk_nic.c */
void fk_enter(struct fk_nic *nic);
void fk_leave(struct fk_nic *nic);
void fk_changed(struct fk_nic *nic);
void fk_act_at(struct fk_nic *nic, struct fk_act *act, uint64_t due);
void fk_act_cancel(struct fk_nic *nic, struct fk_act *act);
uint64_t fk_random(struct fk_nic *nic);
void *fk_alloc(struct fk_nic *nic, size_t size); /* zeroed, freed with the adapter */
void fk_blame(struct fk_nic *nic, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct fk_rule *fk_match(struct fk_nic *nic, enum fk_point point, struct fk_device *dev, uint32_t qpn, int op);
/* Waits until the rule is released. */
void fk_hold_call(struct fk_nic *nic, const struct fk_rule *rule);
/* Waits, as the library does, until the events of an object that is destroyed are acknowledged. */
void fk_await_acks(struct fk_nic *nic, const uint64_t *unacked, const char *call);
/* A rule for a call: waits, or returns the errno to fail with, or 0. */
int fk_call_rule(struct fk_nic *nic, enum fk_point point, struct fk_device *dev, uint32_t qpn);
void fk_log(struct fk_nic *nic, struct fk_qp *qp, const struct fk_access *access);

/* fk_device.c */
void fk_async(struct fk_nic *nic, struct fk_ctx *ctx, struct ibv_async_event event);
void fk_async_forget(struct fk_ctx *ctx, void *element);
struct fk_device *fk_find_device(struct fk_nic *nic, const struct fk_packet *p);
void fk_fill_device_calls(struct nv_api *api);

/* fk_memory.c */
void fk_fill_memory_calls(struct nv_api *api);
/* The host memory of [addr, addr+len) under a key, or NULL where it may not be used so. */
uint8_t *fk_local(struct fk_nic *nic, struct fk_qp *qp, uint32_t lkey, uint64_t addr, uint64_t len, bool write);
uint8_t *fk_remote(struct fk_nic *nic, struct fk_qp *qp, uint32_t rkey, uint64_t addr, uint64_t len, bool write);
bool fk_present(struct fk_nic *nic, struct fk_qp *qp, uint8_t *host, uint32_t len);
uint64_t fk_hash(const uint8_t *p, uint64_t len);

/* fk_cq.c */
void fk_fill_cq_calls(struct nv_api *api);
void fk_cq_add(struct fk_nic *nic, struct fk_cq *cq, const struct fk_cqe *cqe);
void fk_cq_forget(struct fk_cq *cq, struct fk_qp *qp);

/* fk_qp.c */
void fk_fill_qp_calls(struct nv_api *api);
struct fk_qp *fk_find_qp(struct fk_nic *nic, struct fk_device *dev, uint32_t qpn);
void fk_qp_error(struct fk_nic *nic, struct fk_qp *qp, bool linger);
void fk_qp_flush(struct fk_nic *nic, struct fk_qp *qp);
void fk_complete(struct fk_nic *nic, struct fk_qp *qp, uint32_t status, uint32_t vendor);
void fk_release_held(struct fk_nic *nic, struct fk_qp *qp);
void fk_release_work(struct fk_nic *nic, struct fk_qp *qp, uint64_t upto);
/* Ends the oldest receive, if there is one. */
void fk_receive(struct fk_nic *nic, struct fk_qp *qp, struct ibv_wc wc);
void fk_purge_jobs(struct fk_qp *qp, uint32_t from, bool all);
struct fk_qp *fk_create_qp(struct fk_pd *pd, struct ibv_qp_init_attr *attr, enum fk_kind kind);
void fk_qp_init(struct fk_qp *qp);
void fk_qp_number(struct fk_nic *nic, struct fk_qp *qp);
void fk_stop(struct fk_nic *nic, struct fk_qp *qp);
int fk_post_one(struct fk_nic *nic, struct fk_qp *qp, const struct ibv_send_wr *wr);
void fk_posted(struct fk_nic *nic, struct fk_qp *qp);

/* fk_dc.c */
void fk_fill_dc_calls(struct fk_nic *nic);
/* Connects a DCI to the target of a work request; false: it must wait until all before it have been answered. */
bool fk_dc_connect(struct fk_nic *nic, struct fk_qp *qp, const struct fk_work *w);
/* The end of a DCT that a request belongs to, or NULL. */
struct fk_qp *fk_dc_end(struct fk_nic *nic, struct fk_qp *dct, const struct fk_packet *p);
/* Ends what a DCT has. */
void fk_dc_destroyed(struct fk_nic *nic, struct fk_qp *qp);

/* fk_requester.c */
void fk_send_turn(struct fk_nic *nic, struct fk_qp *qp);
void fk_timer(struct fk_nic *nic, struct fk_qp *qp);
void fk_requester_ack(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p);
void fk_requester_response(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p);

/* fk_responder.c */
void fk_responder_request(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p);
void fk_respond_turn(struct fk_nic *nic, struct fk_qp *qp);

/* fk_network.c */
struct fk_packet *fk_packet_new(struct fk_qp *qp, enum fk_packet_kind kind, uint32_t psn, uint32_t len);
void fk_transmit(struct fk_nic *nic, struct fk_qp *qp, struct fk_packet *p);
void fk_wire_turn(struct fk_nic *nic, struct fk_qp *qp);
void fk_deliver(struct fk_nic *nic, struct fk_packet *p);
void fk_release_packets(struct fk_nic *nic, struct fk_rule *rule);

#endif /* NV_HAVE_VERBS */
#endif /* FK_NIC_H */
