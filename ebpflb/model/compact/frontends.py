# SPDX-License-Identifier: Apache-2.0
"""The compact answer of `ebpflb services`: each frontend with its counters on the node."""

from typing import Annotated, NamedTuple

import msgspec

from ebpflb.model.compact import Count
from ebpflb.words.backup import BackupUse
from ebpflb.words.connections import DROPPED, FAILED, REFUSED

SERVED = "served"
# Of a frontend, by their names in Counts: columns and JSON of both commands have them.
COUNTS = ("connections", FAILED, REFUSED, DROPPED)
_OF_FRONTEND = msgspec.Meta(min_length=len(COUNTS), max_length=len(COUNTS))


class FrontendName(NamedTuple):
    """Identifies a frontend; lists are sorted by these fields."""

    namespace: str
    service: str
    port_name: str
    type: str
    protocol: str
    address: str
    port: int

    @property
    def service_port(self) -> str:
        """NAMESPACE/NAME, with :PORT if that has a name."""
        port = f":{self.port_name}" if self.port_name else ""
        return f"{self.namespace}/{self.service}{port}"


class FrontendSettings(NamedTuple):
    """backup: a BackupUse."""

    internal_policy: str
    external_policy: str
    affinity_timeout: int
    scheduler: str
    dsr: bool
    source_ranges: tuple[str, ...]
    backup: str = BackupUse.NONE.value
    unserved: str = ""
    retry: bool = False
    limits: str = ""


class FrontendForm(NamedTuple):
    """The part of a frontend that should be the same on all nodes.

    backends: for clients on the node; empty with internal policy Local, where nodes differ.
    """

    name: FrontendName
    settings: FrontendSettings
    backends: tuple[str, ...]


class FrontendRow(NamedTuple):
    """A frontend on one node. form: a FrontendForm as JSON. counts: those of COUNTS.

    more: the backends there that are not in the form. outside: what happens there to clients from
    outside under external policy Local: SERVED, or what is done without an endpoint on the node.
    Empty under policy Cluster.
    """

    form: msgspec.Raw
    counts: Annotated[tuple[Count, ...], _OF_FRONTEND]
    more: tuple[str, ...] = ()
    outside: str = ""


rows_decoder = msgspec.json.Decoder(list[FrontendRow])
form_decoder = msgspec.json.Decoder(FrontendForm)
