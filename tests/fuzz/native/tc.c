/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer's packets through the programs at tc, on the node that is written down beside the
 * executable (frames.py). An input is a few packets: program, device and flags, length, frame. A right
 * packet must be right afterwards.
 */
#include <stdio.h>

#include "kernel.h"
#include "program.c"
#include "checksums.h"

#define LONGEST 2048
#define MOST_PACKETS 8
#define NOT_LINEAR 0x80
#define OWN 0x40

typedef int program(struct __sk_buff *);

static program *const programs[] = { lb_host_ingress, lb_host_egress, lb_l3_ingress,
				     lb_l3_egress,    lb_pod_ingress, lb_pod_egress };

struct native_head {
	__u8 program;
	__u8 device;
	__u8 len[2];
};

static __u32 devices[NATIVE_UPLINK_MASK + 1];
static __u8 record[4096];

static void *reserve(__u64 size)
{
	return size <= sizeof(record) ? record : NULL;
}

static void submit(void *written, __u64 flags)
{
	(void)written, (void)flags;
}

static void read_exactly(FILE *file, void *to, size_t size)
{
	if (size && fread(to, size, 1, file) != 1)
		abort();
}

/* A map's name, how many elements, and these. */
static int read_map(FILE *file)
{
	struct native_map *map = NULL;
	char name[NATIVE_NAME];
	__u32 count, sizes[2];

	if (fread(name, sizeof(name), 1, file) != 1)
		return 0;
	read_exactly(file, sizes, sizeof(sizes));
	read_exactly(file, &count, sizeof(count));
	for (int at = 0; at < native_map_count; at++)
		if (!strcmp(native_maps[at]->name, name))
			map = native_maps[at];
	for (__u32 at = 0; at < count; at++) {
		__u8 key[256], value[1024];

		read_exactly(file, key, sizes[0]);
		read_exactly(file, value, sizes[1]);
		if (!map)
			continue;
		if (map->key_size != sizes[0] || map->value_size != sizes[1])
			abort();
		if (!native_is_array(map))
			map->first = native_element(map, key, value, map->first);
		else if (*(__u32 *)key < map->max)
			memcpy(map->first_array + *(__u32 *)key * (size_t)sizes[1], value,
			       sizes[1]);
	}
	return 1;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char name[4096];
	FILE *file;

	(void)argc;
	snprintf(name, sizeof(name), "%s.node", (*argv)[0]);
	file = fopen(name, "rb");
	if (!file)
		abort();
	lb_flows.ringbuf_reserve = reserve;
	lb_flows.ringbuf_submit = submit;
	read_exactly(file, &native_time, sizeof(native_time));
	read_exactly(file, devices, sizeof(devices));
	native_uplink = devices[0];
	while (read_map(file))
		;
	fclose(file);
	for (int at = 0; at < native_map_count; at++) {
		native_maps[at]->is_used = !native_is_array(native_maps[at]);
		if (native_is_array(native_maps[at]))
			memcpy(native_maps[at]->array, native_maps[at]->first_array,
			       (size_t)native_maps[at]->max * native_maps[at]->value_size);
	}
	return 0;
}

static __u32 protocol_of(const __u8 *frame, __u32 len, __u32 l2)
{
	__u16 found;

	if (l2) {
		memcpy(&found, frame + 12, sizeof(found));
		return len >= l2 ? found : 0;
	}
	return bpf_htons(frame[0] >> 4 == 6 ? 0x86dd : 0x0800);
}

static void play(const struct native_head *head, const __u8 *frame, __u32 len)
{
	int number = head->program % (sizeof(programs) / sizeof(programs[0]));
	struct __sk_buff skb = { .len = len, .linear = len };
	enum native_state before;

	skb.l2 = number == 2 || number == 3 ? 0 : 14;
	if (len < skb.l2 + 1)
		return;
	skb.packet = memcpy(malloc(len), frame, len);
	skb.protocol = protocol_of(frame, len, skb.l2);
	skb.ifindex = devices[head->device & NATIVE_UPLINK_MASK];
	skb.sk = head->device & OWN ? &native_socket : NULL;
	if (head->device & NOT_LINEAR)
		skb.linear = skb.l2;
	before = native_state_of(skb.packet + skb.l2, len - skb.l2, skb.protocol);
	native_expose(&skb);
	if (programs[number](&skb) != TC_ACT_SHOT && before == NATIVE_RIGHT &&
	    native_state_of(skb.packet + skb.l2, skb.len - skb.l2, skb.protocol) == NATIVE_WRONG)
		__builtin_trap();
	free((void *)skb.data);
	free(skb.packet);
	native_free(native_gone);
	native_gone = NULL;
}

int LLVMFuzzerTestOneInput(const __u8 *given, size_t size)
{
	struct native_head head;

	native_restore();
	native_random = 1;
	for (int packet = 0; packet < MOST_PACKETS && size > sizeof(head); packet++) {
		size_t len;

		memcpy(&head, given, sizeof(head));
		given += sizeof(head);
		size -= sizeof(head);
		len = head.len[0] | head.len[1] << 8;
		if (len > size)
			len = size;
		if (len > LONGEST)
			len = LONGEST;
		play(&head, given, len);
		given += len;
		size -= len;
	}
	return 0;
}
