/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Arithmetic on CRC32c, the checksum of SCTP. It is linear: a change of four bytes changes the
 * checksum by a value that depends on the difference and on the number of bytes that follow, so the
 * packet itself need not be read. Polynomials over GF(2) modulo the one of CRC32c, reflected: the
 * highest bit is the coefficient of 1.
 */
#ifndef LB_CRC32C_H
#define LB_CRC32C_H

#include "types.h"

#define LB_CRC32C 0x82f63b78
#define LB_CRC32C_ONE (1U << 31)

/* No branch depends on packet contents, or the verifier would explore both sides of each. */
static __always_inline __u32 lb_crc32c_multiply(__u32 a, __u32 b)
{
	__u32 product = 0;
	__u32 low, high;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 32; i++) {
		high = a >> 31;
		low = b & 1;
		asm volatile("" : "+r"(high), "+r"(low));
		product ^= -high & b;
		a <<= 1;
		b = b >> 1 ^ (-low & LB_CRC32C);
	}
	return product;
}

/* power: x to the power of 8 * bytes. */
static __always_inline __u32 lb_crc32c_pass(__u32 shift, __u32 len, __u32 bytes, __u32 power)
{
	return len & bytes ? lb_crc32c_multiply(power, shift) : shift;
}

/*
 * x to the power of 8 * len (below 65536): the factor of a difference in the first four of len
 * bytes.
 */
static __always_inline __u32 lb_crc32c_shift(__u32 len)
{
	__u32 shift = len & 1 ? 0x00800000 : LB_CRC32C_ONE;

	shift = lb_crc32c_pass(shift, len, 1 << 1, 0x00008000);
	shift = lb_crc32c_pass(shift, len, 1 << 2, 0x82f63b78);
	shift = lb_crc32c_pass(shift, len, 1 << 3, 0x6ea2d55c);
	shift = lb_crc32c_pass(shift, len, 1 << 4, 0x18b8ea18);
	shift = lb_crc32c_pass(shift, len, 1 << 5, 0x510ac59a);
	shift = lb_crc32c_pass(shift, len, 1 << 6, 0xb82be955);
	shift = lb_crc32c_pass(shift, len, 1 << 7, 0xb8fdb1e7);
	shift = lb_crc32c_pass(shift, len, 1 << 8, 0x88e56f72);
	shift = lb_crc32c_pass(shift, len, 1 << 9, 0x74c360a4);
	shift = lb_crc32c_pass(shift, len, 1 << 10, 0xe4172b16);
	shift = lb_crc32c_pass(shift, len, 1 << 11, 0x0d65762a);
	shift = lb_crc32c_pass(shift, len, 1 << 12, 0x35d73a62);
	shift = lb_crc32c_pass(shift, len, 1 << 13, 0x28461564);
	shift = lb_crc32c_pass(shift, len, 1 << 14, 0xbf455269);
	return lb_crc32c_pass(shift, len, 1 << 15, 0xe2ea32dc);
}

#endif
