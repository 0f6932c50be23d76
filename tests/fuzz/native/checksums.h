/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the checksums of a packet are right: computed anew, without the programs' own functions. */
#ifndef NATIVE_CHECKSUMS_H
#define NATIVE_CHECKSUMS_H

/* UNKNOWN: it has none, or is a fragment, or too odd to tell. */
enum native_state {
	NATIVE_UNKNOWN,
	NATIVE_RIGHT,
	NATIVE_WRONG
};

#define NATIVE_EXTENSIONS 8

static enum native_state native_whether(int is_right)
{
	return is_right ? NATIVE_RIGHT : NATIVE_WRONG;
}

static enum native_state native_sctp(const __u8 *sctp, __u32 len)
{
	__u32 crc = ~0U, stored;

	if (len < 12)
		return NATIVE_UNKNOWN;
	memcpy(&stored, sctp + 8, sizeof(stored));
	for (__u32 at = 0; at < len; at++) {
		crc ^= at >= 8 && at < 12 ? 0 : sctp[at];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	/* Zero is for the device to fill. */
	return stored ? native_whether(stored == ~crc) : NATIVE_UNKNOWN;
}

/* pseudo: the sum of the addresses. */
static enum native_state native_transport(const __u8 *l4, __u32 len, __u8 proto, __u64 pseudo)
{
	__u16 check = 0, given;

	if (proto == 132)
		return native_sctp(l4, len);
	if (proto == 17) {
		if (len < 8)
			return NATIVE_UNKNOWN;
		memcpy(&given, l4 + 4, sizeof(given));
		memcpy(&check, l4 + 6, sizeof(check));
		if (!check || bpf_ntohs(given) < 8 || bpf_ntohs(given) > len)
			return NATIVE_UNKNOWN;
		len = bpf_ntohs(given);
	} else if ((proto == 6 && len < 20) || ((proto == 1 || proto == 58) && len < 8)) {
		return NATIVE_UNKNOWN;
	}
	if (proto != 6 && proto != 17 && proto != 1 && proto != 58)
		return NATIVE_UNKNOWN;
	if (proto != 1)
		pseudo += bpf_htons(proto) + native_fold((__u64)bpf_htonl(len));
	else
		pseudo = 0;
	return native_whether(native_fold(native_sum(l4, len, pseudo)) == 0xffff);
}

static enum native_state native_ipv4(const __u8 *ip, __u32 len)
{
	__u32 header = (ip[0] & 15) * 4, total;
	__u16 word, fragment;

	if (len < 20 || header < 20 || header > len)
		return NATIVE_UNKNOWN;
	memcpy(&word, ip + 2, sizeof(word));
	memcpy(&fragment, ip + 6, sizeof(fragment));
	total = bpf_ntohs(word);
	if (total > len || total < header)
		return NATIVE_UNKNOWN;
	if (native_fold(native_sum(ip, header, 0)) != 0xffff)
		return NATIVE_WRONG;
	if (fragment & bpf_htons(0x3fff))
		return NATIVE_UNKNOWN;
	return native_transport(ip + header, total - header, ip[9], native_sum(ip + 12, 8, 0));
}

static enum native_state native_ipv6(const __u8 *ip, __u32 len)
{
	__u32 at = 40, total;
	__u8 proto;
	__u16 word;

	if (len < 40)
		return NATIVE_UNKNOWN;
	memcpy(&word, ip + 4, sizeof(word));
	total = 40 + bpf_ntohs(word);
	proto = ip[6];
	if (total > len)
		return NATIVE_UNKNOWN;
	for (int count = 0; count < NATIVE_EXTENSIONS; count++) {
		if (proto != 0 && proto != 43 && proto != 60)
			break;
		if (at + 8 > total)
			return NATIVE_UNKNOWN;
		proto = ip[at];
		at += 8 * (ip[at + 1] + 1);
	}
	if (at > total)
		return NATIVE_UNKNOWN;
	return native_transport(ip + at, total - at, proto, native_sum(ip + 8, 32, 0));
}

static enum native_state native_state_of(const __u8 *ip, __u32 len, __u32 protocol)
{
	if (protocol == bpf_htons(0x0800))
		return len && ip[0] >> 4 == 4 ? native_ipv4(ip, len) : NATIVE_UNKNOWN;
	if (protocol == bpf_htons(0x86dd))
		return len && ip[0] >> 4 == 6 ? native_ipv6(ip, len) : NATIVE_UNKNOWN;
	return NATIVE_UNKNOWN;
}

#endif
