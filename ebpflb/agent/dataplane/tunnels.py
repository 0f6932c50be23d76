# SPDX-License-Identifier: Apache-2.0
"""Direct server return on this node: its maps, the tunnels' source addresses, and problems."""

import logging
from collections.abc import Container, Iterator, Mapping

from ebpflb.config.settings import Settings
from ebpflb.dataplane.kernel.dsr_questions import DsrAnswer, DsrSockets
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.services.tunnel_keys import TunnelKeys
from ebpflb.dataplane.services.tunnels import TunnelMaps
from ebpflb.model.address import Address, Family, family_of, format_address
from ebpflb.model.agent_report import TunnelsReport
from ebpflb.model.dsr import TunnelChange
from ebpflb.model.dsr_probe import PeerQuestion
from ebpflb.model.service import Dsr

_log = logging.getLogger("ebpflb.agent")


class NodeTunnels:
    """For one thread, except `report()`. Does nothing without DSR."""

    def __init__(self, settings: Settings) -> None:
        self._services = Dsr(settings.dsr)
        self.port = settings.dsr_port if self._services is not Dsr.OFF else 0
        self._maps = TunnelMaps()
        self._keys = TunnelKeys(settings.dsr_key_file)
        self._sockets = DsrSockets(settings.dsr_port)
        self._without: Mapping[str, str] = {}

    def follow(self, change: TunnelChange, *, keep_others: bool, compare: bool) -> None:
        """See TunnelMaps."""
        self._maps.follow(change, keep_others=keep_others, compare=compare)

    def sources(self, here: Container[Address]) -> Mapping[Family, Address]:
        """The tunnels' source addresses; `here`: the addresses of this machine."""
        return self._maps.sources(here) if self.port else {}

    def write(self, maps: MapSet, here: Container[Address]) -> None:
        """Write the changes followed so far to the maps. MapError."""
        if self.port:
            self.follow_keys(maps)
            families = self.sources(here).keys()
            self._maps.write(maps, families)
            self._tell({family_of(each) for each in self._maps.own} - families)

    def follow_keys(self, maps: MapSet) -> None:
        """Read the keys again, and write them. MapError."""
        if self.port:
            self._keys.follow(maps["lb_tunnel_keys"])

    def ask(self, question: PeerQuestion, here: Container[Address]) -> str:
        """Send a question from the tunnels' source address; returns what prevents it, or ""."""
        own = self.sources(here).get(question.peer.family)
        return self._sockets.ask(own, question.address, question.nonce, self._keys.sent)

    def answers(self) -> Iterator[DsrAnswer]:
        """The answers received so far."""
        return self._sockets.answers()

    def close(self) -> None:
        self._sockets.close()

    def _tell(self, without: set[Family]) -> None:
        found = {family.text: self._why_without(family) for family in sorted(without)}
        for family, why in found.items():
            if self._without.get(family) != why:
                _log.warning("no direct server return over %s: %s", family, why)
        self._without = found

    def _why_without(self, family: Family) -> str:
        named = (format_address(each) for each in self._maps.own if family_of(each) is family)
        return (
            f"this machine has none of the addresses of its Node ({', '.join(named)}), and other "
            "nodes accept DSR packets only from those"
        )

    def report(self) -> TunnelsReport | None:
        """For /status; None without DSR. For any thread."""
        if not self.port:
            return None
        return TunnelsReport(
            services=str(self._services),
            port=self.port,
            peers=self._maps.peers,
            pods=self._maps.pods,
            without=dict(self._without),
            keys=self._keys.count,
            key_trouble=self._keys.trouble,
        )
