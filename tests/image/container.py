# SPDX-License-Identifier: Apache-2.0
"""Runs the image with runc on a node of the lab, with a pod's rights and mounts."""

import json
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebpflb.lab import LabNode
from ebpflb.lab.processes import remove_cgroup_if_empty
from tests.e2e.harness.waiting import wait_until
from tests.image.build import buildah, image_archive, image_name, working_container
from tests.own import cgroups_named, own_name

# Seconds that a container may take on a busy machine.
PATIENCE = 300

# Their numbers in linux/capability.h.
_CAPABILITIES = {
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_RESOURCE": 24,
    "PERFMON": 38,
    "BPF": 39,
}


@dataclass(frozen=True, slots=True)
class Container:
    """What a container is given. binds: path inside -> path outside."""

    root: Path
    bundle: Path
    capabilities: frozenset[str] = frozenset()
    variables: Mapping[str, str] | None = None
    binds: Mapping[str, Path] | None = None
    writable: Collection[str] = ("/sys/fs/bpf",)

    def command(self, *argv: str) -> list[str]:
        """The command that runs `argv` of the image in it, from any namespace."""
        self.bundle.mkdir(exist_ok=True)
        (self.bundle / "config.json").unlink(missing_ok=True)
        subprocess.run(["runc", "spec", f"--bundle={self.bundle}"], check=True)
        path = self.bundle / "config.json"
        path.write_text(json.dumps(self._specification(json.loads(path.read_text()), argv)))
        state = f"--root={self._state}"
        return ["runc", state, "run", f"--bundle={self.bundle}", self._name]

    def end(self) -> None:
        """Kill the process and remove the container; does nothing if it has exited.

        Killing `runc run` ends neither the container nor its cgroups.
        """
        delete = ["runc", f"--root={self._state}", "delete", "--force", self._name]
        subprocess.run(delete, check=True, capture_output=True)
        # If killed too early, runc has not yet recorded what it created.
        wait_until(self._removed_cgroups, f"no cgroup {self._name}", PATIENCE)

    def cgroups(self) -> list[Path]:
        """The cgroups that runc created for it."""
        return list(cgroups_named(self._name))

    @property
    def _state(self) -> Path:
        return self.bundle / "state"

    @property
    def _name(self) -> str:
        return own_name(self.bundle.name)

    def _removed_cgroups(self) -> bool:
        for cgroup in self.cgroups():
            remove_cgroup_if_empty(cgroup)
        return not self.cgroups()

    def without(self, capability: str) -> "Container":
        """The same with one capability less."""
        return replace(self, capabilities=self.capabilities - {capability})

    def _specification(self, found: dict[str, Any], argv: Sequence[str]) -> dict[str, Any]:
        rights = sorted(f"CAP_{name}" for name in self.capabilities)
        kinds = ("bounding", "effective", "permitted")
        variables = {**_image_variables(), **(self.variables or {})}
        found["process"] |= {
            "terminal": False,
            "args": [*_entry_point(), *argv],
            "env": [f"{name}={value}" for name, value in variables.items()],
            "capabilities": dict.fromkeys(kinds, rights),
            "noNewPrivileges": False,
        }
        found["root"] = {"path": str(self.root), "readonly": True}
        found["mounts"] += self._mounts()
        # The network is the node's.
        spaces = found["linux"]["namespaces"]
        found["linux"]["namespaces"] = [each for each in spaces if each["type"] != "network"]
        return found

    def _mounts(self) -> Iterator[dict[str, Any]]:
        for inside in ("/tmp", "/run/ebpflb", "/var/cache"):  # noqa: S108  a mount
            yield {"destination": inside, "type": "tmpfs", "source": "tmpfs"}
        for inside, outside in (self.binds or {}).items():
            options = ["rbind", "rslave", *(() if inside in self.writable else ("ro",))]
            yield {
                "destination": inside,
                "type": "bind",
                "source": str(outside),
                "options": options,
            }


@contextmanager
def image_root() -> Iterator[Path]:
    """The files of the image, mounted."""
    image_archive()
    with working_container() as (_, root):
        yield root


def binds_on(node: LabNode, settings: Path) -> dict[str, Path]:
    """The chart's mounts of a node; the lab's manifests in place of an API server."""
    return {
        "/etc/ebpflb/config.yaml": settings,
        "/sys/fs/bpf": node.bpffs.parent,
        "/run/ebpflb/cgroup": node.cgroup,
        "/run/netns": Path("/run/netns"),
        "/mnt/manifests": node.manifests,
    }


def variables_on(node: LabNode) -> dict[str, str]:
    """The chart's variables, and those that differ between the lab and a cluster."""
    return {
        "EBPFLB_NODE_NAME": node.name,
        "EBPFLB_MANIFESTS": "/mnt/manifests",
        "EBPFLB_BPFFS_ROOT": f"/sys/fs/bpf/{node.bpffs.name}",
    }


def own_capabilities(wanted: Iterable[str]) -> frozenset[str]:
    """Those of `wanted` that this machine can grant: runc refuses to add others."""
    (line,) = re.findall(r"CapBnd:\t([0-9a-f]+)", Path("/proc/self/status").read_text())
    return frozenset(name for name in wanted if int(line, 16) >> _CAPABILITIES[name] & 1)


def _image_variables() -> dict[str, str]:
    return dict(each.split("=", 1) for each in _configuration()["Env"])


def _entry_point() -> list[str]:
    return list(_configuration()["Entrypoint"])


def _configuration() -> dict[str, Any]:
    found = json.loads(buildah("inspect", "--type=image", image_name()))
    return dict(found["OCIv1"]["config"])
