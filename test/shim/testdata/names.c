/* cs_connect with names that this program gives addresses, a line a time: name, two ports, milliseconds. */
#define _GNU_SOURCE
#include "cs_base.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAMES = 2 };

static struct {
	struct addrinfo info;
	struct sockaddr_in address;
} answers[NAMES];

/* The resolver of this program: "two" has two addresses, "silent" a name server that does not answer. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **all)
{
	(void)port;
	if (hints->ai_flags & AI_NUMERICHOST)
		return EAI_NONAME;
	if (strcmp(host, "silent") == 0)
		for (;;)
			pause();
	if (strcmp(host, "two") != 0)
		return EAI_NONAME;
	*all = &answers[0].info;
	return 0;
}

void freeaddrinfo(struct addrinfo *all)
{
	(void)all;
}

int main(void)
{
	char name[64];
	unsigned ports[NAMES];
	long ms;

	while (scanf("%63s %u %u %ld", name, &ports[0], &ports[1], &ms) == 4) {
		struct cs_why why = {""};

		for (int i = 0; i < NAMES; i++) {
			answers[i].address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)ports[i]),
								  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
			answers[i].info = (struct addrinfo){.ai_family = AF_INET, .ai_socktype = SOCK_STREAM,
							    .ai_addr = (struct sockaddr *)&answers[i].address,
							    .ai_addrlen = sizeof answers[i].address};
		}
		answers[0].info.ai_next = &answers[1].info;
		int64_t began = cs_now();
		int fd = cs_connect(name, "1", began + ms, &why);

		if (fd >= 0)
			close(fd);
		printf("%s %lld %s\n", fd >= 0 ? "connected" : "refused", (long long)(cs_now() - began), why.text);
		fflush(stdout);
	}
	_exit(0); /* lookups that hang are no leak */
}
