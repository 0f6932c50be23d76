# SPDX-License-Identifier: Apache-2.0
"""Old kernels, really booted: Debian's packages in qemu, with the files of this machine."""
