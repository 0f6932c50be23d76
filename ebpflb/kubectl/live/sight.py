# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows, asked of the nodes: rates, flows, explanations."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from ebpflb.config.values import socket_address
from ebpflb.errors import EbpflbError
from ebpflb.kubectl.cluster import Cluster, some
from ebpflb.kubectl.explain import explained, text_of
from ebpflb.kubectl.flows import recent
from ebpflb.kubectl.top import sampled
from ebpflb.model.flow import Flow, ServiceRate

Found = TypeVar("Found")

_MOST_FLOWS = 100


class Looked(NamedTuple, Generic[Found]):
    """found: None if nothing could be asked. complaint: what went wrong, on which nodes, or ""."""

    found: Found | None
    complaint: str


@dataclass(frozen=True, slots=True)
class Sight:
    """namespace: of the Services; empty for all. interval: seconds of a sample. Thread-safe."""

    cluster: Cluster
    namespace: str
    interval: float

    def services(self) -> Looked[list[ServiceRate]]:
        """What they carry from now on, for the length of a sample, on the nodes there are now."""
        return self._looked(
            lambda cluster: sampled(cluster, self.interval, self.namespace), anew=True
        )

    def flows(self, service: str) -> Looked[list[Flow]]:
        """The last ones, newest first. `service`: NAMESPACE/NAME."""
        wanted = {"service": service, "limit": str(_MOST_FLOWS)}

        def look(cluster: Cluster) -> list[Flow]:
            found = [each for each in recent(cluster, wanted) if isinstance(each, Flow)]
            return found[::-1]

        return self._looked(look)

    def explanation(self, flow: Flow) -> Looked[str]:
        """What happens to another connection like this one."""
        client = flow.client
        source = (client.pod or client.address) if client else "host"
        place = socket_address(flow.frontend.address, flow.frontend.port)
        target = f"{place}/{flow.protocol.lower()}"

        def look(cluster: Cluster) -> str:
            return text_of(cluster, explained(cluster, source, target, ""), "table")

        return self._looked(look)

    def _looked(self, look: Callable[[Cluster], Found], *, anew: bool = False) -> Looked[Found]:
        """Each look keeps failures of its own. anew: find the agents first."""
        try:
            if anew:
                self.cluster.look_again()
            cluster = replace(self.cluster, failures=defaultdict(set))
            found = look(cluster)
        except EbpflbError as error:
            return Looked(None, str(error))
        told = (f"{some(nodes)}: {error}" for error, nodes in sorted(cluster.failures.items()))
        return Looked(found if found or not cluster.failures else None, "; ".join(told))
