# SPDX-License-Identifier: Apache-2.0
"""A Service port with limits of connections, and pods that connect to it."""

from ipaddress import ip_address
from typing import Any

import pytest
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import (
    DescFlag,
)
from ebpflb.dataplane.layout.records import pack_index, pack_open, unpack_open
from ebpflb.dataplane.layout.structs import LbClientKey, LbClientUse, LbLimit
from tests.bpf.harness.datapath import SERVICE, Datapath, Result, Verdict, addr
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind, target_of
from tests.bpf.harness.sessions import Sessions

SECOND = 10**9
LIMITED = DescFlag.LB_DESC_LIMITS | DescFlag.LB_DESC_COUNTS_OPEN
FIRST_PORT = 8000


def limit(datapath: Datapath, **fields: int) -> None:
    """Give the tests' Service port these limits."""
    datapath.maps["lb_limits"].update(u32(SERVICE), bytes(LbLimit(**fields)))


def uses(datapath: Datapath) -> list[LbClientUse]:
    """Those of all clients."""
    return [
        LbClientUse.from_buffer_copy(each) for _, each in datapath.maps["lb_client_uses"].items()
    ]


def use_of(datapath: Datapath, address: str) -> LbClientUse:
    return LbClientUse.from_buffer_copy(
        datapath.maps["lb_client_uses"].lookup(client_key(address)) or b""
    )


def put_use(datapath: Datapath, address: str, opened: int, due: int = 0) -> None:
    datapath.maps["lb_client_uses"].update(client_key(address), bytes(LbClientUse(opened, due)))


def client_key(address: str) -> bytes:
    return bytes(LbClientKey(SERVICE, addr(address)))


class Limited:
    """A ClusterIP whose backends differ by their ports, and pods that connect."""

    def __init__(self, datapath: Datapath, kind: Kind, backends: int = 4, **fields: int) -> None:
        self.datapath, self.kind = datapath, kind
        self.sessions = Sessions(datapath, kind)
        self.offered = self.sessions.backends[:backends]
        self.sessions.serve(self.offered)
        self.change()
        limit(datapath, **fields)

    def change(self, flags: int = 0, **fields: Any) -> None:
        wanted = {"affinity_timeout": 0, "flags": LIMITED | flags} | fields
        self.sessions.change(self.frontend, **wanted)

    @property
    def frontend(self) -> End:
        return self.sessions.frontend

    def open(self, address: str = "", source: End | None = None) -> tuple[End, Result]:
        """A new connection of a pod, and what becomes of its first packet."""
        source = source or self.sessions.source(address)
        frame = self.kind.frame(source, self.frontend, "S", payload=b"")
        return source, self.datapath.run("lb_pod_ingress", frame)

    def opens(self, address: str = "") -> int | None:
        """The index of the backend that a new connection gets, or None."""
        result = self.open(address)[1]
        return self.sessions.chosen(result.packet) if result.verdict is Verdict.PASS else None

    def end(self, source: End, packet: Packet) -> None:
        """The backend resets the connection, or the agent forgets it."""
        answer = self.kind.frame(target_of(packet), source, "RA", payload=b"")
        self.datapath.run("lb_pod_egress", answer)

    def put(self, *numbers: int) -> None:
        """Set the numbers of open connections."""
        for index, number in zip(self.offered, numbers, strict=True):
            self.datapath.maps["lb_open"].update(pack_index(index), pack_open(number))

    def counts(self) -> list[int]:
        table = self.datapath.maps["lb_open"]
        return [unpack_open(table.lookup(pack_index(each)) or b"") for each in self.offered]


def is_refused(result: Result) -> bool:
    """Whether the client gets an ICMP error, or else nothing."""
    assert result.verdict in (Verdict.REDIRECT, Verdict.DROP)
    return result.verdict is Verdict.REDIRECT


def other(address: str) -> str:
    """Another address of its network."""
    return str(ip_address(address) + 100)


silences = pytest.mark.parametrize("is_silent", [False, True])
