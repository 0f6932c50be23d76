# SPDX-License-Identifier: Apache-2.0
"""What Service ports and their backends have carried, over successive snapshots.

The counts only increase, although frontends, backends and whole sets of maps are replaced.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from ebpflb.dataplane.view.running_sums import RunningSums
from ebpflb.dataplane.view.snapshot import BackendEntry, Snapshot
from ebpflb.model.address import SocketAddress
from ebpflb.model.ejection import EjectionState
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName


@dataclass(frozen=True, slots=True)
class BackendTraffic:
    """offered: it takes new connections. active: connections and flows that use it now.

    removed: it is no longer an endpoint that serves.
    """

    local: bool
    terminating: bool
    offered: bool
    active: int
    counts: Counts
    ejection: EjectionState = EjectionState.UNWATCHED
    removed: bool = False


TrafficByType = Mapping[ServicePortName, Mapping[FrontendType, Counts]]
"""Only types that have counted something."""
TrafficByBackend = Mapping[ServicePortName, Mapping[SocketAddress, BackendTraffic]]
_Endpoint = tuple[ServicePortName, SocketAddress]


class Traffic:
    """The sums of all Service ports. Not thread-safe."""

    def __init__(self) -> None:
        self._by_type: RunningSums[tuple[ServicePortName, FrontendType]] = RunningSums()
        self._by_backend: RunningSums[_Endpoint] = RunningSums()

    @property
    def counters(self) -> int:
        """How many frontend counters the next snapshot must contain, from the first on."""
        return self._by_type.length

    def by_type(self, snapshot: Snapshot) -> TrafficByType:
        """The sums of frontends, those of the Service ports that there are."""
        sums, counts = self._by_type, snapshot.frontend_counts
        sums.forget(lambda group: group[0][:3] not in snapshot.ports)
        sums.begin()
        for key, index, service, kind, _, _ in snapshot.frontends:
            sums.add((service, kind), key, index, counts[index])
        sums.finish(counts, {frontend.map_index for frontend in snapshot.frontends})
        found: dict[ServicePortName, dict[FrontendType, Counts]] = defaultdict(dict)
        for (service, kind), total in sums.totals():
            if any(total):
                found[service][kind] = Counts(*total)
        return found

    def by_backend(self, snapshot: Snapshot) -> TrafficByBackend:
        """The backends that take new connections, have some, or are ejected.

        One that is removed and added again keeps its counts as long as it is among them.
        """
        sums, counts = self._by_backend, snapshot.backend_counts
        active: Counter[_Endpoint] = Counter()
        shown: dict[_Endpoint, BackendEntry] = {}
        used = set[int]()
        sums.begin()
        for service, group in snapshot.backends.items():
            # An earlier backend at the same address may still have flows.
            for each in sorted(group, key=attrgetter("usable")):
                endpoint = (service, SocketAddress(each.address, each.port))
                index, flows = each.map_index, snapshot.active_of(each)
                sums.add(endpoint, (index, each.serial), index, counts[index])
                used.add(index)
                active[endpoint] += flows
                if each.usable or flows or each.ejection is EjectionState.EJECTED:
                    shown[endpoint] = each
        sums.finish(counts, used)
        sums.forget(lambda endpoint: endpoint not in shown)
        found: dict[ServicePortName, dict[SocketAddress, BackendTraffic]] = defaultdict(dict)
        for endpoint, total in sums.totals():
            service, place = endpoint
            found[service][place] = _backend(shown[endpoint], active[endpoint], Counts(*total))
        return found


def _backend(entry: BackendEntry, active: int, counts: Counts) -> BackendTraffic:
    return BackendTraffic(
        entry.local,
        entry.terminating,
        entry.usable,
        active,
        counts,
        entry.ejection,
        removed=not entry.is_served,
    )
