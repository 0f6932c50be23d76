# SPDX-License-Identifier: Apache-2.0
"""Programs compiled and loaded as the agent does it, with maps small enough to fill."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ebpflb.dataplane.kernel import libbpf, libc
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load import compile_cache
from ebpflb.dataplane.load.compile import STRICT, compile_and_pin
from ebpflb.dataplane.load.source_text import source_text
from tests.own import own_name

SIZES = Sizes(
    frontends=512,
    descs=1024,
    slots=2048,
    backends=512,
    addrs=256,
    src_ranges=256,
    names=256,
    conntrack=64,
    ct_short=1024,
    ct_udp=1024,
    ct_stream=1024,
    ct_dsr=1024,
    stack_nat=1024,
    sockets=64,
    affinity=64,
)
WRAPPERS = Path(__file__).parents[1] / "wrappers"

# Which parts of a header are used depends on its includer.
ALONE = (*STRICT, "-Wno-unused-function")


class Loaded(NamedTuple):
    """Maps by name, and descriptors of programs by name."""

    maps: MapSet
    programs: Mapping[str, int]


def load(
    directory: Path,
    text: str,
    names: Iterable[str] = PROGRAMS,
    flags: Sequence[str] = STRICT,
    cache: Path = compile_cache.DIRECTORY,
    defines: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Compile and load, on a temporary bpffs that no longer exists when this returns.

    From then on, only this process's descriptors hold the maps and programs. `defines`: -D settings
    instead of those of the tests.
    """
    maps, programs = directory / "maps", directory / "progs"
    libc.mount_bpffs(directory, own_name("bpffs"))
    try:
        maps.mkdir()
        programs.mkdir()
        settings = {**SIZES.defines(), **kernel_settings(), **defines}
        settings["LB_PIN_MAPS"] = f'"{maps}"'
        compile_and_pin(text, settings, programs, names=names, flags=flags, cache=cache)
        descriptors = {path.name: libbpf.obj_get(path) for path in programs.iterdir()}
        return Loaded(open_maps(maps), descriptors)
    finally:
        libc.unmount(directory)


def kernel_settings() -> dict[str, str]:
    """The -D settings that depend on the kernel."""
    probe = Probe()
    return {
        "LB_HAS_SET_RETVAL": str(int(probe.supports(Feature.SET_RETVAL))),
        "LB_HAS_COARSE_CLOCK": str(int(probe.supports(Feature.COARSE_CLOCK))),
        "LB_HAS_FIB_MTU": str(int(probe.supports(Feature.FIB_MTU))),
        "LB_HAS_XDP_FRAGS": str(int(probe.supports(Feature.XDP_FRAGS))),
    }


def load_wrapper(directory: Path, name: str, programs: Iterable[str]) -> Loaded:
    """A program that calls single functions of bpf/: `wrappers`/NAME.

    Its entry points have names of real programs, from which the compiler derives their type.
    """
    text = source_text((str(WRAPPERS / name),))
    return load(directory, text, programs, ALONE)
