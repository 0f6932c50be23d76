/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one flow record per run: its version is in mark, its Service in priority. */
#include "types.h"

struct lb_flows_table_t {
	int key;
	__u32 leaf;
	int (*ringbuf_output)(void *, __u64, __u64);
	__u32 max_entries;
};
__attribute__((section("maps/ringbuf:" LB_PIN_MAPS
		       "/lb_flows"))) struct lb_flows_table_t lb_flows = { .max_entries = 4096 };

int lb_host_ingress(struct __sk_buff *skb)
{
	struct lb_flow_record record = { .version = skb->mark, .event = LB_FLOW_REFUSED };

	record.time = bpf_ktime_get_ns();
	record.proto = IPPROTO_TCP;
	record.service = skb->priority;
	return lb_flows.ringbuf_output(&record, sizeof(record), BPF_RB_NO_WAKEUP) ? 1 : 0;
}
