# SPDX-License-Identifier: Apache-2.0
"""The API server's responses to the plugin: one error in one line, or valid data."""

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kubernetes.client import Configuration

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.errors import EbpflbError
from ebpflb.kubectl import sysdump
from ebpflb.kubectl.access import Access, Query
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.cluster import Cluster
from ebpflb.kubectl.execution import PodExecutor
from ebpflb.kubectl.questions import questions
from tests.builders import service_manifest
from tests.fuzz.targets import Play, Target, check_line
from tests.fuzz.targets.objects import words_of
from tests.unit.kubectl.api_server import daemon_set, node, pod

_AGENT = RemoteAgent("a", "kube-system", "ebpflb-a", True, "")
_NOTHING = b'{"items":[]}'
# Separates one response from the next.
_NEXT = b"\0"


class Recorded(Access):
    """An API server with given responses; when none is left: an empty list."""

    namespace = "default"

    def __init__(self, answers: Sequence[bytes]) -> None:
        self._answers = iter(answers)
        self._configuration = Configuration()
        self.seconds = 20.0

    def read(self, path: str, query: Query = (), accept: str = "*/*") -> bytes:
        return next(self._answers, _NOTHING)


@contextmanager
def _playing() -> Iterator[Play]:
    yield _play


def _play(given: bytes) -> None:
    """The first byte selects the request."""
    if not given:
        return
    access = Recorded(given[1:].split(_NEXT))
    cluster = Cluster(access, (_AGENT,), PodExecutor(access))
    try:
        with access.reading():
            _ask(cluster, given[0] % 5)
    except EbpflbError as refusal:
        check_line(str(refusal))


def _ask(cluster: Cluster, what: int) -> None:
    match what:
        case 0:
            cluster.look_again()
            json.dumps([each.node for each in cluster.agents], allow_nan=False)
        case 1:
            questions(cluster, AskedConnection("curl", "web:http"))
        case 2:
            questions(cluster, AskedConnection("10.1.0.5", "web"))
        case 3:
            questions(cluster, AskedConnection("198.51.100.7", "web"))
        case _:
            with tarfile.open(fileobj=io.BytesIO(), mode="w") as tar:
                archive = sysdump._Archive(tar, "dump", {})
                sysdump._add_cluster(cluster, archive)
            for error in archive.errors.values():
                check_line(error)


def _listed(*objects: object) -> bytes:
    return json.dumps({"items": objects}).encode()


_PODS = _listed(pod("a"), pod("b", ready=False))
_NODES = _listed(
    {
        **node("a", zone="x"),
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    }
)
_SERVICE = json.dumps(
    {
        **service_manifest(
            ports=[{"name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP"}]
        ),
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
    }
).encode()
_SEEDS = [
    b"\0" + _NEXT.join([_listed(daemon_set()), _PODS, _NODES]),
    b"\1" + json.dumps({"spec": {"nodeName": "a"}}).encode(),
    b"\2" + _PODS,
    b"\3" + _NEXT.join([_listed(), _NODES, _SERVICE, _NODES]),
    b"\4" + _NEXT.join([b'{"gitVersion": "v1"}', _NODES, _PODS, _listed(json.loads(_SERVICE))]),
]
_WORDS = {word for raw in (_PODS, _NODES, _SERVICE) for word in words_of(json.loads(raw))}
_VALUES = [b"null", b"[]", b"{}", b"1e999", b"-1", b'"continue":"x"', b'"ports":null', _NEXT]
TARGET = Target(_SEEDS, [*_VALUES, *sorted(_WORDS)], _playing)
