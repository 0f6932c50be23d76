# SPDX-License-Identifier: Apache-2.0
"""Errors reported in one line: no such kernel, or a machine that does not boot."""

from ebpflb.errors import EbpflbError


class KernelError(EbpflbError):
    """A kernel cannot be fetched or booted."""
