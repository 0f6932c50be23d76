# SPDX-License-Identifier: Apache-2.0
"""Forbidden operations, tried in a thread of the agent. Run it with the name of a role, or "none".

Prints the error number of each attempt, 0 for success, as JSON. Every attempt is harmless: if
allowed, most of them fail for another reason.
"""

import ctypes
import json
import os
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from fcntl import ioctl
from pathlib import Path

from ebpflb.agent.process import raise_memory_limit
from ebpflb.agent.rights import Rights, agent_role, client_role, source_role
from ebpflb.dataplane.kernel import libbpf, libc
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.web.answers import Answer, Request, in_thread
from ebpflb.web.server import Clients, HttpServer

_C = ctypes.CDLL(None, use_errno=True)
_NOWHERE = b"/no/such/place"
_ATTACH, _NEWUTS, _MS_BIND, _SIOCGIFFLAGS = 16, 0x04000000, 4096, 0x8913
# Numbers that are the same on all architectures.
_IO_URING_SETUP, _OPEN_TREE, _FSOPEN = 425, 428, 430


def _call(name: str, *arguments: object) -> Callable[[], int]:
    def attempt() -> int:
        ctypes.set_errno(0)
        getattr(_C, name)(*arguments)
        return ctypes.get_errno()

    return attempt


def _python(act: Callable[[], object]) -> Callable[[], int]:
    def attempt() -> int:
        try:
            act()
        except OSError as error:
            return error.errno or -1
        return 0

    return attempt


def _execute() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)


def _enter_network() -> None:
    with libc.owned(os.open("/proc/thread-self/ns/net", os.O_RDONLY)) as own:
        libc.enter_network_namespace(own)


def _ask_for_flags() -> None:
    with socket.socket() as any_socket:
        ioctl(any_socket, _SIOCGIFFLAGS, b"lo".ljust(40, b"\0"))


def _write(folder: str) -> Callable[[], int]:
    def write() -> None:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")

    return _python(write)


# Forbidden to all threads of the agent.
OF_NOBODY: Mapping[str, Callable[[], int]] = {
    "trace a process": _call("ptrace", _ATTACH, 0, 0, 0),
    "read the memory of a process": _call("process_vm_readv", os.getpid(), None, 0, None, 0, 0),
    "unload a module": _call("delete_module", b"no-such-module", os.O_NONBLOCK),
    "reboot": _call("reboot", 1),
    "make namespaces": _call("unshare", _NEWUTS),
    "enter other namespaces": _call("setns", -1, _NEWUTS),
    "mount": _call("mount", b"none", _NOWHERE, b"tmpfs", ctypes.c_ulong(0), None),
    "mount again": _call("mount", _NOWHERE, _NOWHERE, None, ctypes.c_ulong(_MS_BIND), None),
    "unmount": _call("umount2", _NOWHERE, 0),
    "open a tree of mounts": _call("syscall", _OPEN_TREE, -1, _NOWHERE, 0),
    "make a file system": _call("syscall", _FSOPEN, b"no-such-fs", 0),
    "change the root": _call("chroot", _NOWHERE),
    "use swap": _call("swapon", _NOWHERE, 0),
    "set the clock": _call("clock_settime", 9999, bytes(16)),
    "name the machine": _call("sethostname", None, ctypes.c_size_t(1)),
    "use io_uring": _call("syscall", _IO_URING_SETUP, 0, None),
    "open by handle": _call("open_by_handle_at", -1, None, 0),
    "become somebody else": _call("setgroups", ctypes.c_size_t(0), None),
}

# Forbidden to threads that parse untrusted input, too.
OF_THE_LOOP: Mapping[str, Callable[[], int]] = {
    "make a map": _python(lambda: os.close(libbpf.map_create(MapType.ARRAY, "lb_probe", 4, 4, 1))),
    "mount bpffs": _call("mount", b"none", _NOWHERE, b"bpf", ctypes.c_ulong(14), None),
    "enter a network": _python(_enter_network),
    "execute a program": _python(_execute),
    "signal": _python(lambda: os.kill(os.getpid(), 0)),
    "ask netlink": _python(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
    "ask for a device": _python(_ask_for_flags),
    "write a file": _write("/run"),
}

# Forbidden to the thread that serves clients, too.
OF_CLIENTS: Mapping[str, Callable[[], int]] = {
    "open a socket": _python(lambda: socket.socket().close()),
    "write a temporary file": _write(tempfile.gettempdir()),
    "read a file of the machine": _python(lambda: Path("/etc/passwd").read_bytes()),
    "look around": _python(lambda: os.listdir("/sys")),
}

ALL = {**OF_NOBODY, **OF_THE_LOOP, **OF_CLIENTS}


def _attempt_all() -> dict[str, int]:
    return {name: attempt() for name, attempt in ALL.items()}


def _in_server(rights: Rights) -> dict[str, int]:
    """Runs in a server's thread; what it created elsewhere arrives as "a slow answer"."""

    async def respond(_: Request) -> Answer:
        slow = await in_thread(OF_THE_LOOP["make a map"])
        return Answer(json.dumps(_attempt_all() | {SLOW_ANSWER: slow}).encode())

    server = HttpServer(lambda: rights.give_up(client_role()))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.listen(listening, respond, Clients())
        host, port = listening.getsockname()
        with urllib.request.urlopen(f"http://{host}:{port}/") as answer:
            found: dict[str, int] = json.load(answer)
        server.stop()
    return found


SLOW_ANSWER = "a slow answer"


def _main(role: str) -> dict[str, int]:
    raise_memory_limit()
    rights = Rights()
    if role != "none":
        rights.give_up(agent_role())
    match role:
        case "sources":
            return rights.started(source_role(with_plugins=False), _attempt_all)
        case "clients":
            return _in_server(rights)
    return _attempt_all()


if __name__ == "__main__":
    print(json.dumps(_main(*sys.argv[1:])))
