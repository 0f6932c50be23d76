/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's helpers, as far as the programs at tc use them: net/core/filter.c. */
#ifndef NATIVE_CALLS_H
#define NATIVE_CALLS_H

#define NATIVE_MTU 1500
#define NATIVE_UPLINK_MASK 7

static __u64 native_time;
static __u32 native_random;
static __u32 native_uplink;
static struct bpf_sock native_socket;

/* All packet pointers are invalid from now on. */
static void native_expose(struct __sk_buff *skb)
{
	free((void *)skb->data);
	if (skb->linear > skb->len)
		skb->linear = skb->len;
	skb->data = (long)malloc(skb->linear);
	memcpy((void *)skb->data, skb->packet, skb->linear);
	skb->data_end = skb->data + skb->linear;
}

static int native_is_outside(const struct __sk_buff *skb, __u32 offset, __u32 len)
{
	return offset > 0xffff || offset + len > skb->len;
}

static long bpf_skb_load_bytes(const struct __sk_buff *skb, __u32 offset, void *to, __u32 len)
{
	if (native_is_outside(skb, offset, len)) {
		memset(to, 0, len);
		return -14;
	}
	memcpy(to, skb->packet + offset, len);
	return 0;
}

static long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len,
				__u64 flags)
{
	(void)flags;
	if (native_is_outside(skb, offset, len))
		return -14;
	memcpy(skb->packet + offset, from, len);
	native_expose(skb);
	return 0;
}

static long native_pull(struct __sk_buff *skb, __u32 len)
{
	if (len > skb->len)
		return -12;
	if (len > skb->linear)
		skb->linear = len;
	native_expose(skb);
	return 0;
}

#define bpf_skb_pull_data native_pull

static __u32 native_fold(__u64 sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __u64 native_sum(const void *from, __u32 size, __u64 sum)
{
	const __u8 *bytes = from;
	__u16 word = 0;

	for (__u32 at = 0; at < size; at += 2) {
		memcpy(&word, bytes + at, size - at < 2 ? 1 : 2);
		sum += size - at < 2 ? (__u16)(word & 0xff) : word;
	}
	return sum;
}

static long bpf_csum_diff(const void *from, __u32 from_size, const void *to, __u32 to_size,
			  __u32 seed)
{
	__u64 sum = native_sum(to, to_size, seed);

	if ((from_size | to_size) % 4)
		return -22;
	for (__u32 at = 0; at < from_size; at += 2) {
		__u16 word;

		memcpy(&word, (const __u8 *)from + at, sizeof(word));
		sum += (__u16)~word;
	}
	return native_fold(sum);
}

static long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
				__u64 flags)
{
	__u16 sum;
	__u64 diff = to;

	if (offset > 0xffff || offset & 1 || native_is_outside(skb, offset, sizeof(sum)))
		return -14;
	memcpy(&sum, skb->packet + offset, sizeof(sum));
	if (flags & BPF_F_MARK_MANGLED_0 && !sum)
		return 0;
	if (flags & BPF_F_HDR_FIELD_MASK)
		diff = (__u16)~from + (to & 0xffff);
	else if (from)
		return -22;
	sum = ~native_fold((__u16)~sum + (diff & 0xffffffff));
	if (flags & BPF_F_MARK_MANGLED_0 && !sum)
		sum = 0xffff;
	memcpy(skb->packet + offset, &sum, sizeof(sum));
	native_expose(skb);
	return 0;
}

/* Room at an offset, or less of it; what is new is not zero. */
static long native_resize(struct __sk_buff *skb, __u32 at, int change)
{
	__u32 len = skb->len + change;
	__u8 *made = malloc(len);

	memcpy(made, skb->packet, at);
	if (change >= 0)
		memset(made + at, 0xa5, change);
	memcpy(made + at + (change > 0 ? change : 0), skb->packet + at + (change < 0 ? -change : 0),
	       skb->len - at - (change < 0 ? -change : 0));
	free(skb->packet);
	skb->packet = made;
	skb->len = len;
	native_expose(skb);
	return 0;
}

static long bpf_skb_adjust_room(struct __sk_buff *skb, int change, __u32 mode, __u64 flags)
{
	__u32 network = skb->len - skb->l2;
	__u32 least = skb->protocol == bpf_htons(0x0800) ? 20 : 40;

	(void)flags;
	if (mode != BPF_ADJ_ROOM_MAC || (change < 0 && (__u32)-change >= network) ||
	    (change < 0 && network + change < least) || skb->len + change > 0xffff)
		return -22;
	return native_resize(skb, skb->l2, change);
}

static long bpf_skb_change_tail(struct __sk_buff *skb, __u32 len, __u64 flags)
{
	if (flags || len < skb->l2 || len > 0xffff)
		return -22;
	if (len > skb->len)
		return native_resize(skb, skb->len, len - skb->len);
	skb->len = len;
	native_expose(skb);
	return 0;
}

static long bpf_skb_change_head(struct __sk_buff *skb, __u32 room, __u64 flags)
{
	if (flags || skb->len + room > 0xffff)
		return -22;
	skb->l2 += room;
	return native_resize(skb, 0, room);
}

/* The last byte of the destination decides. */
static long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *fib, int size, __u32 flags)
{
	__u8 last = ((const __u8 *)(fib->family == 2 ? &fib->ipv4_dst : &fib->ipv6_dst[3]))[3];

	(void)ctx, (void)size, (void)flags;
	fib->ifindex = native_uplink;
	if (fib->tot_len > NATIVE_MTU) {
		fib->tot_len = NATIVE_MTU;
		return BPF_FIB_LKUP_RET_FRAG_NEEDED;
	}
	if ((last & NATIVE_UPLINK_MASK) == 3)
		return BPF_FIB_LKUP_RET_UNREACHABLE;
	return (last & NATIVE_UPLINK_MASK) == 4 ? BPF_FIB_LKUP_RET_NO_NEIGH : 0;
}

static struct bpf_sock *bpf_sk_lookup_udp(void *ctx, struct bpf_sock_tuple *tuple, __u32 size,
					  __u64 netns, __u64 flags)
{
	(void)ctx, (void)netns, (void)flags;
	return ((__u8 *)tuple)[size - 1] & 1 ? &native_socket : NULL;
}

#define bpf_sk_lookup_tcp bpf_sk_lookup_udp
#define bpf_sk_fullsock(sk) (sk)

static inline long bpf_sk_release(void *sk)
{
	(void)sk;
	return 0;
}

static inline long bpf_redirect(__u32 ifindex, __u64 flags)
{
	(void)ifindex, (void)flags;
	return 7;
}

static long native_redirect_neigh(__u32 ifindex, void *params, int size, __u64 flags)
{
	(void)params, (void)size, (void)flags;
	return bpf_redirect(ifindex, 0);
}

#define BPF_FUNC_redirect_neigh native_redirect_neigh

static inline __u64 bpf_ktime_get_coarse_ns(void)
{
	return native_time;
}

static inline __u32 bpf_get_prandom_u32(void)
{
	native_random = native_random * 1664525 + 1013904223;
	return native_random;
}

#endif
