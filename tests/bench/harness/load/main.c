/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of the benches, in three pairs of a server and a client:
 *
 *	load answer ADDRESS PORT                  a byte for a byte, then closes
 *	load ask ADDRESS PORT SECONDS COUNT       connect, a byte each way, close; COUNT at a time
 *	load sink ADDRESS PORT                    takes bytes
 *	load push ADDRESS PORT SECONDS COUNT      sends bytes on COUNT connections
 *	load source ADDRESS PORT                  sends bytes
 *	load pull ADDRESS PORT SECONDS COUNT      takes bytes on COUNT connections
 *
 * A server prints "ready" and runs until it is killed; a client prints one JSON object.
 */
#include "load.h"
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

struct role {
	const char *name;
	bool is_server;
	uint32_t events;
	mover mover;
};

static const struct role roles[] = {
	{ "answer", true, EPOLLIN, answer }, { "ask", false, 0, NULL },
	{ "sink", true, EPOLLIN, pull },     { "push", false, EPOLLOUT, push },
	{ "source", true, EPOLLOUT, push },  { "pull", false, EPOLLIN, pull },
};

void die(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t read_clock(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

uint64_t now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t used(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

static const struct role *role_of(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(roles) / sizeof(*roles); i++) {
		const struct role *role = &roles[i];

		if (!strcmp(argv[1], role->name) && argc == (role->is_server ? 4 : 6))
			return role;
	}
	fprintf(stderr, "usage: load answer|sink|source ADDRESS PORT\n"
			"       load ask|push|pull ADDRESS PORT SECONDS COUNT\n");
	exit(2);
}

static void run_client(const struct role *role, double seconds, int count)
{
	uint64_t used_before = used(), start = now(), until = start + seconds * 1e9;

	if (role->mover)
		run_streams(count, until, role->mover);
	else
		run_connects(count, until);
	print_report(now() - start, used() - used_before);
}

int main(int argc, char **argv)
{
	const struct role *role = role_of(argc, argv);

	signal(SIGPIPE, SIG_IGN);
	/* Whoever started this and died wants no load any more. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	resolve(argv[2], argv[3]);
	prepare_bulk();
	if (role->is_server)
		serve(role->events, role->mover);
	else
		run_client(role, atof(argv[4]), atoi(argv[5]));
	return 0;
}
