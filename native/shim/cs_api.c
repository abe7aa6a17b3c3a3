/*
 * The five functions that S3 clients load, under both names that are in use, and the tables behind them: registered
 * memory, tokens, and the one session of the process.
 */
#define _GNU_SOURCE
#include "cs_shim.h"
#include "penstock_cuobj.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	OPEN_MS = 10000, /* for a session */
	RETRY_MS = 5000  /* a failed opening is not tried again before: every request would pay for it */
};

/* MAX_WINDOW is the largest window of a token. */
#define MAX_WINDOW UINT32_MAX

struct cs_registration {
	struct cs_registration *next;
	uint8_t *base;
	size_t size;
	unsigned count; /* 0: it is being deregistered, or spent */
	int busy;       /* somebody deregisters it, and is not done */
};

struct world {
	pid_t pid;
	pthread_mutex_t mu;
	pthread_cond_t changed;
	struct cs_registration *registrations;
	struct cs_token *tokens;
	struct cs_session *session;
	int opening;
	int64_t retry_at;
	struct cs_why refused; /* why the last opening failed */
};

static _Atomic(struct world *) world;
static _Thread_local struct cs_why last;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget_world(void)
{
	atomic_store(&world, NULL);
}

static void prepare(void)
{
	cs_on_fork(forget_world);
}

/* here is this process's world. What a parent left is not freed: another thread may have been inside when it forked. */
static struct world *here(void)
{
	pthread_once(&once, prepare);
	struct world *w = atomic_load(&world), *made;

	if (w && w->pid == getpid())
		return w;
	made = calloc(1, sizeof *made);
	if (!made) {
		cs_fail(&last, "no memory");
		return NULL;
	}
	made->pid = getpid();
	pthread_mutex_init(&made->mu, NULL);
	cs_condition(&made->changed);
	if (atomic_compare_exchange_strong(&world, &w, made))
		return made;
	pthread_cond_destroy(&made->changed);
	pthread_mutex_destroy(&made->mu);
	free(made);
	return w;
}

static int logging(void)
{
	const char *value = getenv("PENSTOCK_CUOBJ_LOG");

	return value && *value;
}

static void print(const struct cs_why *why)
{
	fprintf(stderr, "penstock-cuobj: %s\n", why->text);
}

/* report notes a failure for penstock_cuobj_last_error, and prints it where that is asked for. */
static int report(const struct cs_why *why)
{
	last = *why;
	if (logging())
		print(why);
	return -1;
}

/* say prints, once, what the user must know though his program may not ask for it. */
static void say(const struct cs_why *why)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!logging() && !atomic_flag_test_and_set(&said))
		print(why);
}

/* session gives the process's session, with a reference, and opens it when there is none. */
static struct cs_session *session(struct world *w, struct cs_why *why)
{
	int64_t deadline = cs_now() + OPEN_MS;
	struct timespec until = cs_until(deadline);
	struct cs_session *s = NULL;
	struct cs_config c;

	pthread_mutex_lock(&w->mu);
	while (w->opening && pthread_cond_timedwait(&w->changed, &w->mu, &until) != ETIMEDOUT)
		;
	if (w->session && atomic_load(&w->session->ended)) {
		cs_unref(w->session);
		w->session = NULL;
	}
	if (w->session || w->opening || cs_now() < w->retry_at) {
		s = w->session;
		if (s)
			cs_ref(s);
		else
			*why = w->refused;
		pthread_mutex_unlock(&w->mu);
		return s;
	}
	w->opening = 1;
	cs_fail(&w->refused, "a session is being opened");
	pthread_mutex_unlock(&w->mu);
	memset(&c, 0, sizeof c);
	int bad = cs_configure(&c, why) || cs_open(&c, deadline, &s, why);

	if (bad && c.https)
		say(why);
	cs_wipe(&c, sizeof c);
	pthread_mutex_lock(&w->mu);
	w->opening = 0;
	if (bad) {
		w->refused = *why;
		w->retry_at = cs_now() + RETRY_MS;
		s = NULL;
	} else {
		w->session = s;
		cs_ref(s);
	}
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->mu);
	return s;
}

static void unlink_token(struct world *w, struct cs_token *t)
{
	for (struct cs_token **at = &w->tokens; *at; at = &(*at)->next) {
		if (*at == t) {
			*at = t->next;
			break;
		}
	}
	cs_unref(t->session);
	cs_wipe(t->text, sizeof t->text);
	free(t);
}

static void unlink_registration(struct world *w, struct cs_registration *r)
{
	for (struct cs_registration **at = &w->registrations; *at; at = &(*at)->next) {
		if (*at == r) {
			*at = r->next;
			break;
		}
	}
	free(r);
}

/* token_of finds a token of the registration, or any where it is NULL, by its text where there is one. */
static struct cs_token *token_of(struct world *w, const struct cs_registration *r, const char *text)
{
	struct cs_token *t = w->tokens;

	while (t && ((r && t->registration != r) || (text && strcmp(t->text, text) != 0)))
		t = t->next;
	return t;
}

/*
 * release takes a token back. 0: it is gone, and its window free; -1: spent. The world is locked, and unlocked
 * meanwhile.
 */
static int release(struct world *w, struct cs_token *t, struct cs_why *why)
{
	t->releasing = 1;
	pthread_mutex_unlock(&w->mu);
	int bad = cs_take_back(t, why);

	pthread_mutex_lock(&w->mu);
	t->releasing = 0;
	if (bad)
		t->spent = 1;
	else
		unlink_token(w, t);
	pthread_cond_broadcast(&w->changed);
	return bad;
}

/* revive frees what was spent and is not any more, since the server's process has ended. The world is locked. */
static void revive(struct world *w)
{
	for (struct cs_token *t = w->tokens, *next; t; t = next) {
		next = t->next;
		if (!t->spent || t->releasing || !cs_free(t))
			continue;
		struct cs_registration *r = t->registration;

		unlink_token(w, t);
		if (r->count == 0 && !r->busy && !token_of(w, r, NULL))
			unlink_registration(w, r);
	}
}

static int overlaps_spent(struct world *w, const uint8_t *base, size_t size)
{
	for (struct cs_token *t = w->tokens; t; t = t->next)
		if (t->spent && t->window < base + size && base < t->window + t->size)
			return 1;
	return 0;
}

static int must_not_reuse(struct cs_why *why)
{
	return cs_fail(why, "the memory must not be reused: a server may still write to it");
}

static int book(struct world *w, uint8_t *base, size_t size, struct cs_why *why)
{
	pthread_mutex_lock(&w->mu);
	revive(w);
	int bad = 0;
	struct cs_registration *r = w->registrations;

	if (overlaps_spent(w, base, size)) {
		bad = must_not_reuse(why);
	} else {
		while (r && (r->base != base || r->size != size || r->count == 0))
			r = r->next;
		if (!r && (r = calloc(1, sizeof *r))) {
			r->base = base;
			r->size = size;
			r->next = w->registrations;
			w->registrations = r;
		}
		if (r)
			r->count++;
		else
			bad = cs_fail(why, "no memory");
	}
	pthread_mutex_unlock(&w->mu);
	return bad;
}

int cuobj_available(void)
{
	struct cs_why why;
	struct world *w = here();
	struct cs_session *s = w ? session(w, &why) : NULL;

	if (!s)
		return w ? report(&why), 0 : 0;
	cs_unref(s);
	return 1;
}

int cuobj_register_buffer(void *ptr, size_t size)
{
	struct cs_why why;
	struct world *w = here();

	if (!w)
		return -1;
	if (!ptr || size == 0 || (uintptr_t)ptr > UINTPTR_MAX - size) {
		cs_fail(&why, "no memory to register");
		return report(&why);
	}
	struct cs_session *s = session(w, &why);

	if (!s)
		return report(&why);
	cs_unref(s);
	return book(w, ptr, size, &why) ? report(&why) : 0;
}

int cuobj_deregister_buffer(void *ptr)
{
	struct cs_why why = {"memory is not registered"};
	struct world *w = here();
	int bad = 0;

	if (!w)
		return -1;
	pthread_mutex_lock(&w->mu);
	revive(w);
	struct cs_registration *r = w->registrations;

	while (r && (r->base != (uint8_t *)ptr || r->count == 0))
		r = r->next;
	if (!r) {
		pthread_mutex_unlock(&w->mu);
		return report(&why);
	}
	if (--r->count == 0) {
		struct cs_token *t;

		r->busy = 1;
		for (t = w->tokens; t;) {
			if (t->registration != r || t->spent) {
				t = t->next;
				continue;
			}
			if (t->releasing)
				pthread_cond_wait(&w->changed, &w->mu); /* the releaser's waits have deadlines */
			else
				release(w, t, &why);
			t = w->tokens; /* the list may be another one */
		}
		r->busy = 0;
		if (token_of(w, r, NULL))
			bad = must_not_reuse(&why);
		else
			unlink_registration(w, r);
	}
	pthread_mutex_unlock(&w->mu);
	return bad ? report(&why) : 0;
}

/*
 * enlist finds the memory and adds the token to the tables, so that the memory stays registered meanwhile. What is
 * spent is not granted again, though it is still registered: a late write would land in the new window.
 */
static int enlist(struct world *w, struct cs_token *t, const uint8_t *base, size_t offset, struct cs_why *why)
{
	pthread_mutex_lock(&w->mu);
	revive(w);
	struct cs_registration *r = w->registrations;

	while (r && (r->base != base || r->count == 0 || offset > r->size || t->size > r->size - offset))
		r = r->next;
	int spent = r && overlaps_spent(w, r->base + offset, t->size);

	if (r && !spent) {
		t->registration = r;
		t->window = r->base + offset;
		t->releasing = 1; /* not yet anybody's to release */
		t->next = w->tokens;
		w->tokens = t;
	}
	pthread_mutex_unlock(&w->mu);
	if (spent)
		return must_not_reuse(why);
	return r ? 0 : cs_fail(why, "the window is not inside registered memory");
}

const char *cuobj_get_rdma_token(void *ptr, size_t size, size_t offset, int is_put)
{
	struct cs_why why;
	struct world *w = here();
	struct cs_token *t;

	if (!w)
		return NULL;
	if (!ptr || size == 0 || size > MAX_WINDOW) {
		cs_fail(&why, "a window of %zu bytes cannot be granted", size);
		report(&why);
		return NULL;
	}
	struct cs_session *s = session(w, &why);

	t = s ? calloc(1, sizeof *t) : NULL;
	if (!t) {
		if (s) {
			cs_unref(s);
			cs_fail(&why, "no memory");
		}
		report(&why);
		return NULL;
	}
	*t = (struct cs_token){.session = s, .size = size, .put = is_put != 0};
	if (enlist(w, t, ptr, offset, &why)) {
		cs_unref(s);
		free(t);
		report(&why);
		return NULL;
	}
	char text[CS_TEXT];
	int bad = cs_grant(t, text, &why);

	pthread_mutex_lock(&w->mu);
	t->releasing = 0;
	if (!bad)
		memcpy(t->text, text, sizeof text);
	if (bad == CS_SPENT)
		t->spent = 1;
	else if (bad)
		unlink_token(w, t); /* nobody has the token */
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->mu);
	cs_wipe(text, sizeof text);
	if (!bad)
		return t->text;
	report(&why);
	return NULL;
}

int cuobj_put_rdma_token(const char *token)
{
	struct cs_why why;
	struct world *w = here();
	struct cs_token *t;
	char text[CS_TEXT]; /* the caller's may be ours, and gone once somebody else has released the token */
	int bad = 0;

	if (!w || !token)
		return w ? 0 : -1;
	size_t size = strnlen(token, sizeof text);

	if (size == 0 || size == sizeof text)
		return 0;
	memcpy(text, token, size + 1);
	pthread_mutex_lock(&w->mu);
	while ((t = token_of(w, NULL, text)) && t->releasing)
		pthread_cond_wait(&w->changed, &w->mu); /* as above */
	if (t)
		bad = release(w, t, &why);
	pthread_mutex_unlock(&w->mu);
	cs_wipe(text, sizeof text);
	return bad ? report(&why) : 0;
}

const char *penstock_cuobj_last_error(void)
{
	return last.text;
}

int kvikio_cuobj_available(void)
{
	return cuobj_available();
}

int kvikio_cuobj_register_buffer(void *ptr, size_t size)
{
	return cuobj_register_buffer(ptr, size);
}

int kvikio_cuobj_deregister_buffer(void *ptr)
{
	return cuobj_deregister_buffer(ptr);
}

const char *kvikio_cuobj_get_rdma_token(void *ptr, size_t size, size_t offset, int is_put)
{
	return cuobj_get_rdma_token(ptr, size, offset, is_put);
}

int kvikio_cuobj_put_rdma_token(const char *token)
{
	return cuobj_put_rdma_token(token);
}
