/* Names, addresses and connections, all by a deadline. */
#define _GNU_SOURCE
#include "cs_base.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	MAX_LOOKUPS = 4,       /* threads that wait for name servers which do not answer; they give up by themselves, late */
	LOOKUP_STACK = 1 << 20 /* modules for names are large */
};

int64_t cs_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void cs_condition(pthread_cond_t *c)
{
	pthread_condattr_t a;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(c, &a);
	pthread_condattr_destroy(&a);
}

struct timespec cs_until(int64_t deadline)
{
	return (struct timespec){.tv_sec = (time_t)(deadline / 1000), .tv_nsec = (long)(deadline % 1000) * 1000000};
}

int cs_thread(void *(*run)(void *), void *argument, size_t stack)
{
	sigset_t all, before;
	pthread_attr_t a;
	pthread_t thread;

	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, stack);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int bad = pthread_create(&thread, &a, run, argument);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&a);
	return bad ? -1 : 0;
}

int cs_until_ready(int fd, short events, int64_t deadline)
{
	for (;;) {
		int64_t left = deadline - cs_now();
		struct pollfd p = {fd, events, 0};

		if (left <= 0) {
			errno = ETIMEDOUT;
			return -1;
		}
		int n = poll(&p, 1, left > 60000 ? 60000 : (int)left);

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -1;
	}
}

/* A lookup outlives the one who asked for it, since getaddrinfo cannot be ended; the last of both frees it. */
struct lookup {
	pthread_mutex_t mu;
	pthread_cond_t changed;
	char host[CS_MAX_HOST], port[8];
	struct addrinfo *all;
	int code, done, left;
};

static atomic_int lookups;

void cs_net_forked(void)
{
	atomic_store(&lookups, 0); /* their threads are the parent's */
}

static void drop(struct lookup *l)
{
	if (l->all)
		freeaddrinfo(l->all);
	pthread_cond_destroy(&l->changed);
	pthread_mutex_destroy(&l->mu);
	free(l);
}

static int addresses(const char *host, const char *port, int flags, struct addrinfo **all)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};

	*all = NULL;
	return getaddrinfo(host, port, &hints, all);
}

static void *look_up(void *argument)
{
	struct lookup *l = argument;
	struct addrinfo *all;
	int code = addresses(l->host, l->port, 0, &all);

	atomic_fetch_sub(&lookups, 1);
	pthread_mutex_lock(&l->mu);
	l->code = code;
	l->all = all;
	l->done = 1;
	int left = l->left;

	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->mu);
	if (left)
		drop(l);
	return NULL;
}

static struct lookup *new_lookup(const char *host, const char *port)
{
	struct lookup *l = strlen(host) < CS_MAX_HOST && strlen(port) < sizeof l->port ? calloc(1, sizeof *l) : NULL;

	if (!l)
		return NULL;
	strcpy(l->host, host);
	strcpy(l->port, port);
	pthread_mutex_init(&l->mu, NULL);
	cs_condition(&l->changed);
	if (atomic_fetch_add(&lookups, 1) < MAX_LOOKUPS && cs_thread(look_up, l, LOOKUP_STACK) == 0)
		return l;
	atomic_fetch_sub(&lookups, 1);
	drop(l);
	return NULL;
}

/* resolve finds the addresses of a name by the deadline. Numbers need no thread. */
static int resolve(const char *host, const char *port, int64_t deadline, struct addrinfo **all, struct cs_why *why)
{
	struct timespec until = cs_until(deadline);

	if (addresses(host, port, AI_NUMERICHOST | AI_NUMERICSERV, all) == 0)
		return 0;
	struct lookup *l = new_lookup(host, port);

	if (!l)
		return cs_fail(why, "look up %s: too many lookups without an answer, or no memory", host);
	pthread_mutex_lock(&l->mu);
	while (!l->done && pthread_cond_timedwait(&l->changed, &l->mu, &until) != ETIMEDOUT)
		;
	int done = l->done, code = l->code;

	*all = done ? l->all : NULL;
	if (done)
		l->all = NULL;
	l->left = 1;
	pthread_mutex_unlock(&l->mu);
	if (!done)
		return cs_fail(why, "look up %s: no answer in time", host);
	drop(l);
	return code ? cs_fail(why, "look up %s: %s", host, gai_strerror(code)) : 0;
}

static int open_stream(const struct addrinfo *a, int64_t deadline)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err = 0, one = 1;
	socklen_t size = sizeof err;

	if (fd < 0)
		return -1;
	if (connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS)
		err = errno;
	else if (cs_until_ready(fd, POLLOUT, deadline))
		err = errno;
	else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size))
		err = errno;
	if (err) {
		close(fd);
		errno = err;
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a wish */
	return fd;
}

int64_t cs_share(int64_t deadline, unsigned count)
{
	int64_t now = cs_now();

	return deadline > now && count > 1 ? now + (deadline - now) / count : deadline;
}

int cs_connect(const char *host, const char *port, int64_t deadline, struct cs_why *why)
{
	struct addrinfo *all, *a;
	int fd = -1, err = 0;
	unsigned count = 0;

	if (resolve(host, port, cs_share(deadline, 2), &all, why))
		return -1;
	for (a = all; a; a = a->ai_next)
		count++;
	for (a = all; a && fd < 0; a = a->ai_next, count--) {
		fd = open_stream(a, cs_share(deadline, count)); /* one that swallows all packets leaves time for the next */
		err = errno;
	}
	freeaddrinfo(all);
	return fd < 0 ? cs_fail(why, "connect to %s port %s: errno %d", host, port, err) : fd;
}

int cs_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ? -1 : 0;
}
