# SPDX-License-Identifier: Apache-2.0
"""Compiles when an image is built: `python -m` with this module, DIRECTORY KERNEL...

The image's agents find these objects under the same keys as those that they compile. A node whose
kernel has other features than these, or whose settings require another program, compiles itself.

bcc creates maps during a compile, which an image build is not permitted to do. The caller preloads
a library that pretends they were created (.ci/no_maps.c).
"""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.load import compile_cache
from ebpflb.dataplane.load.compile import arguments, compile_only
from ebpflb.dataplane.load.loader import Build
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.errors import CompileError, ConfigError, EbpflbError, ProbeError

# Named after the oldest long-term kernel that has the features.
KERNELS = {
    "6.1": Build(has_set_retval=True),
    "5.15": Build(has_set_retval=False, has_xdp_frags=False),
    "5.10": Build(
        has_set_retval=False, has_xdp_frags=False, has_coarse_clock=False, has_fib_mtu=False
    ),
}


def builds(kernels: Sequence[str]) -> Iterator[Build]:
    """For each of these kernels, with and without XDP and direct server return. ConfigError."""
    for kernel in kernels:
        if kernel not in KERNELS:
            raise ConfigError(f"unknown kernel Linux {kernel}: known are {', '.join(KERNELS)}")
        for has_xdp in (False, True):
            for has_dsr in (False, True):
                yield replace(KERNELS[kernel], has_xdp=has_xdp, has_dsr=has_dsr)


def precompile(directory: Path, build: Build) -> None:
    """Compile and store the objects. ProbeError without bcc, CompileError."""
    cflags = arguments(build.defines(Sizes()))
    key = compile_cache.key(source_text(), cflags)
    if key is None:
        raise ProbeError("bcc for Python is missing")
    compile_cache.keep(directory, key, compile_only(source_text(), cflags))
    if compile_cache.find(directory, key) is None:
        raise CompileError(f"compiled programs are not kept in {directory}")


def main(directory: Path, kernels: Sequence[str]) -> None:
    """Compile for these kernels, one per CPU."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / compile_cache.BCC_OF_IMAGE).write_text(compile_cache.bcc_version() or "")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        for _ in executor.map(partial(precompile, directory), builds(kernels)):
            pass


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except EbpflbError as error:
        sys.exit(str(error))
