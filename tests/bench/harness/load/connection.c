/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets: the one address of this process, how it is served, how it is connected to. */
#include "load.h"
#include <netdb.h>

#define BACKLOG 4096

int active;

static struct addrinfo *there;

void resolve(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV };
	int error = getaddrinfo(address, port, &hints, &there);

	if (!error)
		return;
	fprintf(stderr, "load: %s port %s: %s\n", address, port, gai_strerror(error));
	exit(2);
}

static int new_socket(void)
{
	int fd = socket(there->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket");
	return fd;
}

int listen_there(void)
{
	int fd = new_socket(), on = 1;

	/* Several servers share the port: the kernel spreads connections over them. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)))
		die("setsockopt");
	if (bind(fd, there->ai_addr, there->ai_addrlen))
		die("bind");
	if (listen(fd, BACKLOG))
		die("listen");
	return fd;
}

/* -1 when connecting failed at once, which is counted. */
int connect_there(void)
{
	int fd = new_socket();

	if (!connect(fd, there->ai_addr, there->ai_addrlen) || errno == EINPROGRESS)
		return fd;
	give_up(fd, errno);
	return -1;
}

/* An event carries ptr, or the descriptor when that is NULL. */
void watch(int epoll, int fd, uint32_t events, void *ptr)
{
	struct epoll_event event = { .events = events };

	if (ptr)
		event.data.ptr = ptr;
	else
		event.data.fd = fd;
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		die("epoll_ctl");
}

/* An error ends its connection for good: a rate with errors means nothing. */
void give_up(int fd, int error)
{
	report_error(error);
	active--;
	close(fd);
}

static void accept_all(int epoll, int listening, uint32_t events)
{
	int fd;

	while ((fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
		watch(epoll, fd, events, NULL);
}

void serve(uint32_t events, mover mover)
{
	struct epoll_event found[EVENTS];
	int epoll = epoll_create1(EPOLL_CLOEXEC), listening = listen_there();

	watch(epoll, listening, EPOLLIN, NULL);
	puts("ready");
	fflush(stdout);
	for (;;) {
		int count = epoll_wait(epoll, found, EVENTS, -1);

		for (int i = 0; i < count; i++) {
			if (found[i].data.fd == listening)
				accept_all(epoll, listening, events);
			else
				move_once(found[i].data.fd, mover);
		}
	}
}
