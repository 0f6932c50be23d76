# SPDX-License-Identifier: Apache-2.0
"""Running totals over the plans of all Services, changed by what changes."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ebpflb.model.address import family_of
from ebpflb.model.plan import Choice, Frontend, FrontendType, IfEmpty
from ebpflb.model.service import ServiceName

_FAMILY_NAMES = {4: "IPv4", 6: "IPv6"}
_Kind = tuple[str, str]


class _Counted(NamedTuple):
    frontends: int
    no_local: tuple[_Kind, ...]


class Tally:
    """How many frontends there are, and how many Service ports have no local endpoint.

    no_local counts, by policy (internal, external) and family, the Service ports whose policy is
    Local and drops, because all their endpoints are on other nodes.
    """

    def __init__(self) -> None:
        self.frontends = 0
        self.no_local: Counter[_Kind] = Counter()
        self._counted: dict[ServiceName, _Counted] = {}

    @property
    def services(self) -> int:
        """How many Services have frontends."""
        return len(self._counted)

    def replace(self, name: ServiceName, frontends: Sequence[Frontend]) -> None:
        """Count a Service anew; without frontends it is gone."""
        old = self._counted.pop(name, _Counted(0, ()))
        new = _Counted(len(frontends), _no_local(frontends))
        if frontends:
            self._counted[name] = new
        self.frontends += new.frontends - old.frontends
        self.no_local.subtract(old.no_local)
        self.no_local.update(new.no_local)


def _no_local(frontends: Sequence[Frontend]) -> tuple[_Kind, ...]:
    """Once for each Service port, however many of its frontends drop."""
    found = set()
    for frontend in frontends:
        inside = frontend.type is FrontendType.CLUSTER_IP
        if _drops(frontend.others):
            policy = "internal" if inside else "external"
            family = _FAMILY_NAMES[family_of(frontend.key.address)]
            found.add((frontend.service, policy, family))
    return tuple(sorted((policy, family) for _, policy, family in found))


def _drops(choice: Choice) -> bool:
    return not choice.backends and choice.if_empty is IfEmpty.DROP
