# SPDX-License-Identifier: Apache-2.0
"""Answers load balancers at the health check node port of each Service.

Whatever the method and path, the response is kube-proxy's.
"""

import errno
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from ebpflb.errors import EbpflbError
from ebpflb.model.address import Family
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.service import ServiceName
from ebpflb.web.answers import JSON, Answer, Request
from ebpflb.web.server import BACKLOG, Clients, HttpServer

Checks = Mapping[ServiceName, HealthCheck]
Addresses = Callable[[], Mapping[Family, Sequence[str]]]


class _ServicePort(NamedTuple):
    service: ServiceName
    family: Family
    port: int


class HealthCheckServer:
    """Listens on the ports of `serve()` until `stop()`. All ports share one limit of clients."""

    def __init__(self, server: HttpServer, is_healthy: Callable[[], bool], addresses: Addresses):
        """`is_healthy`: as for /livez. `addresses`: where to listen, read when a port is opened."""
        self._server = server
        self._is_healthy = is_healthy
        self._addresses = addresses
        self._checks: Checks = {}
        self._listening: dict[_ServicePort, list[socket.socket]] = {}
        self._clients = Clients()

    def serve(self, checks: Checks) -> dict[ServiceName, str]:
        """Answer for these and no others from now on; returns the errors by Service.

        Ports that could not be opened are retried at the next call. For one thread.
        """
        self._checks = checks
        wanted = {
            _ServicePort(name, family, check.port)
            for name, check in checks.items()
            for family in check.local_ready
        }
        for port in self._listening.keys() - wanted:
            self._close(port)
        missing = sorted(wanted - self._listening.keys())
        return self._open_all(missing) if missing else {}

    def stop(self) -> None:
        """Close all ports."""
        for port in list(self._listening):
            self._close(port)

    def _open_all(self, ports: Sequence[_ServicePort]) -> dict[ServiceName, str]:
        try:
            addresses = self._addresses()
        except EbpflbError as error:
            return {each.service: f"port {each.port}: {error}" for each in ports}
        errors: dict[ServiceName, str] = {}
        for each in ports:
            if text := self._open(each, addresses.get(each.family, ())):
                errors.setdefault(each.service, text)
        return errors

    def _open(self, port: _ServicePort, hosts: Sequence[str]) -> str:
        """Listen on all of these hosts or none; returns the error, or ""."""
        sockets: list[socket.socket] = []
        try:
            for host in hosts:
                sockets.append(_listen(host, port.port))
        except OSError as error:
            for each in sockets:
                each.close()
            if error.errno == errno.EAFNOSUPPORT:
                # Without IPv6 on the node, nobody can ask it over IPv6 either.
                return ""
            shown = f"[{host}]" if ":" in host else host
            return f"{shown}:{port.port}: {os.strerror(error.errno or 0)}"
        for each in sockets:
            self._listening.setdefault(port, []).append(each)
            self._server.listen(each, partial(self._respond, port), self._clients)
        return ""

    def _close(self, port: _ServicePort) -> None:
        for each in self._listening.pop(port):
            self._server.close(each)

    async def _respond(self, port: _ServicePort, _: Request) -> Answer:
        """200 if this node should get traffic, otherwise 503."""
        check = self._checks.get(port.service)
        local_ready = check.local_ready.get(port.family, 0) if check else 0
        healthy = self._is_healthy()
        report = {
            "service": {"namespace": port.service.namespace, "name": port.service.name},
            "localEndpoints": local_ready,
            "serviceProxyHealthy": healthy,
        }
        good = healthy and local_ready > 0
        return Answer(
            json.dumps(report, indent="\t").encode(),
            JSON,
            HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE,
            {"X-Load-Balancing-Endpoint-Weight": str(local_ready)},
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
