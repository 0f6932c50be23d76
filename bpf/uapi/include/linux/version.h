/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * bcc writes it into each program; only kprobes on kernels before 5.0 look at it. The value is the
 * kernel floor, 5.10, whatever runs.
 */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
