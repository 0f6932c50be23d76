/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* linux/icmp.h needs this one constant; the original needs a C library. */
#define IFNAMSIZ 16
