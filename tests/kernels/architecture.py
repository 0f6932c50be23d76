# SPDX-License-Identifier: Apache-2.0
"""What differs between the machines that qemu emulates."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Architecture(NamedTuple):
    """`name`: as Debian says it; `wheels`: as pip does."""

    name: str
    wheels: str
    qemu: Sequence[str]
    console: str


AMD64 = Architecture(
    "amd64", "manylinux2014_x86_64", ("qemu-system-x86_64", "-cpu", "max"), "ttyS0"
)
# pauth-impdef: qemu emulates this pointer authentication faster than Arm's own.
_ARM64 = ("qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on")
ARM64 = Architecture("arm64", "manylinux2014_aarch64", _ARM64, "ttyAMA0")

ARCHITECTURES: Mapping[str, Architecture] = {each.name: each for each in (AMD64, ARM64)}
