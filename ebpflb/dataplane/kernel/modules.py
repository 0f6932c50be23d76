# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel has something loaded that a question would make it load."""

from functools import cache
from pathlib import Path

_MODULES, _SYMBOLS = Path("/proc/modules"), Path("/proc/kallsyms")
_CHUNK = 1 << 16


def has_loaded(module: str, function: str) -> bool:
    """Whether this module is loaded, or is part of the kernel itself. True if that is not told.

    `function`: one that it has, by which it is found in the kernel: that takes 0.1 s, once.
    """
    try:
        loaded = _MODULES.read_text().splitlines()
    except FileNotFoundError:
        return True
    return any(line.startswith(f"{module} ") for line in loaded) or is_built_in(function)


@cache
def is_built_in(function: str) -> bool:
    """Whether the kernel itself has this function; those of modules have the module's name."""
    wanted, before = f" {function}\n".encode(), b""
    try:
        with _SYMBOLS.open("rb") as symbols:
            while chunk := symbols.read(_CHUNK):
                if wanted in before + chunk:
                    return True
                before = chunk[-len(wanted) :]
    except OSError:
        return True
    return False
