/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the load program share. One process runs one role, in one thread. */
#ifndef LOAD_H
#define LOAD_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#define EVENTS 256
#define WAIT_MS 100

/* Reads or writes once. Like recv(): a length, 0 for an end, -1 with errno. */
typedef ssize_t (*mover)(int fd);

/* main.c; nanoseconds of the clock, and of processor time that this process has used */
void die(const char *what);
uint64_t now(void);
uint64_t used(void);

/* connection.c */
extern int active;
void resolve(const char *address, const char *port);
int listen_there(void);
int connect_there(void);
void watch(int epoll, int fd, uint32_t events, void *ptr);
void give_up(int fd, int error);
void serve(uint32_t events, mover mover);

/* rate.c */
ssize_t answer(int fd);
void run_connects(int count, uint64_t until);

/* bulk.c */
void prepare_bulk(void);
ssize_t push(int fd);
ssize_t pull(int fd);
void move_once(int fd, mover mover);
void run_streams(int count, uint64_t until, mover mover);

/* report.c */
void report_closed(uint64_t nanoseconds);
void report_moved(uint64_t bytes);
void report_error(int error);
void print_report(uint64_t elapsed, uint64_t used);

#endif
