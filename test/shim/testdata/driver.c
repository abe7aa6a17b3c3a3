/*
 * A client of the shim that obeys a line at a time: memory is numbered, patterns are functions of a seed and a position.
 * The Go tests send the requests, and know what the answers and the bytes must be.
 */
#define _GNU_SOURCE
#include "penstock_cuobj.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORIES = 64 };

/* Words about faked adapters, where the driver has some. */
int nic_obey(char **words, int count) __attribute__((weak));

static struct {
	uint8_t *base;
	size_t size;
} memory[MEMORIES];

static uint8_t pattern(uint64_t seed, uint64_t at)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15u + at / 8;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (uint8_t)(x >> 8 * (at % 8));
}

static void fill(uint8_t *to, size_t size, uint64_t seed)
{
	for (size_t i = 0; i < size; i++)
		to[i] = pattern(seed, i);
}

/* check says where the bytes differ first. */
static void check(const uint8_t *from, size_t size, uint64_t seed)
{
	for (size_t i = 0; i < size; i++) {
		if (from[i] != pattern(seed, i)) {
			printf("differs at %zu\n", i);
			return;
		}
	}
	puts("same");
}

/* await returns when one of many bytes is another than the pattern's. */
static void await(const uint8_t *from, size_t size, uint64_t seed)
{
	enum { STEP = 4096 };

	for (;;)
		for (size_t i = 0; i < size; i += STEP)
			if (((const volatile uint8_t *)from)[i] != pattern(seed, i))
				return;
}

static void result(int bad)
{
	if (bad)
		printf("%d %s\n", bad, penstock_cuobj_last_error());
	else
		puts("0");
}

struct job {
	int number, rounds, bad;
};

/* work gets and puts tokens of memory of its own. */
static void *work(void *argument)
{
	struct job *j = argument;
	uint8_t *own = malloc(4096);

	for (int i = 0; i < j->rounds && own; i++) {
		if (cuobj_register_buffer(own, 4096))
			j->bad++;
		const char *t = cuobj_get_rdma_token(own, 100, (size_t)i % 100, i & 1);

		if (!t || (i % 3 && cuobj_put_rdma_token(t)))
			j->bad++;
		if (cuobj_deregister_buffer(own)) /* with the token that was not put back */
			j->bad++;
	}
	free(own);
	return NULL;
}

static void *put_back(void *token)
{
	return cuobj_put_rdma_token(token) ? token : NULL;
}

/* twice puts the library's own text of a token back by two threads at a time. */
static void twice(const char *token)
{
	pthread_t other;

	if (!token || pthread_create(&other, NULL, put_back, (void *)(uintptr_t)token))
		exit(5);
	void *own = put_back((void *)(uintptr_t)token), *others;

	pthread_join(other, &others);
	puts(own || others ? "failed" : "0");
}

static void threads(int count, int rounds)
{
	enum { MOST = 256 };
	static pthread_t all[MOST];
	static struct job jobs[MOST];
	int bad = 0;

	for (int i = 0; i < count && i < MOST; i++) {
		jobs[i] = (struct job){i, rounds, 0};
		if (pthread_create(&all[i], NULL, work, &jobs[i]))
			exit(5);
	}
	for (int i = 0; i < count && i < MOST; i++) {
		pthread_join(all[i], NULL);
		bad += jobs[i].bad;
	}
	printf("%d %s\n", bad, bad ? penstock_cuobj_last_error() : "");
}

static int obey(char **w, int count)
{
	unsigned long long n[6] = {0};

	for (int i = 1; i < count && i < 6; i++)
		n[i] = strtoull(w[i], NULL, 0);
	uint8_t *base = n[1] < MEMORIES ? memory[n[1]].base : NULL;

	if (strcmp(w[0], "available") == 0) {
		printf("%d %s\n", cuobj_available(), penstock_cuobj_last_error());
	} else if (strcmp(w[0], "alloc") == 0) {
		memory[n[1]].base = calloc(1, n[2]);
		memory[n[1]].size = n[2];
		puts("0");
	} else if (strcmp(w[0], "free") == 0) {
		free(base);
		memory[n[1]].base = NULL;
		puts("0");
	} else if (strcmp(w[0], "fill") == 0) {
		fill(base, memory[n[1]].size, n[2]);
		puts("0");
	} else if (strcmp(w[0], "check") == 0) { /* memory, offset, size, seed */
		check(base + n[2], n[3], n[4]);
	} else if (strcmp(w[0], "await") == 0) { /* memory, seed */
		await(base, memory[n[1]].size, n[2]);
		puts("changed");
	} else if (strcmp(w[0], "register") == 0) {
		result(cuobj_register_buffer(base, memory[n[1]].size));
	} else if (strcmp(w[0], "deregister") == 0) {
		result(cuobj_deregister_buffer(base));
	} else if (strcmp(w[0], "token") == 0) { /* memory, size, offset, put */
		const char *t = cuobj_get_rdma_token(base, n[2], n[3], (int)n[4]);

		printf("%s\n", t ? t : penstock_cuobj_last_error());
	} else if (strcmp(w[0], "put") == 0) {
		result(cuobj_put_rdma_token(w[1]));
	} else if (strcmp(w[0], "twice") == 0) { /* memory, size, offset, put */
		twice(cuobj_get_rdma_token(base, n[2], n[3], (int)n[4]));
	} else if (strcmp(w[0], "threads") == 0) {
		threads((int)n[1], (int)n[2]);
	} else if (strcmp(w[0], "fork") == 0) { /* the child goes on with the lines, until it exits */
		pid_t child;
		int status = 1;

		fflush(stdout);
		child = fork();
		if (child > 0)
			waitpid(child, &status, 0);
		printf("%s %d\n", child == 0 ? "child" : "parent", child == 0 ? 0 : status);
	} else if (strcmp(w[0], "exit") == 0) {
		puts("0");
		fflush(stdout);
		_exit(0);
	} else if (!nic_obey || nic_obey(w, count)) {
		return -1;
	}
	fflush(stdout);
	return 0;
}

int main(void)
{
	char line[1024];

	setvbuf(stdin, NULL, _IONBF, 0); /* a child takes the lines that its parent has not read */
	while (fgets(line, sizeof line, stdin)) {
		char *words[8];
		int count = 0;

		for (char *w = strtok(line, " \n"); w && count < 8; w = strtok(NULL, " \n"))
			words[count++] = w;
		if (count == 0 || obey(words, count))
			return 2;
	}
	for (int i = 0; i < MEMORIES; i++)
		free(memory[i].base);
	return 0;
}
