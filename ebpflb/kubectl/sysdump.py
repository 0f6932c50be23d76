# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb sysdump: what a bug report needs to know about a cluster, in one archive.

It contains no Secrets, no values of environment variables and no tokens: Secrets are not read, of
Services and EndpointSlices only the metadata is, and strings in logs that look like tokens are
removed.
"""

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ebpflb import __version__
from ebpflb.cli.table import size
from ebpflb.errors import ClusterError
from ebpflb.kubectl.access import METADATA, Access, Object
from ebpflb.kubectl.agents import CONTAINER, LABEL, RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT, AgentAnswer
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.words import annotations

_COMMANDS = {
    "version.txt": ("ebpflb", "--version"),
    "status.json": ("ebpflb", "status", "-o", "json"),
    "doctor.json": ("ebpflb", "doctor", "-o", "json"),
    "maps.json": ("ebpflb", "maps", "list", "-o", "json"),
    "frontends.json": ("ebpflb", "maps", "dump", "-o", "json"),
    "flows.jsonl": ("ebpflb", "flows", "-o", "jsonl", "--last=1000"),
}
_LOG_LINES = 10_000
# JSON web tokens, bearer tokens, and the usual names of passwords and keys.
_TOKENS = re.compile(
    rb"()eyJ[\w-]{10,}\.[\w-]+\.[\w-]*"
    rb"|(?i:(bearer\s+)\S+)"
    rb"|(?i:(\b(?:token|password|secret|api[_-]?key)\b[\"']?\s*[=:]\s*[\"']?)[^\s\"',}]+)"
)
_LISTS = {
    "services": "/api/v1/services",
    "endpointslices": "/apis/discovery.k8s.io/v1/endpointslices",
}
_KEPT_ANNOTATIONS = (annotations.PREFIX, "service.kubernetes.io/", "service.beta.kubernetes.io/")


@click.command(
    epilog="""\b
The archive contains, for each node: version, status, doctor, maps and frontends, the last 1000
flows (with addresses and names of pods) and the agent's log; for the cluster: its version, nodes,
agents' pods, and the metadata of Services and EndpointSlices. It contains no Secrets, tokens or
values of environment variables. Review it before you send it.

\b
What could not be collected is listed on standard error and in errors.txt; the exit status is
then 1.

\b
Examples:
  kubectl ebpflb sysdump
  kubectl ebpflb sysdump --file /tmp/ebpflb.tar.gz
"""
)
@click.option(
    "--file",
    "path",
    metavar="PATH",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive's path.  [./ebpflb-sysdump-TIME.tar.gz]",
)
@cluster_command
def sysdump(cluster: Cluster, path: Path | None) -> None:
    """Collect what a bug report needs in an archive, without secrets."""
    cluster.find()
    name = time.strftime("ebpflb-sysdump-%Y%m%dT%H%M%SZ", time.gmtime())
    path = path or Path(f"{name}.tar.gz")
    # Readable by the user only, and never overwrites a file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        archive = _Archive(tar, name, {})
        _add_nodes(cluster, archive)
        _add_logs(cluster, archive)
        _add_cluster(cluster, archive)
        archive.add("errors.txt", _errors(cluster, archive).encode())
    click.echo(f"{path}: {archive.files} files, {size(path.stat().st_size)}")
    for what, error in archive.errors.items():
        click.echo(f"{what}: {error}", err=True)
        cluster.exit_status = 1


@dataclass(slots=True)
class _Archive:
    """name: the folder in it. errors: what is missing -> why."""

    tar: tarfile.TarFile
    name: str
    errors: dict[str, str]
    files: int = 0

    def add(self, path: str, content: bytes) -> None:
        """Strings that look like tokens are removed, except from JSON."""
        is_json = path.endswith((".json", ".jsonl"))
        clean = content if is_json else _TOKENS.sub(_without_token, content)
        member = tarfile.TarInfo(f"{self.name}/{path}")
        member.size, member.mtime = len(clean), int(time.time())
        self.tar.addfile(member, io.BytesIO(clean))
        self.files += 1

    def add_json(self, path: str, read: Callable[[], object]) -> None:
        """What cannot be read is listed in `errors`."""
        try:
            self.add(path, json.dumps(read(), indent=1).encode())
        except ClusterError as error:
            self.errors[path] = str(error)


def _without_token(found: re.Match[bytes]) -> bytes:
    return next(filter(None, found.groups()), b"") + b"(left out)"


def _add_nodes(cluster: Cluster, archive: _Archive) -> None:
    for name, command in _COMMANDS.items():
        for answer in cluster.ask_by(partial(_run, cluster, command), cluster.agents):
            archive.add(f"nodes/{answer.agent.node}/{name}", answer.stdout.encode())
            if answer.stderr:
                archive.add(f"nodes/{answer.agent.node}/{name}.stderr", answer.stderr.encode())


def _add_logs(cluster: Cluster, archive: _Archive) -> None:
    for answer in cluster.ask_by(partial(_log, cluster.access), cluster.agents):
        archive.add(f"nodes/{answer.agent.node}/agent.log", answer.stdout.encode())


def _run(cluster: Cluster, argv: Sequence[str], agent: RemoteAgent) -> AgentAnswer:
    return cluster.executor.run(agent, argv)


def _log(access: Access, agent: RemoteAgent) -> AgentAnswer:
    """With the agent's log in place of output."""
    if not agent.pod:
        return AgentAnswer(agent, None, error=NO_AGENT)
    path = f"/api/v1/namespaces/{quote(agent.namespace)}/pods/{quote(agent.pod)}/log"
    query = [("container", CONTAINER), ("tailLines", str(_LOG_LINES)), ("timestamps", "true")]
    try:
        log = access.read(path, query).decode(errors="replace")
    except ClusterError as error:
        return AgentAnswer(agent, None, error=f"no log: {error}")
    return AgentAnswer(agent, 0, log)


def _add_cluster(cluster: Cluster, archive: _Archive) -> None:
    access = cluster.access
    archive.add("plugin-version.txt", f"{__version__}\n".encode())
    archive.add_json("cluster/version.json", lambda: access.get("/version"))
    archive.add_json("cluster/nodes.json", _each(access, "/api/v1/nodes", _node))
    for namespace in sorted({agent.namespace for agent in cluster.agents if agent.pod}):
        path = f"/api/v1/namespaces/{quote(namespace)}/pods"
        pods = _each(access, path, _pod, query=[("labelSelector", LABEL)])
        archive.add_json(f"cluster/agents-{namespace}.json", pods)
    for name, path in _LISTS.items():
        objects = _each(access, path, _metadata, accept=METADATA)
        archive.add_json(f"cluster/{name}.json", objects)


def _each(
    access: Access, path: str, read: Callable[[Object], object], **how: Any
) -> Callable[[], object]:
    """What is read of each object at a path."""

    def found() -> object:
        with access.reading():
            return list(map(read, access.items(path, **how)))

    return found


def _metadata(found: Object) -> object:
    """Without managedFields, and without annotations that may contain the whole object."""
    metadata = found["metadata"]
    names = ("namespace", "name", "labels", "creationTimestamp", "generation", "resourceVersion")
    annotations = {
        key: value
        for key, value in metadata.get("annotations", {}).items()
        if key.startswith(_KEPT_ANNOTATIONS)
    }
    return {**{key: metadata.get(key) for key in names}, "annotations": annotations}


def _node(found: Object) -> object:
    status = found.get("status", {})
    about = ("nodeInfo", "addresses", "conditions")
    return {
        "name": found["metadata"]["name"],
        "labels": found["metadata"].get("labels"),
        "taints": found.get("spec", {}).get("taints"),
        **{key: status.get(key) for key in about},
    }


def _pod(found: Object) -> object:
    """Without the spec, which contains the environment."""
    metadata, status = found["metadata"], found.get("status", {})
    return {
        "name": metadata["name"],
        "node": found["spec"].get("nodeName"),
        "images": [each.get("image") for each in found["spec"]["containers"]],
        **{key: status.get(key) for key in ("phase", "conditions", "containerStatuses")},
    }


def _errors(cluster: Cluster, archive: _Archive) -> str:
    nodes = (f"{', '.join(sorted(nodes))}: {text}" for text, nodes in cluster.failures.items())
    others = (f"{what}: {text}" for what, text in archive.errors.items())
    return "".join(f"{line}\n" for line in (*nodes, *others))
