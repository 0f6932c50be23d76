# SPDX-License-Identifier: Apache-2.0
"""Keeping the process small and without pauses."""

import ctypes
import gc


def settle() -> None:
    """Take what is there now for permanent, and give unused memory back to the kernel.

    To be called once much has been built up: otherwise each full garbage collection would go over
    every Service again, and changes would have to wait for that.
    """
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
