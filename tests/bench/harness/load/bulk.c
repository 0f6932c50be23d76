/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of bytes. Neither end copies them: what is to be measured is the way between. */
#include "load.h"
#include <sys/mman.h>
#include <sys/sendfile.h>

#define CHUNK (1 << 20)

static int chunk = -1;

void prepare_bulk(void)
{
	chunk = memfd_create("chunk", MFD_CLOEXEC);
	if (chunk < 0 || ftruncate(chunk, CHUNK))
		die("memfd_create");
}

ssize_t push(int fd)
{
	off_t start = 0;

	return sendfile(fd, chunk, &start, CHUNK);
}

ssize_t pull(int fd)
{
	return recv(fd, NULL, CHUNK, MSG_TRUNC);
}

void move_once(int fd, mover mover)
{
	ssize_t length = mover(fd);

	if (length > 0)
		report_moved(length);
	else if (!length)
		close(fd);
	else if (errno != EAGAIN)
		give_up(fd, errno);
}

void run_streams(int count, uint64_t until, mover mover)
{
	struct epoll_event found[EVENTS];
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	active = count;
	for (int i = 0; i < count; i++) {
		int fd = connect_there();

		if (fd >= 0)
			watch(epoll, fd, mover == push ? EPOLLOUT : EPOLLIN, NULL);
	}
	while (active && now() < until) {
		int ready = epoll_wait(epoll, found, EVENTS, WAIT_MS);

		for (int i = 0; i < ready; i++)
			move_once(found[i].data.fd, mover);
	}
}
