/*
 * The inner parts of libpenstock-cuobj-shim: sessions with a node over shm, tcp and rc (docs/wire.md §6 to §10), and
 * the tables behind the five functions.
 *
 * Invariants:
 *  1. The window of a token is the caller's again only when the server has said FORGOTTEN, or a fence has worked: CLOSED,
 *     or the server's process gone (shm); our receivers gone (tcp); and on rc its key taken back as well, or else our queue
 *     pairs gone. Otherwise it is spent: nothing gives it out again.
 *  2. A receiver touches memory of a granted window only, in the granted direction, between START and DONE.
 *  3. No lock is held while something is sent, received or waited for.
 *  4. Every wait has a deadline, since callers may hold the lock of an interpreter. What an adapter's driver does when
 *     memory is registered or taken back is no wait of this library, and has none.
 *  5. Tokens, keys and secrets are in no text for people.
 *  6. A forked child shares nothing with its parent: it closes its copies of the sockets and opens a session of its own.
 *
 * Lock order: the world's, then a session's. Threads of this library block all signals.
 */
#ifndef CS_SHIM_H
#define CS_SHIM_H

#include "cs_base.h"

#include <pthread.h>
#include <stdatomic.h>

/* Frames (cs_frame.c); docs/wire.md §7 has the numbers. */
enum {
	CS_HEADER = 40,
	CS_SESSION = 16,
	CS_NONCE = 32,
	CS_MAX_PAYLOAD = 4 << 20,
	CS_MAX_CONNS = 8,
	CS_MAX_KEYS = 8, /* devices of a session */
	CS_TEXT = 128 /* of a token */
};

enum cs_type {
	CS_HELLO = 1, CS_CHALLENGE, CS_PROOF, CS_READY, CS_REFUSED, CS_REGION, CS_REGION_OK, CS_REGION_REFUSED,
	CS_FORGET, CS_FORGOTTEN, CS_CLOSE, CS_CLOSED, CS_PING, CS_PONG, CS_START, CS_DATA, CS_READ, CS_PAYLOAD, CS_DONE,
	CS_ACK, CS_DENY, CS_ATTACH, CS_ASK, CS_PRESENT, CS_ATTACHED, CS_RAILS, CS_PATH, CS_PATH_OK, CS_PATH_REFUSED,
	CS_PATH_UP, CS_LOST, CS_FENCED, CS_KEYED, CS_LAST_TYPE = CS_KEYED
};

enum cs_status {
	CS_OK = 0, CS_STATUS_GET = 10, CS_STATUS_PUT = 11, CS_FOREIGN = 13, CS_DENIED = 17, CS_LAST_STATUS = 21
};

struct cs_frame {
	uint8_t type, status;
	uint32_t length;
	uint64_t id, region, offset, size;
};

struct cs_ready {
	uint64_t region_bytes;
	uint32_t regions, conns, payload, idle_ms;
};

/* What a node offers for a session. */
struct cs_offer {
	uint8_t session[CS_SESSION], secret[CS_SUM];
	char fabric[8], network[8], address[CS_MAX_HOST];
};

void cs_encode(const struct cs_frame *f, uint8_t bytes[CS_HEADER]);

/* cs_decode takes what a server may send, and no more. */
int cs_decode(const uint8_t bytes[CS_HEADER], struct cs_frame *f);

/* cs_handshake proves the connection of that index, and has the server prove itself. */
int cs_handshake(int fd, const struct cs_offer *o, uint32_t index, int64_t deadline, struct cs_ready *r,
		 struct cs_why *why);

/* Configuration and control plane (cs_control.c). */
enum cs_choice { CS_AUTO, CS_SHM, CS_RC, CS_TCP };

struct cs_config {
	struct cs_endpoint endpoint;
	struct cs_credentials credentials;
	char region[64];
	enum cs_choice choice;
	char devices[256]; /* adapters and ports that rc may use; empty: all */
	int https; /* the endpoint is one, and so refused */
};

struct cs_node {
	int shm, rc, tcp;       /* can be tried */
	char shm_not[64];       /* why not */
	int64_t deadline_ms;    /* of a request */
};

/* cs_configure reads the environment. */
int cs_configure(struct cs_config *c, struct cs_why *why);
int cs_ask_node(const struct cs_config *c, int64_t deadline, struct cs_node *n, struct cs_why *why);
int cs_ask_session(const struct cs_config *c, const char *fabric, int64_t deadline, struct cs_offer *o,
		   struct cs_why *why);

/* Sessions (cs_session.c, cs_tokens.c, cs_shm.c, cs_tcp.c, cs_rc.c). */
struct cs_session;
struct cs_rc;
struct nv_lib;
struct nv_mr;

/* A token and its window. The fields below mu belong to the session's lock, those below lists to the world's. */
struct cs_token {
	struct cs_session *session;
	uint8_t *window;
	size_t size;
	int put;
	uint32_t region, number;
	struct nv_mr *keys[CS_MAX_KEYS]; /* rc: of each adapter of the session; who grants or takes back has them */

	/* mu */
	struct cs_token *next_grant;
	int begun, finished;
	unsigned touching; /* receivers inside the window */

	/* lists */
	char text[CS_TEXT];
	struct cs_token *next;
	struct cs_registration *registration;
	int releasing, spent;
};

/* A question to the server whose answer somebody waits for. */
struct cs_waiter {
	struct cs_waiter *next;
	enum cs_type question;
	uint32_t region;
	int done;
	struct cs_frame answer;
};

struct cs_transfer {
	struct cs_transfer *next;
	uint64_t id;
	struct cs_token *token; /* NULL: denied */
	uint8_t *window;
	uint64_t size, placed;
};

struct cs_link {
	struct cs_session *session;
	int fd;
	uint32_t index;
	int64_t ping_ms;
	int writing;                   /* a frame is on its way out; the session's lock */
	struct cs_transfer *transfers; /* the receiver's */
	unsigned count;
};

struct cs_session {
	atomic_int refs, ended;
	int shm;
	struct cs_rc *rc; /* NULL: another fabric */
	uint8_t id[CS_SESSION];
	struct cs_ready limits;
	int64_t wait_ms; /* for FORGOTTEN: a request's deadline and a little */
	int server;      /* pidfd of the server's process, or -1 */
	uint64_t sign;   /* what the server reads to know this address space */
	struct cs_link links[CS_MAX_CONNS];
	uint32_t count;

	pthread_mutex_t mu;
	pthread_cond_t changed;
	struct cs_why why; /* of the end */
	int closing, confirmed, receivers;
	int64_t patience; /* until when a fence is waited for: once, not for each token */
	struct cs_waiter *waiters;
	struct cs_token *grants; /* tcp */
	uint32_t last_region, last_token;
};

/* cs_open opens a session over the fabric that the choice and the node allow. */
int cs_open(const struct cs_config *c, int64_t deadline, struct cs_session **s, struct cs_why *why);
void cs_ref(struct cs_session *s);
void cs_unref(struct cs_session *s);

/* cs_grant announces the token's window and writes the token; CS_SPENT: it did not, and the window is spent. */
enum { CS_SPENT = -2 };
int cs_grant(struct cs_token *t, char text[CS_TEXT], struct cs_why *why);

/* cs_take_back returns 0 when no request can touch the window any more; -1: it is spent. */
int cs_take_back(struct cs_token *t, struct cs_why *why);

/* cs_free tells, without waiting, whether a spent window is not any more. */
int cs_free(struct cs_token *t);

/* cs_fence ends the session; 0: the server can touch no window of it any more. */
int cs_fence(struct cs_session *s, int64_t deadline);

/* For the parts of a session. cs_end ends it without waiting; cs_broke is -1 after a breach of the protocol. */
void cs_end(struct cs_session *s, const char *why);
int cs_broke(struct cs_session *s, const char *what);
int cs_write(struct cs_link *l, const struct cs_frame *f, const void *body);
int cs_write_by(struct cs_link *l, const struct cs_frame *f, const void *body, int64_t deadline);
int cs_read(struct cs_link *l, void *data, size_t size);

/* cs_question asks; whoever waits holds up the application. cs_answer gives a frame to the one who waits for it. */
int cs_question(struct cs_session *s, const struct cs_frame *f, const void *body, struct cs_frame *answer,
		int64_t deadline, struct cs_why *why);
int cs_answer(struct cs_session *s, enum cs_type question, const struct cs_frame *f);

/* cs_wait waits for a change until the deadline; 0 when it has passed. The session is locked. */
int cs_wait(struct cs_session *s, int64_t deadline);
int cs_shm_connect(const char *address, int64_t deadline, int *server, struct cs_why *why);
int cs_shm_attach(struct cs_session *s, int64_t deadline, struct cs_why *why);
int cs_tcp_connect(const char *address, int64_t deadline, struct cs_why *why);
int cs_tcp_take(struct cs_link *l, const struct cs_frame *f);
void cs_tcp_drop(struct cs_link *l);

/* cs_rc_new looks for adapters. The receiver calls wait before each frame, take with it, and drop at its end. */
int cs_rc_new(const char *names, struct cs_rc **rc, struct cs_why *why);
void cs_rc_free(struct cs_rc *rc);
int cs_rc_open(struct cs_session *s, int64_t deadline, struct cs_why *why); /* waits for the first path */
int cs_rc_wait(struct cs_link *l);
int cs_rc_take(struct cs_link *l, const struct cs_frame *f);
void cs_rc_drop(struct cs_link *l);

/* cs_rc_key makes the keys of the token's window, and the body that announces them. Of a failure too, cs_rc_unkey takes
 * them back; 0: no adapter can reach the window. cs_rc_dead tells whether all queue pairs are gone. */
int cs_rc_key(struct cs_token *t, uint8_t body[4 * CS_MAX_KEYS], uint32_t *size, struct cs_why *why);
int cs_rc_unkey(struct cs_token *t);
int cs_rc_dead(struct cs_session *s);

/* cs_verbs_open opens the library of verbs (cs_verbs.c). */
int cs_verbs_open(struct nv_lib **lib, struct cs_why *why);

/* Sockets that a forked child must close (cs_fork.c). cs_on_fork arranges that; reset runs in the child. */
void cs_on_fork(void (*reset)(void));
void cs_keep_fd(int fd);
void cs_close_fd(int fd);

#endif
