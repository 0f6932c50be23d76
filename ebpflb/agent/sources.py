# SPDX-License-Identifier: Apache-2.0
"""Where an agent's objects come from, and who is told what happens to them."""

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


class Origin(Protocol):
    """A source, and the people behind it."""

    def __str__(self) -> str:
        """What logs call it."""
        ...

    def start(self, emit: Emit) -> None:
        """Begin to tell `emit`, from other threads. SourceError if that is not possible."""
        ...

    def stop(self) -> None:
        """Tell nothing any more."""
        ...

    def announce(self, announcement: Announcement) -> None:
        """Let users know. Never waits."""
        ...


def origin_of(settings: Settings) -> Origin:
    """The manifests, or else the API server. Raises ConfigError where neither is known."""
    if settings.manifests:
        return Manifests(settings.manifests)
    # The client is 34 MB of memory, which manifests do not need.
    from ebpflb.source.api import Api

    return Cluster(Api(settings.kubeconfig, settings.master), settings.node_name)


class Manifests:
    """Files; nobody is to be told but by the log and /status."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source: DirectorySource | None = None

    def __str__(self) -> str:
        return str(self._path)

    def start(self, emit: Emit) -> None:
        """Read and watch the files."""
        self._source = DirectorySource(self._path, emit)
        self._source.start()

    def stop(self) -> None:
        """End the source."""
        if self._source:
            self._source.stop()

    def announce(self, announcement: Announcement) -> None:
        """There are no Events without an API server."""


class Cluster:
    """The API server; its Events tell users."""

    def __init__(self, api: "Api", node_name: str) -> None:
        from ebpflb.source.kubernetes_events import Announcer

        self._api = api
        self._node = ObjectKey(Kind.NODE, "", node_name)
        self._announcer = Announcer(api, node_name)

    def __str__(self) -> str:
        return self._api.address

    def start(self, emit: Emit) -> None:
        """List and watch."""
        from ebpflb.source.kubernetes import KubernetesSource

        self._source = KubernetesSource(self._api, self._node.name, emit)
        self._announcer.start(self._source.uid)
        self._source.start()
        self.announce(Announcement(self._node, "Starting", "ebpflb is starting", warning=False))

    def stop(self) -> None:
        """End the source and the Events."""
        self._source.stop()
        self._announcer.stop()

    def announce(self, announcement: Announcement) -> None:
        """Create an Event."""
        self._announcer.announce(announcement)
