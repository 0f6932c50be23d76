# SPDX-License-Identifier: Apache-2.0
"""The source of the agent's objects, manifests or the API server, and the Events it can create."""

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ebpflb.config.settings import Settings
from ebpflb.dataplane.layout.enums import SocketPriority
from ebpflb.dataplane.load import compile_cache
from ebpflb.dataplane.load.pins import newest_generation
from ebpflb.errors import ConfigError
from ebpflb.model.address import SocketAddress
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.selection import EVERYTHING, Selection
from ebpflb.source.directory import DirectorySource
from ebpflb.source.interface import Announcement, SourceEvent
from ebpflb.words.events import EventReason

if TYPE_CHECKING:
    from ebpflb.source.api import Api, SocketOption
    from ebpflb.source.kubernetes import KubernetesSource
    from ebpflb.source.last_state import LastState

Emit = Callable[[SourceEvent], None]


class ObjectSource(Protocol):
    def __str__(self) -> str:
        """The path or address, for logs."""
        ...

    @property
    def api_servers(self) -> frozenset[SocketAddress]:
        """The configured API servers, by their addresses."""
        ...

    def start(self, emit: Emit) -> None:
        """Start calling `emit` from other threads. SourceError if that is not possible."""
        ...

    def stop(self) -> None: ...

    def announce(self, announcement: Announcement) -> None:
        """Create an Event. Does not block."""
        ...


def selection_of(settings: Settings) -> Selection:
    """The Services to serve."""
    return Selection(
        settings.service_selector or EVERYTHING.services,
        settings.namespace_selector or EVERYTHING.namespaces,
        settings.service_proxy_name,
    )


def state_path(bpffs_root: Path) -> Path:
    """Where the state is kept: each agent of a machine has its own pins, and its own file."""
    name = hashlib.sha256(str(bpffs_root).encode()).hexdigest()[:16]
    return compile_cache.DIRECTORY / f"state-{name}.gz"


def require_manifests(settings: Settings) -> None:
    """ConfigError if the manifests are not there at the start; later they may come and go."""
    if settings.manifests and not settings.manifests.exists():
        raise ConfigError(
            f"--manifests {settings.manifests}: No such file or directory: create it, or correct "
            "the path"
        )


def source_of(settings: Settings) -> ObjectSource:
    """Manifests, or else the API server. ConfigError if neither is given."""
    selection = selection_of(settings)
    if settings.manifests:
        return ManifestSource(settings.manifests, selection)
    # The client takes 34 MB of memory; manifests do not need it.
    from ebpflb.source.api import Api

    api = Api(
        settings.kubeconfig,
        settings.master,
        others=settings.api_servers,
        memory=compile_cache.DIRECTORY,
        socket_options=_agents_socket(),
    )
    return ApiServerSource(api, settings, selection)


def _agents_socket() -> "list[SocketOption]":
    """What makes the programs let a socket pass, whichever Service has the address."""
    option = (socket.SOL_SOCKET, socket.SO_PRIORITY, int(SocketPriority.LB_SOCKET_OF_AGENT))
    with socket.socket() as trial:
        try:
            trial.setsockopt(*option)
        except PermissionError:
            return []
    return [option]


class ManifestSource:
    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        self._selection = selection
        self._source: DirectorySource | None = None

    def __str__(self) -> str:
        return str(self._path)

    @property
    def api_servers(self) -> frozenset[SocketAddress]:
        return frozenset()

    def start(self, emit: Emit) -> None:
        self._source = DirectorySource(self._path, emit, self._selection.label_keys)
        self._source.start()

    def stop(self) -> None:
        if self._source:
            self._source.stop()

    def announce(self, announcement: Announcement) -> None:
        """Without an API server there are no Events; the log and /status say the same."""


class ApiServerSource:
    def __init__(self, api: "Api", settings: Settings, selection: Selection) -> None:
        from ebpflb.source.kubernetes_events import Announcer

        self._api = api
        self._selection = selection
        self._settings = settings
        self._node = ObjectKey(Kind.NODE, "", settings.node_name)
        self._announcer = Announcer(api, settings.node_name)
        self._last_state: LastState | None = None

    def __str__(self) -> str:
        return self._api.address

    @property
    def api_servers(self) -> frozenset[SocketAddress]:
        return self._api.configured

    def start(self, emit: Emit) -> None:
        from ebpflb.source.api_servers import listed_servers
        from ebpflb.source.kubernetes import KubernetesSource

        def learn_and_emit(event: SourceEvent) -> None:
            self._api.learn(listed_servers(event))
            emit(event)

        self._source = KubernetesSource(
            self._api,
            self._node.name,
            learn_and_emit,
            self._selection,
            all_nodes=self._settings.dsr != "off",
            with_pods=self._settings.watch_pods,
        )
        self._announcer.start(self._source.uid)
        self._source.start()
        self._last_state = self._started_last_state(self._source)
        self.announce(
            Announcement(self._node, EventReason.STARTING, "ebpflb is starting", warning=False)
        )

    def _started_last_state(self, source: "KubernetesSource") -> "LastState | None":
        from ebpflb.source.last_state import LastState
        from ebpflb.source.state_file import StateFile

        settings = self._settings
        if not settings.state_cache_max_age:
            return None
        file = StateFile(
            state_path(settings.bpffs_root),
            {**self._api.cluster, "node": self._node.name},
            self._selection.label_keys,
        )
        # What is pinned goes on to serve, and may be newer than the file.
        may_serve = newest_generation(settings.bpffs_root) is None
        found = LastState(source, file, settings.state_cache_max_age, may_serve=may_serve)
        found.start()
        return found

    def stop(self) -> None:
        if self._last_state:
            self._last_state.stop()
        self._source.stop()
        self._announcer.stop()

    def announce(self, announcement: Announcement) -> None:
        if self._settings.events:
            self._announcer.announce(announcement)
