/* HTTP/1.1, one exchange to a connection, for the two requests of the control plane. */
#define _GNU_SOURCE
#include "cs_base.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

int cs_endpoint(const char *url, struct cs_endpoint *e, struct cs_why *why)
{
	static const char plain[] = "http://";

	if (strncasecmp(url, "https://", 8) == 0)
		return cs_fail(why, "https is not supported: the endpoint must be http://host:port");
	if (strncasecmp(url, plain, sizeof plain - 1) != 0)
		return cs_fail(why, "endpoint is not http://host:port");
	url += sizeof plain - 1;
	size_t size = strcspn(url, "/?#");

	if (size == 0 || size >= CS_MAX_HOST || (url[size] && strcmp(url + size, "/") != 0))
		return cs_fail(why, "endpoint is not http://host:port");
	for (size_t i = 0; i < size; i++)
		if (url[i] <= ' ' || url[i] >= 0x7f || url[i] == '@')
			return cs_fail(why, "endpoint is not http://host:port");
	memcpy(e->named, url, size);
	e->named[size] = 0;

	const char *from = e->named, *end = from + size, *port = end;

	if (*from == '[') {
		const char *closing = strchr(++from, ']');

		if (!closing)
			return cs_fail(why, "endpoint has an address without ]");
		end = closing;
		port = closing + 1;
	} else if (strchr(from, ':')) {
		end = port = strchr(from, ':');
	}
	if (end == from || (*port && *port != ':') || (*port && (port[1] == 0 || strlen(port + 1) >= sizeof e->port)))
		return cs_fail(why, "endpoint has no host, or a wrong port");
	memcpy(e->host, from, (size_t)(end - from));
	e->host[end - from] = 0;
	strcpy(e->port, *port ? port + 1 : "80");
	return e->port[strspn(e->port, "0123456789")] ? cs_fail(why, "endpoint has a wrong port") : 0;
}

int cs_send(int fd, const void *data, size_t size, int flags, int64_t deadline)
{
	const char *from = data;

	while (size > 0) {
		ssize_t n = send(fd, from, size, flags | MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n > 0) {
			from += n;
			size -= (size_t)n;
			continue;
		}
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -1;
		if (cs_until_ready(fd, POLLOUT, deadline))
			return -1;
	}
	return 0;
}

/* some receives at least one byte; 0: the end. */
static ssize_t some(int fd, void *data, size_t size, int64_t deadline)
{
	for (;;) {
		if (cs_until_ready(fd, POLLIN, deadline))
			return -1;
		ssize_t n = recv(fd, data, size, MSG_DONTWAIT);

		if (n >= 0 || (errno != EAGAIN && errno != EINTR))
			return n;
	}
}

int cs_receive(int fd, void *data, size_t size, int64_t deadline)
{
	char *to = data;

	while (size > 0) {
		ssize_t n = some(fd, to, size, deadline);

		if (n <= 0)
			return -1;
		to += n;
		size -= (size_t)n;
	}
	return 0;
}

/* length reads the value of a Content-Length header up to the end of its line. */
static int length(const char *from, const char *end, size_t *size)
{
	size_t n = 0;

	while (from < end && (*from == ' ' || *from == '\t'))
		from++;
	while (end > from && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	if (from == end)
		return -1;
	for (; from < end; from++) {
		if (*from < '0' || *from > '9')
			return -1;
		n = n * 10 + (size_t)(*from - '0');
		if (n > CS_MAX_BODY)
			return -1;
	}
	*size = n;
	return 0;
}

static int named(const char *line, const char *end, const char *name)
{
	size_t size = strlen(name);

	return (size_t)(end - line) > size && strncasecmp(line, name, size) == 0 && line[size] == ':';
}

/* head reads the status line and the headers, which end at end; known: there was a length. */
static int head(const char *text, const char *end, struct cs_answer *a, int *known)
{
	if (end - text < 12 || memcmp(text, "HTTP/1.", 7) != 0 || text[8] != ' ')
		return -1;
	a->status = 0;
	for (int i = 9; i < 12; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -1;
		a->status = a->status * 10 + (text[i] - '0');
	}
	*known = 0;
	while ((text = memchr(text, '\n', (size_t)(end - text))) && ++text < end) {
		const char *stop = memchr(text, '\r', (size_t)(end - text));
		size_t size;

		if (!stop)
			stop = end;
		if (named(text, stop, "transfer-encoding"))
			return -1;
		if (!named(text, stop, "content-length"))
			continue;
		if (length(text + sizeof "content-length", stop, &size) || (*known && size != a->size))
			return -1;
		a->size = size;
		*known = 1;
	}
	return 0;
}

int cs_parse(const char *text, size_t size, int end, struct cs_answer *a)
{
	const char *blank = memmem(text, size < CS_MAX_HEAD ? size : CS_MAX_HEAD, "\r\n\r\n", 4);
	int known;

	if (!blank)
		return end || size >= CS_MAX_HEAD ? -1 : 1;
	if (head(text, blank, a, &known) || a->status < 200)
		return -1;
	const char *body = blank + 4;
	size_t there = size - (size_t)(body - text);

	if (!known) {
		if (there > CS_MAX_BODY)
			return -1;
		if (!end)
			return 1;
		a->size = there;
	}
	if (there < a->size)
		return end ? -1 : 1;
	memcpy(a->body, body, a->size);
	a->body[a->size] = 0;
	return 0;
}

static int answer(int fd, int64_t deadline, struct cs_answer *a, struct cs_why *why)
{
	enum { ROOM = CS_MAX_HEAD + CS_MAX_BODY + 1 };
	char *text = malloc(ROOM);
	size_t used = 0;
	int state = 1;

	if (!text)
		return cs_fail(why, "no memory");
	while (state == 1 && used < ROOM) {
		ssize_t n = some(fd, text + used, ROOM - used, deadline);

		if (n < 0)
			break;
		used += (size_t)n;
		state = cs_parse(text, used, n == 0, a);
	}
	cs_wipe(text, used); /* it may hold a session's secret */
	free(text);
	return state == 0 ? 0 : cs_fail(why, "no whole answer to an HTTP request came, or not one of this server");
}

int cs_exchange(const struct cs_endpoint *e, const struct cs_part request[2], int64_t deadline, struct cs_answer *a,
		struct cs_why *why)
{
	int fd = cs_connect(e->host, e->port, deadline, why), bad;

	if (fd < 0)
		return -1;
	if (cs_send(fd, request[0].data, request[0].size, 0, deadline) ||
	    cs_send(fd, request[1].data, request[1].size, 0, deadline))
		bad = cs_fail(why, "send an HTTP request: errno %d", errno);
	else
		bad = answer(fd, deadline, a, why);
	close(fd);
	return bad;
}
