# SPDX-License-Identifier: Apache-2.0
"""A connection that is open now: nodes write it as JSON, and the plugin reads it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.json import Decoder, Encoder

from ebpflb.from_json import JsonError
from ebpflb.model.flow import (
    Count,
    Directions,
    FlowBackend,
    FlowClient,
    FlowFrontend,
    FlowService,
    Name,
    Seconds,
    Word,
)

SOCKET, TC = "socket", "tc"
PATHS = (SOCKET, TC)
"""Where a connection is translated."""

OPENING, ESTABLISHED, CLOSING, ENDED = "opening", "established", "closing", "ended"
# Of UDP: no answer yet, or a short exchange; a stream; a socket, which tells no more.
EXCHANGE, STREAM, BOUND = "exchange", "stream", "bound"


class OpenConnection(Struct, kw_only=True, omit_defaults=True):
    """A connection, or a UDP flow or socket, through a Service.

    Unknown texts are empty, other unknown values None, and JSON has neither. age, idle: seconds
    since the first and the last packet with data. bytes: of payload. removed: the backend is no
    endpoint any more that serves. node: where it is translated; only the plugin sets it.
    """

    path: Word
    protocol: Word
    state: Word
    client: FlowClient | None = None
    frontend: FlowFrontend
    service: FlowService | None = None
    backend: FlowBackend
    removed: bool = False
    age: Seconds | None = None
    idle: Seconds | None = None
    bytes: Directions | None = None
    retransmits: Count | None = None
    node: Name = ""

    @property
    def service_name(self) -> str:
        """NAMESPACE/NAME, or the frontend's address."""
        if self.service is None:
            return self.frontend.address
        return f"{self.service.namespace}/{self.service.name}"

    @property
    def client_name(self) -> str:
        """NAMESPACE/NAME of the pod, or its address."""
        return "" if self.client is None else self.client.pod or self.client.address

    @property
    def workload(self) -> str:
        """The client's, as NAMESPACE/KIND/NAME; without one, as client_name."""
        if self.client is None or not self.client.workload:
            return self.client_name
        return f"{self.client.pod.partition('/')[0]}/{self.client.workload}"

    @property
    def backend_name(self) -> str:
        """NAMESPACE/NAME of the pod, or its address."""
        return self.backend.pod or self.backend.address


class WantedConnections(NamedTuple):
    """namespace, service: of the Service, the latter as NAMESPACE/NAME; empty for any.

    source: the client's address, or NAMESPACE/NAME of its pod. older: seconds.
    """

    namespace: str = ""
    service: str = ""
    source: str = ""
    is_removed: bool = False
    older: float = 0.0

    def have(self, found: OpenConnection) -> bool:
        namespace = found.service.namespace if found.service else ""
        return (
            self.namespace in ("", namespace)
            and self.service in ("", found.service_name)
            and (not self.source or self.source in _names(found.client))
            and (not self.is_removed or found.removed)
            and (not self.older or (found.age or 0.0) >= self.older)
        )


def _names(client: FlowClient | None) -> tuple[str, ...]:
    return () if client is None else (client.address, client.pod)


BY: Mapping[str, Callable[[OpenConnection], str]] = {
    "client": lambda each: each.client_name,
    "workload": lambda each: each.workload,
    "service": lambda each: each.service_name,
    "backend": lambda each: each.backend_name,
    "node": lambda each: each.node,
}
"""What connections can be counted by."""

_DECODER, _ENCODER = Decoder(OpenConnection), Encoder()


def read_connection(line: bytes | str) -> OpenConnection:
    """The connection on a line, which any node may have written. JsonError."""
    try:
        return _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


def with_names(
    found: OpenConnection, pods: Mapping[str, str], workload_of: Callable[[str], str]
) -> OpenConnection:
    """`pods`: names by address. `workload_of`: of a pod, by name; "" if unknown."""
    for end in filter(None, (found.client, found.backend)):
        end.pod = pods.get(end.address, "")
        end.workload = workload_of(end.pod)
    return found


def connection_line(connection: OpenConnection) -> bytes:
    return _ENCODER.encode(connection) + b"\n"
