/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections one after the other: connect, a byte each way, close. The server closes first: what
 * remains of a connection (TIME_WAIT) remains there, and the client has its port back at once, so
 * that no number of ports limits a rate. Both ends close with FIN, as most programs do.
 */
#include "load.h"

struct connection {
	int fd;
	bool is_asked;
	bool is_answered;
	uint64_t started;
};

static int epoll;

ssize_t answer(int fd)
{
	char byte;
	ssize_t length = recv(fd, &byte, 1, 0);

	if (length <= 0)
		return length;
	return send(fd, &byte, 1, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static void begin(struct connection *connection)
{
	connection->started = now();
	connection->is_asked = false;
	connection->is_answered = false;
	connection->fd = connect_there();
	if (connection->fd >= 0)
		watch(epoll, connection->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, connection);
}

static void end(struct connection *connection)
{
	close(connection->fd);
	report_closed(now() - connection->started);
	begin(connection);
}

static bool ask(struct connection *connection)
{
	if (!connection->is_asked)
		connection->is_asked = send(connection->fd, "?", 1, MSG_NOSIGNAL) == 1;
	return connection->is_asked;
}

static void advance(struct connection *connection, uint32_t events)
{
	char byte;

	if (!ask(connection)) {
		give_up(connection->fd, errno);
		return;
	}
	if (events & EPOLLIN && !connection->is_answered)
		connection->is_answered = recv(connection->fd, &byte, 1, 0) == 1;
	if (!(events & EPOLLRDHUP))
		return;
	if (connection->is_answered)
		end(connection);
	else
		give_up(connection->fd, ECONNRESET);
}

void run_connects(int count, uint64_t until)
{
	struct connection *connections = calloc(count, sizeof(*connections));
	struct epoll_event found[EVENTS];

	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!connections || epoll < 0)
		die("starting");
	active = count;
	for (int i = 0; i < count; i++)
		begin(&connections[i]);
	while (active && now() < until) {
		int ready = epoll_wait(epoll, found, EVENTS, WAIT_MS);

		for (int i = 0; i < ready; i++)
			advance(found[i].data.ptr, found[i].events);
	}
}
