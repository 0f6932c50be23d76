/* SPDX-License-Identifier: Apache-2.0 */
/* lb_parse() alone: stores the parsed packet in a map. */
#include "config.h"
#include "types.h"
#include "maps.h"
#include "verdict.h"
#include "addr.h"
#include "parse.h"

struct lb_parsed {
	struct lb_tuple tuple;
	__u32 len;
	__u16 l3;
	__u16 l4;
	__u16 header_len;
	__u8 is_ipv4;
	__u8 ttl;
	__u8 tcp_flags;
	__u8 l2;
	__u16 pad;
};

LB_MAP("array", int, struct lb_parsed, lb_parsed, 1);

int lb_pod_ingress(struct __sk_buff *skb)
{
	struct lb_packet pkt = {};
	struct lb_parsed parsed = {};
	int verdict = lb_parse(skb, &pkt, ETH_HLEN);
	int zero = 0;

	parsed.tuple = pkt.tuple;
	parsed.len = pkt.len;
	parsed.l3 = pkt.l3;
	parsed.l4 = pkt.l4;
	parsed.header_len = pkt.header_len;
	parsed.is_ipv4 = pkt.is_ipv4;
	parsed.ttl = pkt.ttl;
	parsed.tcp_flags = pkt.tcp_flags;
	parsed.l2 = pkt.l2;
	lb_parsed.update(&zero, &parsed);
	return verdict;
}
