# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel already has something loaded that a request would make it load."""

from functools import cache
from pathlib import Path

_MODULES, _SYMBOLS = Path("/proc/modules"), Path("/proc/kallsyms")
_CHUNK = 1 << 16


def has_loaded(module: str, function: str) -> bool:
    """Whether this module is loaded or built in. True if that cannot be determined.

    `function`: one of its functions, to find it in the kernel: that takes 0.1 s, once.
    """
    try:
        loaded = _MODULES.read_text().splitlines()
    except FileNotFoundError:
        return True
    return any(line.startswith(f"{module} ") for line in loaded) or is_built_in(function)


@cache
def is_built_in(function: str) -> bool:
    """Whether the kernel itself has this function; a module's are listed with its name."""
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
