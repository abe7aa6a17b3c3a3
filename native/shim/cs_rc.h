/*
 * rc: queue pairs of this machine's adapters that the server writes and reads by: docs/wire.md §10. The receiver of the
 * session's one connection does all of it but keys, so that nothing here needs a lock but what it shares with callers:
 *
 *  - adapters and their count do not change once the session is decided; keys are made and taken back by any thread;
 *  - decided, drained and stuck belong to the session's lock.
 *
 * Ports are looked at when the session opens, those of an adapter in use also when it tells of a change: the next session
 * sees what else has come. Calls of an adapter's driver have no deadline. A fence does not wait for them longer than for
 * anything else.
 */
#ifndef CS_RC_H
#define CS_RC_H

#include "cs_shim.h"
#include "../nv.h"

enum {
	CS_MAX_RAILS = 8,  /* docs/wire.md §12, like the next ones */
	CS_MAX_PATHS = 16,
	CS_MAX_PORTS = 32, /* of this machine that are looked at */
	CS_MAX_DELAYS = 64,
	CS_RAIL_BYTES = 24,
	CS_PATH_BYTES = 40
};

/* A rail of the server. */
struct cs_rail {
	uint8_t index, up, mtu; /* mtu: 1 to 5 for 256 to 4096 bytes */
	uint16_t lid;
	uint8_t gid[16];
};

/* A port of this machine. */
struct cs_port {
	char device[NV_NAME_BYTES];
	uint8_t number, infiniband, up, strange; /* strange: the server does not take its GID for ours */
	uint16_t lid;
	int32_t mtu, gid_index;
	uint8_t gid[16];
	unsigned bits; /* of the prefix of its subnet */
};

struct cs_adapter {
	char name[NV_NAME_BYTES];
	struct nv_device *device;
	struct nv_pd *pd;
	struct nv_cq *cq;
	uint8_t reads; /* RDMA READs that a queue pair answers at once */
	atomic_int lost;
};

enum cs_path_state { CS_PATH_FREE, CS_PATH_OFFERED, CS_PATH_IS_UP };

struct cs_path {
	enum cs_path_state state;
	int doomed; /* failed before it was up: the server is told when it has answered */
	uint64_t id;
	uint8_t rail;   /* index of the server's */
	uint32_t port;  /* index of ours */
	uint32_t on;    /* adapter */
	uint32_t psn;
	struct nv_qp *qp;
	int64_t since;
};

/* When a rail and a port that failed may be joined again. */
struct cs_delay {
	uint8_t rail;
	uint32_t port;
	int64_t until, wait;
};

struct cs_rc {
	struct nv_lib *lib;
	struct cs_port ports[CS_MAX_PORTS];
	uint32_t port_count;
	struct cs_adapter adapters[CS_MAX_KEYS];
	uint32_t adapter_count;

	/* the receiver's */
	struct cs_rail rails[CS_MAX_RAILS];
	uint32_t rail_count;
	int listed; /* the server has named its rails */
	struct cs_path paths[CS_MAX_PATHS];
	uint64_t last;
	struct cs_delay delays[CS_MAX_DELAYS];
	uint32_t delay_count;
	int64_t ping, pathless; /* when to send one; since when there is no path, or 0 */
	struct cs_why refusal;  /* of the last offer that came to nothing */

	/* the session's lock */
	int decided; /* 1: there is a path; -1: there will be none */
	int drained; /* the receiver has ended all queue pairs that it could */
	int stuck;   /* those that it could not */
};

/* Ports (cs_ports.c). cs_rc_look fills the ports of a library; names: those that may be used, or NULL. */
int cs_rc_look(struct cs_rc *rc, const char *names, struct cs_why *why);
void cs_rc_refresh(struct cs_rc *rc, const struct cs_adapter *a);

/* cs_rc_rank says how well a port reaches a rail; 0: not at all. */
int cs_rc_rank(const struct cs_port *p, const struct cs_rail *r);

/* Queue pairs (cs_paths.c). They return -1 when the session has ended. */
int cs_rc_offer(struct cs_link *l, uint32_t rail, uint32_t port);
int cs_rc_accept(struct cs_link *l, struct cs_path *p, const uint8_t body[CS_PATH_BYTES]);

/* cs_rc_retire ends a path, and tells the server when told is set. */
int cs_rc_retire(struct cs_link *l, struct cs_path *p, int told);

/* cs_rc_failed puts off the next try of a rail and a port. */
void cs_rc_failed(struct cs_rc *rc, uint8_t rail, uint32_t port, int64_t since);
int64_t cs_rc_due(const struct cs_rc *rc, uint8_t rail, uint32_t port);

#endif
