/* In the place of cs_verbs.c: faked adapters fake0 and fake1 in the driver's process, and its words about them. */
#define _GNU_SOURCE
#include "cs_rc.h"
#include "fk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nic_obey(char **w, int count);

static struct fk_nic *nic;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make(void)
{
	nic = fk_new(&(struct fk_options){.timeout_scale = 1.0 / 50, .log = 1 << 10});
	for (int i = 0; i < 2; i++) {
		struct fk_device_options o = {
			.guid = (uint64_t)i + 1, .mtu = 3, .lid = (uint32_t)i + 1, .gid_count = 1, .max_qp = 1 << 10,
			.max_cq = 1 << 10, .max_cqe = 1 << 10, .max_wr = 1 << 10, .max_mr = 1 << 10, .max_rd = 16,
			.max_mr_bytes = (uint64_t)1 << 62, .max_message = 1 << 30,
			.gids[0] = {.raw = {[10] = 0xff, 0xff, 10, 99, 0, (uint8_t)(i + 1)}, .type = NV_GID_ROCE_V2},
		};

		snprintf(o.name, sizeof o.name, "fake%d", i);
		snprintf(o.gids[0].netdev, sizeof o.gids[0].netdev, "fk%d", i);
		fk_add_device(nic, &o);
	}
}

int cs_verbs_open(struct nv_lib **lib, struct cs_why *why)
{
	pthread_once(&once, make);
	return nv_open_table(fk_table(nic), lib) == NV_AVAILABLE ? 0 : cs_fail(why, "no faked adapter");
}

static int point(const char *name)
{
	static const struct {
		const char *name;
		int point;
	} all[] = {{"reg", FK_AT_REG_MR}, {"dereg", FK_AT_DEREG_MR}, {"create", FK_AT_CREATE_QP}, {"destroy", FK_AT_DESTROY_QP},
		   {"error", FK_AT_ERROR}, {"receive", FK_AT_RTR}, {"pd", FK_AT_ALLOC_PD}, {"open", FK_AT_OPEN_DEVICE}};

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (strcmp(name, all[i].name) == 0)
			return all[i].point;
	abort();
}

int nic_obey(char **w, int count)
{
	struct fk_counters c;

	if (strcmp(w[0], "nic") != 0 || count < 2)
		return -1;
	pthread_once(&once, make);
	if (strcmp(w[1], "counters") == 0) {
		fk_read_counters(nic, &c);
		printf("%llu devices %llu domains %llu keys %llu pairs %d violations\n", (unsigned long long)c.contexts,
		       (unsigned long long)c.pds, (unsigned long long)c.mrs, (unsigned long long)c.qps, fk_violations(nic));
		return 0;
	}
	if (count < 3)
		return -1;
	if (strcmp(w[1], "kill") == 0)
		fk_set_fatal(nic, atoi(w[2]));
	else if (strcmp(w[1], "down") == 0)
		fk_set_port(nic, atoi(w[2]), 0);
	else if (strcmp(w[1], "fail") == 0)
		fk_inject(nic, &(struct fk_rule_options){.point = point(w[2]), .effect = FK_FAIL, .device = -1, .times = -1,
							 .err = ENOMEM});
	else if (strcmp(w[1], "hold") == 0)
		fk_inject(nic, &(struct fk_rule_options){.point = point(w[2]), .effect = FK_HOLD, .device = -1, .times = -1});
	else
		return -1;
	puts("0");
	return 0;
}
