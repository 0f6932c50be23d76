/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* bcc includes this before everything else: what the kernel's build would have configured. */
#ifndef LB_KCONFIG_H
#define LB_KCONFIG_H

#define CONFIG_BPF_SYSCALL 1

#ifndef PAGE_SIZE
#define PAGE_SIZE 4096
#endif

/* Byte swaps become one BPF instruction. */
#define __HAVE_BUILTIN_BSWAP16__
#define __HAVE_BUILTIN_BSWAP32__
#define __HAVE_BUILTIN_BSWAP64__

#include <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;

#ifndef NULL
#define NULL ((void *)0)
#endif
#define true 1
#define false 0
#define offsetof(type, member) __builtin_offsetof(type, member)

#endif
