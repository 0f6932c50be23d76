/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sockets of this node that come before a Service: a listener on a ClusterIP that is also an
 * address of the node, such as a DNS cache, a connected socket at a NodePort, and the agent's to
 * the API server. Also those that have a port that a masqueraded flow would get.
 */
#ifndef LB_LISTENER_H
#define LB_LISTENER_H

#include "addr.h"
#include "filter.h"
#include "frontend.h"

/*
 * Whether the agent's connections to the API server must not be diverted to this Service, or a
 * Service with the API server's address would lock the agent out for good, which alone can remove
 * it. A ClusterIP is the Service's own, and the API server's may be what the agent uses.
 */
static __always_inline int lb_is_closed_to_agent(const struct lb_desc *desc)
{
	return desc->type != LB_CLUSTER_IP;
}

static __always_inline int lb_is_of_agent(const struct bpf_sock *sk)
{
	return sk && sk->priority == LB_SOCKET_OF_AGENT;
}

static __always_inline int lb_is_packet_of_agent(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	return sk && lb_is_of_agent(bpf_sk_fullsock(sk));
}

static __always_inline int lb_is_cluster_ip_of_node(const struct lb_addr *addr)
{
	int both = LB_ADDR_CLUSTER_IP | LB_ADDR_NODE;

	return (lb_filter_flags_of(addr) & both) == both && (lb_addr_flags_of(addr) & both) == both;
}

/*
 * A socket that is bound to all addresses does not count: it was not opened for this address, which
 * may be a leftover.
 */
static __always_inline int lb_is_bound_to(const struct bpf_sock *sk, const struct lb_addr *addr)
{
	__be32 ipv4;

	if (lb_addr_is_ipv4(addr)) {
		ipv4 = sk->src_ip4;
		/* Or the compiler loads this and src_ip6[3] at once, by a computed pointer. */
		asm volatile("" : "+r"(ipv4));
		return ipv4 == addr->word[3];
	}
	return !((sk->src_ip6[0] ^ addr->word[0]) | (sk->src_ip6[1] ^ addr->word[1]) |
		 (sk->src_ip6[2] ^ addr->word[2]) | (sk->src_ip6[3] ^ addr->word[3]));
}

/* Returns the size that a lookup requires for the family. */
static __always_inline int lb_sock_tuple_fill(struct bpf_sock_tuple *tuple,
					      const struct lb_tuple *packet)
{
	if (lb_addr_is_ipv4(&packet->daddr)) {
		tuple->ipv4.saddr = packet->saddr.word[3];
		tuple->ipv4.daddr = packet->daddr.word[3];
		tuple->ipv4.sport = packet->sport;
		tuple->ipv4.dport = packet->dport;
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(tuple->ipv6.saddr, &packet->saddr, sizeof(struct lb_addr));
	__builtin_memcpy(tuple->ipv6.daddr, &packet->daddr, sizeof(struct lb_addr));
	tuple->ipv6.sport = packet->sport;
	tuple->ipv6.dport = packet->dport;
	return sizeof(tuple->ipv6);
}

/* The socket that would get a packet of TCP or UDP: release it. ctx: in its namespace. */
static __always_inline struct bpf_sock *lb_sock_lookup(void *ctx, struct bpf_sock_tuple *tuple,
						       const struct lb_tuple *packet)
{
	int size = lb_sock_tuple_fill(tuple, packet);

	if (packet->proto == IPPROTO_UDP)
		return bpf_sk_lookup_udp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (packet->proto == IPPROTO_TCP)
		return bpf_sk_lookup_tcp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	return NULL;
}

/* Whether a socket bound to the packet's destination would get it. ctx: in its namespace. */
static __always_inline int lb_has_listener(void *ctx, const struct lb_tuple *packet)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk = lb_sock_lookup(ctx, &tuple, packet);
	int is_bound;

	if (!sk)
		return 0;
	is_bound = lb_is_bound_to(sk, &packet->daddr);
	bpf_sk_release(sk);
	return is_bound;
}

/*
 * Whether a socket of this node gets what a backend sends to this address and port: one that is
 * connected to it, or of UDP any.
 */
static __always_inline int lb_has_socket(void *ctx, const struct lb_tuple *reply)
{
	struct bpf_sock_tuple *tuple = LB_SCRATCH(sock_tuple);
	struct bpf_sock *sk;
	int is_listener;

	if (!tuple)
		return 0;
	sk = lb_sock_lookup(ctx, tuple, reply);
	if (!sk)
		return 0;
	is_listener = reply->proto == IPPROTO_TCP && sk->state == BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return !is_listener;
}

/* A UDP packet to a connected socket of this host is not a request. */
static __always_inline int lb_has_connected_socket(void *ctx, const struct lb_tuple *packet)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	int is_connected;

	if (packet->proto != IPPROTO_UDP)
		return 0;
	sk = lb_sock_lookup(ctx, &tuple, packet);
	if (!sk)
		return 0;
	is_connected = sk->dst_port != 0;
	bpf_sk_release(sk);
	return is_connected;
}

#endif
