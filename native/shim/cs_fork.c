/*
 * What a forked child must not share. A socket that lives on in a child would keep a session alive that its parent has
 * left, and a child that read from one would take its parent's frames. Descriptors of adapters stay: their library has no
 * function for that, and what they keep alive reaches the parent's memory only, which the kernel keeps for it.
 */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <unistd.h>

/* MAX_FDS is more than the sessions of a process have: one session lives at a time, with at most 8 sockets. */
enum { MAX_FDS = 256 };

static atomic_int fds[MAX_FDS]; /* one more than the number; 0: free */
static void (*forget)(void);

static void in_child(void)
{
	for (int i = 0; i < MAX_FDS; i++) {
		int fd = atomic_exchange(&fds[i], 0);

		if (fd > 0)
			close(fd - 1);
	}
	cs_net_forked();
	forget();
}

void cs_on_fork(void (*reset)(void))
{
	forget = reset;
	pthread_atfork(NULL, NULL, in_child);
}

void cs_keep_fd(int fd)
{
	for (int i = 0; i < MAX_FDS; i++) {
		int free = 0;

		if (atomic_compare_exchange_strong(&fds[i], &free, fd + 1))
			return;
	}
}

/* The number leaves the table first: once closed, it may be somebody else's. */
void cs_close_fd(int fd)
{
	for (int i = 0; i < MAX_FDS; i++) {
		int own = fd + 1;

		if (atomic_compare_exchange_strong(&fds[i], &own, 0))
			break;
	}
	close(fd);
}
