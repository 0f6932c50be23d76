/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The early filter: array lookups that let most packets pass before they are parsed. lb_dest_filter
 * checks the destination. Only the agent sets it, and clears what neither a Service, nor an address
 * of this node, nor a flow needs any more (addresses.py). lb_reply_filter checks the source; it is
 * set when a flow starts and never cleared, because a stale bit only costs a lookup. But a
 * backend's replies to clients that bypass this node would then cost a lookup forever, so
 * lb_flow_filter also checks the whole tuple; the agent expires marks that no flow needs
 * (flow_filter.py). ICMP errors may come from anywhere, so they always go on. lb_peer_filter does
 * the same for sockets, by their peer.
 */
#ifndef LB_FILTER_H
#define LB_FILTER_H

#include "ipv6_extension.h"
#include "maps.h"
#include "parse.h"

/* ICMP_PARAMETERPROB; the errors of ICMPv6 have lower numbers. */
#define LB_ICMP_LAST_ERROR 12

/* A hash of the last word of an address and a port. */
static __always_inline int lb_filter_index(__be32 address, __be16 port)
{
	return (bpf_ntohl(address) & 0xffff) ^ bpf_ntohs(port);
}

/* A hash of the last words of both addresses and of both ports, in their order on the wire. */
static __always_inline __u64 lb_ends_hash(__be32 saddr, __be32 daddr, __be16 sport, __be16 dport)
{
	__u64 addresses = (__u64)bpf_ntohl(saddr) << 32 | bpf_ntohl(daddr);
	__u32 ports = (__u32)bpf_ntohs(sport) << 16 | bpf_ntohs(dport);
	__u64 hash = addresses * 0x9e3779b97f4a7c15ULL;

	return (hash ^ hash >> 32 ^ ports) * 0xc2b2ae3d27d4eb4fULL;
}

static __always_inline int lb_flow_filter_index(__be32 saddr, __be32 daddr, __be16 sport,
						__be16 dport)
{
	return lb_ends_hash(saddr, daddr, sport, dport) >> 48;
}

/* CLOCK_MONOTONIC in units of 2^30 ns, about a second. now: in ns. */
static __always_inline __u32 lb_flow_mark(__u64 now)
{
	return now >> 30;
}

static __always_inline void lb_flow_filter_add(const struct lb_tuple *packet, __u64 now)
{
	int index = lb_flow_filter_index(packet->saddr.word[3], packet->daddr.word[3],
					 packet->sport, packet->dport);
	__u32 *mark = lb_flow_filter.lookup(&index);

	if (mark)
		*mark = lb_flow_mark(now);
}

static __always_inline int lb_flow_filter_has(__be32 saddr, __be32 daddr, __be16 sport,
					      __be16 dport)
{
	int index = lb_flow_filter_index(saddr, daddr, sport, dport);
	__u32 *mark = lb_flow_filter.lookup(&index);
	struct lb_settings *settings = lb_settings_get();

	return !mark || !settings || *mark >= settings->filter_floor;
}

/* hook: where the reply is reversed. */
static __always_inline void lb_reply_filter_add(const struct lb_tuple *reply, __u8 hook, __u64 now)
{
	int index = lb_filter_index(reply->saddr.word[3], reply->sport);
	struct lb_reply_ends *ends = lb_reply_filter.lookup(&index);

	if (ends)
		ends->hooks[hook % sizeof(ends->hooks)] = 1;
	lb_flow_filter_add(reply, now);
}

/* Whether a packet with these last words and ports may be a reply that is reversed at the hook. */
static __always_inline int lb_reply_filter_has(__be32 saddr, __be32 daddr, __be16 sport,
					       __be16 dport, int hook)
{
	int index = lb_filter_index(saddr, sport);
	struct lb_reply_ends *ends = lb_reply_filter.lookup(&index);

	return ends && ends->hooks[hook] && lb_flow_filter_has(saddr, daddr, sport, dport);
}

/* For the peer that a socket was translated to. */
static __always_inline void lb_peer_filter_add(__be32 address, __be16 port)
{
	int index = lb_filter_index(address, port);
	__u8 *is_set = lb_peer_filter.lookup(&index);

	if (is_set)
		*is_set = 1;
}

static __always_inline int lb_peer_filter_has(__be32 address, __be16 port)
{
	int index = lb_filter_index(address, port);
	__u8 *is_set = lb_peer_filter.lookup(&index);

	return is_set && *is_set;
}

/*
 * What the early filter looks at. saddr, daddr: the last words. sport, dport: the bytes at the
 * ports' offset, 0 if missing; for ICMP, type and code are the source port. is_plain: no fragment,
 * IP options or extension headers, so that these really are ports.
 */
struct lb_summary {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 is_plain;
	__u8 is_ipv4;
};

static __always_inline void lb_summary_ports(struct lb_summary *summary, const __be16 *ports,
					     void *end)
{
	if ((void *)(ports + 2) > end) {
		summary->is_plain = 0;
		return;
	}
	summary->sport = ports[0];
	summary->dport = ports[1];
}

static __always_inline int lb_summary_ipv4(struct lb_summary *summary, struct iphdr *ip, void *end)
{
	if ((void *)(ip + 1) > end)
		return 0;
	summary->saddr = ip->saddr;
	summary->daddr = ip->daddr;
	summary->proto = ip->protocol;
	summary->is_plain = ip->ihl == 5 && !(ip->frag_off & bpf_htons(LB_IPV4_FRAGMENT));
	summary->is_ipv4 = 1;
	lb_summary_ports(summary, (__be16 *)(ip + 1), end);
	return 1;
}

static __always_inline int lb_summary_ipv6(struct lb_summary *summary, struct ipv6hdr *ip,
					   void *end)
{
	if ((void *)(ip + 1) > end)
		return 0;
	summary->saddr = ip->saddr.in6_u.u6_addr32[3];
	summary->daddr = ip->daddr.in6_u.u6_addr32[3];
	summary->proto = ip->nexthdr;
	summary->is_plain = !lb_is_extension(ip->nexthdr);
	lb_summary_ports(summary, (__be16 *)(ip + 1), end);
	return 1;
}

/* Also 0 for what lb_parse() passes: not IP, or truncated. Invalidates packet pointers. */
static __always_inline int lb_summarize(struct __sk_buff *skb, int l2, struct lb_summary *summary)
{
	void *pos, *end;

	lb_pull_headers(skb, l2);
	pos = (void *)(long)skb->data + l2;
	end = (void *)(long)skb->data_end;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return lb_summary_ipv4(summary, pos, end);
	return skb->protocol == bpf_htons(ETH_P_IPV6) && lb_summary_ipv6(summary, pos, end);
}

/* enum lb_addr_flag of addresses that end in these two bytes, and of the NodePort equal to them. */
static __always_inline int lb_filter_flags(__be16 end)
{
	int index = bpf_ntohs(end);
	struct lb_dest *dest = lb_dest_filter.lookup(&index);

	return dest ? dest->flags : 0;
}

/* enum lb_addr_flag of addresses that end like this one. */
static __always_inline int lb_filter_flags_of(const struct lb_addr *addr)
{
	return lb_filter_flags(bpf_htons(bpf_ntohl(addr->word[3]) & 0xffff));
}

/*
 * Whether it is UDP from an address like this node's, and from a port that is a NodePort or one of
 * an external IP: see own_udp.h. saddr: the last word.
 */
static __always_inline int lb_filter_may_be_own(__u8 proto, __be32 saddr, __be16 sport)
{
	int is_port = LB_ADDR_NODE_PORT | LB_ADDR_EXTERNAL_PORT;

	return proto == IPPROTO_UDP && lb_filter_flags(sport) & is_port &&
	       lb_filter_flags(bpf_htons(bpf_ntohl(saddr) & 0xffff)) & LB_ADDR_NODE;
}

/* Whether tunneled packets arrive at this UDP port: see tunnel.h. */
static __always_inline int lb_filter_is_dsr_port(__be16 port)
{
	struct lb_settings *settings = lb_settings_get();

	return settings && settings->dsr_port && port == settings->dsr_port;
}

static __always_inline int lb_filter_is_error(const struct lb_summary *summary)
{
	return summary->proto == (summary->is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6) &&
	       bpf_ntohs(summary->sport) < (LB_ICMP_LAST_ERROR + 1) << 8;
}

/* Whether it may be a masqueraded packet routed by the stack: lb_reply_filter by destination. */
static __always_inline int lb_filter_may_be_routed(const struct lb_summary *summary)
{
	int index = lb_filter_index(summary->daddr, summary->dport);
	struct lb_reply_ends *ends = lb_reply_filter.lookup(&index);

	return ends && ends->hooks[LB_FILTER_REQUEST] &&
	       lb_flow_filter_has(summary->saddr, summary->daddr, summary->sport, summary->dport);
}

static __always_inline int lb_filter_may_be_reply(const struct lb_summary *summary, int hook)
{
	if (!summary->is_plain || lb_filter_is_error(summary))
		return 1;
	return lb_reply_filter_has(summary->saddr, summary->daddr, summary->sport, summary->dport,
				   hook);
}

/* For a node address only NodePorts, tunnels and the replies of masqueraded flows matter. */
static __always_inline int lb_filter_may_be_for_node(const struct lb_summary *summary, int hook)
{
	return lb_filter_flags(summary->dport) & LB_ADDR_NODE_PORT ||
	       lb_filter_may_be_reply(summary, hook) ||
	       (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS &&
		lb_filter_is_dsr_port(summary->dport));
}

static __always_inline int lb_filter_may_be_request(const struct lb_summary *summary, int hook)
{
	int flags = lb_filter_flags(bpf_htons(bpf_ntohl(summary->daddr) & 0xffff));

	if (flags & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL))
		return 1;
	return flags & LB_ADDR_NODE && lb_filter_may_be_for_node(summary, hook);
}

#endif
