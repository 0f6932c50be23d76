/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Empty on purpose: bcc brings its own copy of the kernel's bpf.h. */
