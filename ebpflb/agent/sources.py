# SPDX-License-Identifier: Apache-2.0
"""The source of the agent's objects: manifests or the API server, and the Events it can create."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ebpflb.config.settings import Settings
from ebpflb.model.changes import Kind, ObjectKey
from ebpflb.source.directory import DirectorySource
from ebpflb.source.interface import Announcement, SourceEvent

if TYPE_CHECKING:
    from ebpflb.source.api import Api

Emit = Callable[[SourceEvent], None]


class ObjectSource(Protocol):
    def __str__(self) -> str:
        """The path or address, for logs."""
        ...

    def start(self, emit: Emit) -> None:
        """Begin to call `emit` from other threads. SourceError if that is not possible."""
        ...

    def stop(self) -> None: ...

    def announce(self, announcement: Announcement) -> None:
        """Create an Event. Never waits."""
        ...


def source_of(settings: Settings) -> ObjectSource:
    """The manifests, or else the API server. ConfigError if there are neither."""
    if settings.manifests:
        return ManifestSource(settings.manifests)
    # The client takes 34 MB of memory, which manifests do not need.
    from ebpflb.source.api import Api

    return ApiServerSource(Api(settings.kubeconfig, settings.master), settings.node_name)


class ManifestSource:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._source: DirectorySource | None = None

    def __str__(self) -> str:
        return str(self._path)

    def start(self, emit: Emit) -> None:
        self._source = DirectorySource(self._path, emit)
        self._source.start()

    def stop(self) -> None:
        if self._source:
            self._source.stop()

    def announce(self, announcement: Announcement) -> None:
        """There are no Events without an API server; the log and /status say the same."""


class ApiServerSource:
    def __init__(self, api: "Api", node_name: str) -> None:
        from ebpflb.source.kubernetes_events import Announcer

        self._api = api
        self._node = ObjectKey(Kind.NODE, "", node_name)
        self._announcer = Announcer(api, node_name)

    def __str__(self) -> str:
        return self._api.address

    def start(self, emit: Emit) -> None:
        from ebpflb.source.kubernetes import KubernetesSource

        self._source = KubernetesSource(self._api, self._node.name, emit)
        self._announcer.start(self._source.uid)
        self._source.start()
        self.announce(Announcement(self._node, "Starting", "ebpflb is starting", warning=False))

    def stop(self) -> None:
        self._source.stop()
        self._announcer.stop()

    def announce(self, announcement: Announcement) -> None:
        self._announcer.announce(announcement)
