/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Empty on purpose: no assembler of the host in a BPF program; linux/swab.h uses the builtins. */
