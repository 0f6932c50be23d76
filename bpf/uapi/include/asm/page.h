/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* bcc includes it for PAGE_SIZE, which linux/kconfig.h defines. */
