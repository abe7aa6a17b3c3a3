/* The ports of this machine's adapters, and how well they reach the rails of a server. */
#define _GNU_SOURCE
#include "cs_rc.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lengths of prefixes where the network device does not tell its own: the usual ones. */
enum { USUAL_BITS4 = 24, USUAL_BITS6 = 64, SUBNET_PREFIX = 64 /* of a GID on InfiniBand */ };

static int mapped(const uint8_t gid[16])
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid, prefix, sizeof prefix) == 0;
}

/* Ranks of the entries of a table, the best first: IPv4 names a rail for others, what is link-local needs a shared link. */
enum { BEST, IPV6, LINK_LOCAL4, LINK_LOCAL6, LOOPBACK, UNUSABLE };

static int worth(const struct nv_gid *g)
{
	struct in6_addr a;

	if (g->type != NV_GID_ROCE_V2)
		return UNUSABLE;
	memcpy(&a, g->raw, sizeof a);
	if (mapped(g->raw)) {
		uint8_t first = g->raw[12];

		if (first == 0 || first >= 224)
			return UNUSABLE;
		if (first == 127)
			return LOOPBACK;
		return first == 169 && g->raw[13] == 254 ? LINK_LOCAL4 : BEST;
	}
	if (IN6_IS_ADDR_UNSPECIFIED(&a) || IN6_IS_ADDR_MULTICAST(&a))
		return UNUSABLE;
	if (IN6_IS_ADDR_LOOPBACK(&a))
		return LOOPBACK;
	return IN6_IS_ADDR_LINKLOCAL(&a) ? LINK_LOCAL6 : IPV6;
}

/* pick chooses the entry of a port's table: of the best kind, of the port's own network device, the first. */
static const struct nv_gid *pick(const struct nv_gid *all, int32_t count, int infiniband)
{
	const struct nv_gid *best = NULL;

	for (int32_t i = 0; i < count; i++) {
		const struct nv_gid *g = &all[i];

		if (infiniband) {
			if (g->index == 0)
				return g;
			continue;
		}
		if (worth(g) == UNUSABLE)
			continue;
		int foreign = strcmp(g->network, all[0].network) != 0, was = best && strcmp(best->network, all[0].network) != 0;

		if (!best || worth(g) < worth(best) || (worth(g) == worth(best) && foreign < was))
			best = g;
	}
	return best;
}

static unsigned ones(const void *mask, size_t size)
{
	const uint8_t *m = mask;
	unsigned n = 0;

	for (size_t i = 0; i < size; i++)
		n += (unsigned)__builtin_popcount(m[i]);
	return n;
}

/* subnet asks the network device for the length of the prefix of its address. */
static unsigned subnet(const struct nv_gid *g)
{
	struct ifaddrs *all, *a;
	int four = mapped(g->raw);
	unsigned bits = four ? USUAL_BITS4 : USUAL_BITS6;

	if (getifaddrs(&all))
		return bits;
	for (a = all; a; a = a->ifa_next) {
		if (!a->ifa_addr || !a->ifa_netmask || strcmp(a->ifa_name, g->network) != 0)
			continue;
		if (four && a->ifa_addr->sa_family == AF_INET) {
			const struct sockaddr_in *own = (const void *)a->ifa_addr, *mask = (const void *)a->ifa_netmask;

			if (memcmp(&own->sin_addr, g->raw + 12, 4) == 0)
				bits = ones(&mask->sin_addr, 4);
		} else if (!four && a->ifa_addr->sa_family == AF_INET6) {
			const struct sockaddr_in6 *own = (const void *)a->ifa_addr, *mask = (const void *)a->ifa_netmask;

			if (memcmp(&own->sin6_addr, g->raw, 16) == 0)
				bits = ones(&mask->sin6_addr, 16);
		}
	}
	freeifaddrs(all);
	return bits;
}

/* look fills a port as its adapter sees it now; -1: it can carry nothing. */
static int look(struct nv_device *device, struct cs_port *p)
{
	struct nv_gid *gids = calloc(NV_GIDS, sizeof *gids);
	const struct nv_gid *g = NULL;
	struct nv_port_info info;
	int32_t count = 0;

	p->up = 0;
	if (gids && nv_port(device, p->number, &info).err == 0 &&
	    (info.link == NV_LINK_INFINIBAND || info.link == NV_LINK_ETHERNET) &&
	    nv_gids(device, p->number, (struct nv_range){0, info.gids}, gids, NV_GIDS, &count).err == 0 && count > 0) {
		p->infiniband = info.link == NV_LINK_INFINIBAND;
		g = pick(gids, count, p->infiniband);
	}
	if (g) {
		if (memcmp(p->gid, g->raw, sizeof p->gid) != 0)
			p->strange = 0;
		p->up = info.active == 1;
		p->lid = info.lid;
		p->mtu = info.mtu;
		p->gid_index = g->index;
		memcpy(p->gid, g->raw, sizeof p->gid);
		p->bits = p->infiniband ? SUBNET_PREFIX : subnet(g);
	}
	free(gids);
	return g ? 0 : -1;
}

/* chosen tells whether a list "mlx5_0,mlx5_1/1" has the device or the port. */
static int chosen(const char *names, const char *device, int port)
{
	char own[NV_NAME_BYTES + 12]; /* and any number */

	if (!names || !*names)
		return 1;
	snprintf(own, sizeof own, "%s/%d", device, port);
	for (const char *at = names; *at;) {
		size_t size = strcspn(at, ", ");

		if ((size == strlen(own) && strncmp(at, own, size) == 0) ||
		    (size == strlen(device) && strncmp(at, device, size) == 0))
			return 1;
		at += size + strspn(at + size, ", ");
	}
	return 0;
}

static void look_at(struct cs_rc *rc, const struct nv_device_info *info, const char *names)
{
	struct nv_device *device;

	if (info->unopened || nv_device_open(rc->lib, info->name, &device).err)
		return;
	for (int32_t n = 1; n <= info->ports && n <= UINT8_MAX && rc->port_count < CS_MAX_PORTS; n++) {
		struct cs_port *p = &rc->ports[rc->port_count];

		*p = (struct cs_port){.number = (uint8_t)n};
		memcpy(p->device, info->name, sizeof p->device);
		if (chosen(names, info->name, n) && look(device, p) == 0)
			rc->port_count++;
	}
	nv_device_close(device); /* nothing was made of it */
}

int cs_rc_look(struct cs_rc *rc, const char *names, struct cs_why *why)
{
	struct nv_device_info *list;
	int32_t count;
	struct nv_status status = nv_devices(rc->lib, &list, &count);
	int up = 0;

	if (status.err)
		return cs_fail(why, "%s: errno %d", status.call, status.err);
	for (int32_t i = 0; i < count; i++)
		look_at(rc, &list[i], names);
	nv_free(list);
	for (uint32_t i = 0; i < rc->port_count; i++)
		up += rc->ports[i].up;
	if (up)
		return 0;
	return cs_fail(why, count == 0 ? "this machine has no RDMA adapter"
				       : "no port of this machine's RDMA adapters is up and may be used");
}

void cs_rc_refresh(struct cs_rc *rc, const struct cs_adapter *a)
{
	for (uint32_t i = 0; i < rc->port_count; i++)
		if (strcmp(rc->ports[i].device, a->name) == 0)
			look(a->device, &rc->ports[i]);
}

static int same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
	if (memcmp(a, b, bits / 8) != 0)
		return 0;
	return bits % 8 == 0 || (a[bits / 8] ^ b[bits / 8]) >> (8 - bits % 8) == 0;
}

int cs_rc_rank(const struct cs_port *p, const struct cs_rail *r)
{
	enum { NO, SAME_LINK, SAME_SUBNET };
	int four = mapped(p->gid), peer = mapped(r->gid);
	int infiniband = r->lid != 0 && !peer; /* ports on Ethernet have no LID, or one that means nothing */

	if (!p->infiniband != !infiniband)
		return NO;
	if (p->infiniband)
		return same_bits(p->gid, r->gid, p->bits) ? SAME_SUBNET : SAME_LINK;
	if (four != peer)
		return NO;
	if (four)
		return same_bits(p->gid + 12, r->gid + 12, p->bits) ? SAME_SUBNET : SAME_LINK;
	return same_bits(p->gid, r->gid, p->bits) ? SAME_SUBNET : SAME_LINK;
}
