# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows, asked of the relay or the nodes: rates, flows, explanations."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.config.values import socket_address
from ebpflb.errors import EbpflbError
from ebpflb.kubectl.cluster import NOT_THROUGH_THE_RELAY, THROUGH_THE_RELAY, Cluster, some
from ebpflb.kubectl.explain import explanations, text_of
from ebpflb.kubectl.flows import HIDDEN_ENDS, is_hidden, last_flows
from ebpflb.kubectl.top import carried
from ebpflb.model.flow import Flow, ServiceRate

Found = TypeVar("Found")

_MOST_FLOWS = 100


class Looked(NamedTuple, Generic[Found]):
    """found: None if nothing could be asked. complaint: what went wrong, on which nodes, or ""."""

    found: Found | None
    complaint: str


@dataclass(frozen=True, slots=True)
class Sight:
    """namespace: of the Services; empty for all. interval: seconds of a sample. Thread-safe.

    said: of each kind of look, why it was last not through the relay.
    """

    cluster: Cluster
    namespace: str
    interval: float
    said: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """What is looked at."""
        agents, access = self.cluster.agents, self.cluster.access
        nodes = f"{len(agents)} nodes of " if agents else ""
        return f"{self.namespace or 'all namespaces'}, {nodes}{access.cluster}"

    def services(self) -> Looked[list[ServiceRate]]:
        """What they carry from now on, for the length of a sample, on the nodes there are now."""
        return self._looked(
            "services",
            lambda cluster: carried(cluster, self.interval, self.namespace),
            anew=True,
        )

    def flows(self, service: str) -> Looked[list[Flow]]:
        """The last ones, newest first. `service`: NAMESPACE/NAME."""
        wanted = {"service": service, "limit": str(_MOST_FLOWS)}

        def look(cluster: Cluster) -> list[Flow]:
            flows = last_flows(cluster, wanted, self.namespace)
            return [each for each in flows if isinstance(each, Flow)][::-1]

        return self._looked("flows", look)

    def explanation(self, flow: Flow) -> Looked[str]:
        """What happens to another connection like this one."""
        if is_hidden(flow):
            return Looked(None, HIDDEN_ENDS)
        client = flow.client
        source = (client.pod or client.address) if client else "host"
        place = socket_address(flow.frontend.address, flow.frontend.port)
        target = f"{place}/{flow.protocol.lower()}"

        def look(cluster: Cluster) -> str:
            groups = explanations(cluster, AskedConnection(source, target), self.namespace)
            return text_of(cluster, groups, "table")

        return self._looked("explanation", look)

    def _looked(
        self, kind: str, look: Callable[[Cluster], Found], *, anew: bool = False
    ) -> Looked[Found]:
        """Each look keeps failures of its own. anew: find the agents first, if they are asked."""
        said: list[str] = []
        failures: dict[str, set[str]] = defaultdict(set)
        cluster = replace(self.cluster, failures=failures, say=said.append, are_old=anew)
        try:
            found = look(cluster)
        except EbpflbError as error:
            return Looked(None, "; ".join([*said, str(error)]))
        if anew:
            self.cluster.agents = cluster.agents
        told = [each for each in said if each != THROUGH_THE_RELAY]
        why = next((each for each in told if each.startswith(NOT_THROUGH_THE_RELAY)), "")
        if why == self.said.get(kind, ""):
            # It may last: the line is for what is new.
            told = [each for each in told if each != why]
        self.said[kind] = why
        told += [f"{some(nodes)}: {error}" for error, nodes in sorted(failures.items())]
        return Looked(found if found or not failures else None, "; ".join(told))
