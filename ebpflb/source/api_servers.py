# SPDX-License-Identifier: Apache-2.0
"""The addresses of the API server, tried in turn: first the configured ones, then learned ones.

An API server lists itself and its peers as endpoints of the Service default/kubernetes. They are
kept in a file, so that an agent can start even while the configured addresses are down. Whoever may
write EndpointSlices can name others, so learned servers are used only if their certificates are
verified.
"""

import hashlib
import json
import logging
import os
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTP_PORT, HTTPS_PORT
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ebpflb.config.values import socket_address
from ebpflb.from_json import JsonError, from_json
from ebpflb.log import fields
from ebpflb.model.address import SocketAddress, format_address, parse_address
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.service import API_SERVER, ServiceName
from ebpflb.source.interface import SourceEvent

_log = logging.getLogger("ebpflb.source")

_PORT = "https"
# Every API server's certificate is valid for this name, whatever its address.
_CERTIFICATE_NAME = "kubernetes.default.svc"
_MOST = 16


class ApiServer(NamedTuple):
    """certificate_name: what its certificate must be valid for, empty for the host in the URL."""

    url: str
    certificate_name: str = ""


class ApiServers:
    """Thread-safe."""

    def __init__(self, configured: Sequence[str], memory: Path | None = None) -> None:
        """`configured`: URLs. `memory`: a directory that need not exist, None to learn nothing."""
        self._configured = tuple(dict.fromkeys(configured))
        name = hashlib.sha256(self._configured[0].encode()).hexdigest()[:16]
        self._file = memory / f"api-servers-{name}.json" if memory else None
        self._lock = threading.Lock()
        self._trusts_learned = True
        self._servers = self._all(_remembered(self._file))
        self._current = 0

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def configured(self) -> frozenset[SocketAddress]:
        """The configured ones that are given by their address, not by name."""
        return frozenset(_places(self._configured))

    @property
    def current(self) -> ApiServer:
        return self._servers[self._current]

    def move_on(self, failed: ApiServer) -> None:
        """Switch to the next server, unless another thread already has."""
        with self._lock:
            if self.current != failed or len(self) == 1:
                return
            self._current = (self._current + 1) % len(self)
            chosen = self.current.url
        _log.info("switching to another API server", extra=fields(failed=failed.url, next=chosen))

    def trust_learned(self, trusted: bool) -> None:
        """Whether certificates are verified; forget what was learned if they are not."""
        with self._lock:
            self._trusts_learned = trusted
            if not trusted:
                current = self.current
                self._servers = found = self._all(())
                self._current = found.index(current) if current in found else 0

    def learn(self, urls: Sequence[str]) -> None:
        """Replace the learned servers by these; an empty list changes nothing."""
        if not (self._file and urls and self._trusts_learned):
            return
        learnt = list(urls[:_MOST])
        # So that not all nodes turn to the same one.
        random.shuffle(learnt)
        with self._lock:
            current = self.current
            if set(self._servers) == set(found := self._all(learnt)):
                return
            self._servers = found
            self._current = found.index(current) if current in found else 0
        _remember(self._file, learnt)

    def _all(self, learnt: Iterable[str]) -> tuple[ApiServer, ...]:
        others = (url for url in learnt if url not in self._configured)
        return (
            *map(ApiServer, self._configured),
            *(ApiServer(url, _CERTIFICATE_NAME) for url in others),
        )


def listed_servers(event: SourceEvent) -> list[str]:
    """The URLs of the API servers in an event; empty if it is about other objects."""
    return [
        f"https://{socket_address(format_address(endpoint.address), port.port)}"
        for piece in event.upserts
        if isinstance(piece, EndpointSlice)
        and ServiceName(piece.namespace, piece.service) == API_SERVER
        for port in piece.ports
        if port.name == _PORT
        for endpoint in piece.endpoints
        if endpoint.ready
    ]


def _places(urls: Iterable[str]) -> Iterator[SocketAddress]:
    for url in urls:
        parts = urlsplit(url)
        with suppress(ValueError):
            usual = HTTP_PORT if parts.scheme == "http" else HTTPS_PORT
            yield SocketAddress(parse_address(parts.hostname or ""), parts.port or usual)


def _remembered(file: Path | None) -> list[str]:
    """An unreadable file counts as missing: it will be rewritten."""
    if not file:
        return []
    try:
        found = from_json(file.read_bytes())
    except (OSError, JsonError):
        return []
    urls = found if isinstance(found, list) else []
    return [url for url in urls if isinstance(url, str) and url.startswith("https://")][:_MOST]


def _remember(file: Path, urls: Sequence[str]) -> None:
    """If this fails, the next agent starts with the configured addresses only."""
    new = file.with_suffix(".new")
    with suppress(OSError):
        with suppress(FileExistsError):
            file.parent.mkdir(mode=0o700)
        new.write_text(json.dumps(urls))
        os.replace(new, file)
