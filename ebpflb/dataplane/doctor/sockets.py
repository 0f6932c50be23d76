# SPDX-License-Identifier: Apache-2.0
"""The socket hooks of the cgroup: are ours there, and who else runs before or after them."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.dataplane.attach.program_order import Neighbour, Order, at_cgroup, order_of
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples

CHECK = "sockets"

_ATTACH = "the agent attaches it at its start: `ebpflb status`, then its log"
_SWITCH_OFF = "switch its Service balancing off: two that translate do not agree on endpoints"


def check_sockets(cgroup: Path, pinned: Collection[int]) -> list[Finding]:
    """Every hook at the cgroup; `pinned`: the ids of our programs in force. OSError."""
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        orders = {
            name: order_of(at_cgroup(target, attach_type, pinned))
            for name, attach_type in CGROUP_HOOKS.items()
        }
    finally:
        os.close(target)
    return judge(cgroup, orders)


def judge(cgroup: Path, orders: Mapping[str, Order]) -> list[Finding]:
    """`orders`: by the name of our program for each hook."""
    place = f"cgroup {cgroup}"
    found = [*_missing(place, orders), *_others(place, orders)]
    return all_well(CHECK, f"all {len(orders)} hooks are at {place}", found)


def _missing(place: str, orders: Mapping[str, Order]) -> Iterator[Finding]:
    missing = [name.removeprefix("lb_") for name, order in orders.items() if not order.ours]
    if missing:
        what = f"hooks without our program: {', '.join(missing)}"
        yield Finding(Severity.ERROR, CHECK, place, what, _ATTACH)


def _others(place: str, orders: Mapping[str, Order]) -> Iterator[Finding]:
    for way in ("before", "after"):
        hooks = defaultdict[Neighbour, list[str]](list)
        for name, order in orders.items():
            others: Sequence[Neighbour] = getattr(order, way)
            for each in others:
                hooks[each].append(name.removeprefix("lb_"))
        for each, names in hooks.items():
            what = f"{each.title} runs {way} ours at {examples(names)}"
            if each.translates:
                yield Finding(Severity.WARNING, CHECK, place, what, _SWITCH_OFF)
            else:
                yield Finding(Severity.NOTE, CHECK, place, what)
