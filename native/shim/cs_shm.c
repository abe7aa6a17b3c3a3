/* shm: a Unix socket, and memory of this process that the server opens: docs/wire.md §8.1. */
#define _GNU_SOURCE
#include "cs_shim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* peer is the process that listens on the socket, as the kernel says; 0: not visible from here. */
static pid_t peer(int fd)
{
	struct ucred c = {0};
	socklen_t size = sizeof c;

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &size) ? 0 : c.pid;
}

/* watch opens the peer so that its end is seen; -1: it cannot be. */
static int watch(int fd)
{
	int process = -1;
	socklen_t size = sizeof process;
	pid_t pid = peer(fd);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0)
		return process;
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

int cs_shm_connect(const char *address, int64_t deadline, int *server, struct cs_why *why)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t size = strlen(address);
	(void)deadline; /* connecting waits only for a full queue of the listener, and not at all like this */

	if (size < 2 || size >= sizeof a.sun_path)
		return cs_fail(why, "the address of shm is too long");
	memcpy(a.sun_path, address, size);
	if (a.sun_path[0] == '@')
		a.sun_path[0] = 0;
	else
		size++; /* with its NUL */
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return cs_fail(why, "no socket: errno %d", errno);
	if (connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)) ||
	    cs_blocking(fd)) {
		int err = errno;

		close(fd);
		return cs_fail(why, "connect to shm: errno %d", err);
	}
	*server = watch(fd);
	return fd;
}

/* yama tells whether the kernel wants to be told who may open this process's memory. */
static int yama(void)
{
	FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
	int scope = f ? fgetc(f) : 0;

	if (f)
		fclose(f);
	return scope == '1';
}

static int try_attach(struct cs_session *s, int64_t deadline, uint8_t *status, struct cs_why *why)
{
	struct cs_frame a;
	pid_t pid = yama() ? peer(s->links[0].fd) : 0;

	if (pid > 0)
		prctl(PR_SET_PTRACER, (unsigned long)pid, 0, 0, 0); /* without effect, the server says that it may not */
	int bad = cs_question(s, &(struct cs_frame){.type = CS_ATTACH}, NULL, &a, deadline, why);

	if (!bad && a.type == CS_ASK) {
		s->sign = a.id;
		struct cs_frame present = {.type = CS_PRESENT, .id = a.id, .offset = (uint64_t)(uintptr_t)&s->sign};

		bad = cs_question(s, &present, NULL, &a, deadline, why);
	}
	if (pid > 0)
		prctl(PR_SET_PTRACER, 0UL, 0, 0, 0); /* it was needed for the opening only */
	if (bad)
		return -1;
	*status = a.status;
	return a.type == CS_ATTACHED && a.status == CS_OK
		       ? 0
		       : cs_fail(why, "the server may not open this process's memory: status %u", a.status);
}

int cs_shm_attach(struct cs_session *s, int64_t deadline, struct cs_why *why)
{
	enum { TRIES = 3 }; /* another library of this process may take the permission away in between */
	uint8_t status = CS_DENIED;
	int bad = -1;

	for (int i = 0; bad && i < TRIES && status == CS_DENIED; i++) {
		status = CS_OK;
		bad = try_attach(s, deadline, &status, why);
	}
	return bad;
}
