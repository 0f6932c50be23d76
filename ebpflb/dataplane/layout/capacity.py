# SPDX-License-Identifier: Apache-2.0
"""How many entries each map has room for: small by default, following the cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServicePortName
from ebpflb.model.source_ranges import Prefix

_HEADROOM = 2
_ENTRIES_PER_FLOW = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Entries; each is LB_MAX_<NAME> of bpf/config.h, whose defaults these are."""

    frontends: int = 4096
    descs: int = 8192
    slots: int = 65536
    backends: int = 4096
    addrs: int = 8192
    src_ranges: int = 16384
    names: int = 8192
    conntrack: int = 131072
    ct_short: int = 65536
    sockets: int = 65536
    affinity: int = 65536

    def defines(self) -> Mapping[str, str]:
        """The -D settings of a compile."""
        return {f"LB_MAX_{name.upper()}": str(size) for name, size in asdict(self).items()}

    def at_least(self, other: Self) -> Self:
        """The larger of both, map by map."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return type(self)(**{name: max(mine, theirs) for name, mine, theirs in pairs})

    def grown(self) -> Self:
        """Twice the room for what the plan fills; flow tables stay."""
        planned = ("frontends", "descs", "slots", "backends", "addrs", "src_ranges", "names")
        sizes = asdict(self)
        return type(self)(**{**sizes, **{name: 2 * sizes[name] for name in planned}})


def sizes_for(frontends: Iterable[Frontend], flows: int = 0) -> Sizes:
    """Room for these frontends twice over: an update needs fresh slots before it frees the old.

    flows: how many established ones there must be room for, and half as many of other kinds.
    """
    count, slots, backends, names = 0, 0, 0, set()
    ranges: set[tuple[ServicePortName, Prefix]] = set()
    for frontend in frontends:
        count += 1
        names.add(frontend.service)
        ranges.update((frontend.service, each) for each in frontend.allowed_sources)
        slots += len(frontend.local.backends) + len(frontend.others.backends)
        backends += max(len(frontend.local.backends), len(frontend.others.backends))
    return Sizes().at_least(
        Sizes(
            frontends=_room(count),
            descs=2 * _room(count),
            slots=_room(slots),
            backends=_room(backends),
            addrs=_room(count),
            src_ranges=_room(len(ranges)),
            names=_room(len(names)),
            conntrack=_ENTRIES_PER_FLOW * flows,
            ct_short=flows,
        )
    )


def _room(count: int) -> int:
    return 1 << (_HEADROOM * count).bit_length()
