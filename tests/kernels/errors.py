# SPDX-License-Identifier: Apache-2.0
"""What is told in one line: no such kernel, or a machine that does not come up."""

from ebpflb.errors import EbpflbError


class KernelError(EbpflbError):
    """A kernel cannot be fetched or booted."""
