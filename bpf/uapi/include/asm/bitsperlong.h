/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The BPF target is 64 bits wide on every machine. */
#define __BITS_PER_LONG 64

#include <asm-generic/bitsperlong.h>
