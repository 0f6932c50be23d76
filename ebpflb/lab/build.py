# SPDX-License-Identifier: Apache-2.0
"""Builds what a lab consists of, and removes it.

Whatever is about to be made is written into the lab's state first, so removing works wherever
building or an earlier removal stopped.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ebpflb.config.options import cgroup_root
from ebpflb.dataplane.kernel import libc
from ebpflb.errors import ConfigError, EbpflbError, ProbeError
from ebpflb.lab import echo, namespaces, network, processes, state
from ebpflb.lab.layout import LabConfig, Layout, SeatKind
from ebpflb.lab.member import LabNode, Member
from ebpflb.lab.processes import Ownership
from ebpflb.lab.state import LabState

BPFFS_SOURCE = "ebpflb-lab"

_FAILED_LINE = re.compile(r"Command failed -:(\d+)")


def reserve(config: LabConfig, held: contextlib.ExitStack) -> LabState:
    """Take a name and a number, and write down what will be made.

    `held` gets the lock that keeps others from building or taking down the same lab. ConfigError
    when a lab, a namespace or a cgroup of that name exists.
    """
    with state.locked_root():
        directory = state.directory_of(config.name)
        _make_directory(directory, config.name)
        held.enter_context(state.locked(config.name))
        layout = Layout(config, state.free_index())
        made = LabState(
            config=config,
            index=layout.index,
            cgroup=str(Path(cgroup_root()) / processes.TOP / config.name),
            bpffs=str(directory / "bpf"),
            namespaces={layout.namespace(seat): None for seat in layout.seats()},
        )
        try:
            _refuse_existing(made)
        except ConfigError:
            directory.rmdir()
            raise
        made.save()
        Path(made.cgroup).mkdir(parents=True)
    return made


def make_namespaces(made: LabState, layout: Layout) -> None:
    """All namespaces, and their sysctls before any device is in them."""
    for seat in layout.seats():
        name = layout.namespace(seat)
        made.namespaces[name] = namespaces.create(name)
        with namespaces.entered(namespaces.path_of(name)):
            namespaces.write_sysctls(network.sysctls(seat, layout.config))
    made.save()


def make_network(layout: Layout) -> None:
    """Devices, addresses and routes. ProbeError names the command that was refused."""
    ip, bridge = _tool("ip"), _tool("bridge")
    for seat in layout.seats():
        name = layout.namespace(seat)
        with namespaces.entered(namespaces.path_of(name)):
            _batch(ip, network.commands(layout, seat), name)
            _batch(bridge, network.forwarding_entries(layout, seat), name)


def make_places(made: LabState, members: Sequence[Member]) -> None:
    """cgroups, the file system for pins, and the directories of manifests and logs."""
    for member in members:
        member.cgroup.mkdir(parents=True, exist_ok=True)
    bpffs = Path(made.bpffs)
    bpffs.mkdir()
    libc.mount_bpffs(bpffs, BPFFS_SOURCE)
    logs_of(made).mkdir()
    for member in members:
        if isinstance(member, LabNode):
            member.bpffs.mkdir(mode=0o700)
            member.manifests.mkdir(parents=True)


def start_pods(made: LabState, members: Sequence[Member]) -> None:
    """The echo servers, as children of nobody, so that they outlive this process."""
    for pod in members:
        if pod.kind is SeatKind.POD:
            made.processes[pod.name] = _start_pod(pod, made.config.port, logs_of(made))
    made.save()


def logs_of(made: LabState) -> Path:
    return made.directory / "logs"


def _make_directory(directory: Path, name: str) -> None:
    if (directory / state.FILE).exists():
        raise ConfigError(
            f"lab {name!r} exists: choose another name, or first: ebpflb lab down --name {name}"
        )
    state.drop_unmade(name)
    directory.mkdir()


def _refuse_existing(made: LabState) -> None:
    taken = [namespaces.path_of(name) for name in made.namespaces] + [Path(made.cgroup)]
    for path in taken:
        if path.exists():
            raise ConfigError(
                f"{path} exists and belongs to no lab: remove it or choose another name"
            )


def _start_pod(pod: Member, port: int, logs: Path) -> processes.StartedProcess:
    command = [sys.executable, "-I", "-S", str(Path(echo.__file__))]
    identity = ["--pod", pod.name, "--node", pod.node, "--port", str(port)]
    with (logs / f"{pod.name}.log").open("wb") as log:
        launcher = subprocess.Popen(
            [*command, *identity],
            cwd="/",
            env=os.environ | pod.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_left_alone(namespaces.entry_in_child(pod.namespace, pod.cgroup)),
        )
        launcher.wait()
    for pid in processes.in_cgroup(pod.cgroup):
        if found := processes.identity(pid):
            return found
    raise ProbeError(f"{pod.name} ended at once: see {logs / pod.name}.log")


def _left_alone(entry: Callable[[], None]) -> Callable[[], None]:
    """Let the launched process be a grandchild that nobody has to wait for."""

    def leave() -> None:
        if os.fork():
            os._exit(0)
        os.setsid()
        entry()

    return leave


def _tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if not found:
        raise ProbeError(f"{name} is missing: install iproute2")
    return found


def _batch(tool: str, lines: Sequence[str], namespace: str) -> None:
    """Run the lines in the calling thread's namespace."""
    if not lines:
        return
    done = subprocess.run(
        [tool, "-batch", "-"],
        input="\n".join(lines) + "\n",
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        failed = _FAILED_LINE.search(done.stderr)
        line = lines[int(failed[1]) - 1] if failed else "-batch"
        reason = done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no reason given"
        raise ProbeError(f"{namespace}: {Path(tool).name} {line}: {reason}")


def take_down(name: str) -> bool:
    """Remove a lab; False when there is none. EbpflbError when something of it cannot go."""
    with state.locked(name):
        if (state.directory_of(name) / state.FILE).exists():
            remove(state.load(name))
            return True
    with state.locked_root():
        state.drop_unmade(name)
    return False


def remove(made: LabState) -> None:
    """Remove all that can be removed; the state stays, for another try, if something cannot.

    Devices go with their namespaces, pins with their file system.
    """
    cgroup = Path(made.cgroup)
    _refuse_inside(made, cgroup)
    recorded = frozenset(made.processes.values())
    left = processes.end(Ownership(made.config.name, cgroup, recorded))
    for name, inode in made.namespaces.items():
        namespaces.delete(name, inode)
    namespaces.detach(Path(made.bpffs))
    if left:
        raise EbpflbError(
            f"lab {made.config.name!r}: {', '.join(left)} in {cgroup} did not come from the lab "
            "or does not end: move or end it, then take the lab down again"
        )
    processes.remove_cgroup(cgroup)
    made.discard()


def _refuse_inside(made: LabState, cgroup: Path) -> None:
    own = Path("/proc/self/cgroup").read_text().splitlines()
    inside = f"/{processes.TOP}/{made.config.name}"
    if any(line.startswith("0::") and f"{inside}/" in f"{line}/" for line in own):
        raise ConfigError(f"this process runs inside lab {made.config.name!r} ({cgroup}): leave it")
