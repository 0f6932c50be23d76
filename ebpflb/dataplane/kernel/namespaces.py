# SPDX-License-Identifier: Apache-2.0
"""Finds the network namespace behind a pod's veth, and its cookie.

Socket hooks identify the namespace of a process by its cookie. Cookies are never reused and can
only be read from inside, so a separate thread enters each namespace once.

A veth is matched with a namespace by our number for the peer's namespace (IFLA_LINK_NETNSID,
RTM_GETNSID). The peer's ifindex is not enough: if several nodes share a machine, each has a device
2. Namespaces are looked up in /run/netns (containerd, CRI-O) and /run/docker/netns, and only if one
is still missing, among all processes: in a container the agent needs the host's directory, or the
host's PID namespace.
"""

import contextlib
import errno
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.nat_redirects import redirects_own_traffic
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink, read_addresses
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, is_link_local, is_loopback

NAMESPACE_DIRECTORIES = (Path("/run/netns"), Path("/run/docker/netns"))

_PROC = Path("/proc")
SO_NETNS_COOKIE = 71
_COOKIE = struct.Struct("=Q")
# A path that is not a mount, or of a process that has ended.
_NO_NAMESPACE = (errno.EINVAL, errno.ENOENT, errno.ESRCH)
_YOUNG_SECONDS, _LOOK_SECONDS = 300.0, 60.0
_NET_LINK = re.compile(r"net:\[([0-9]+)\]")


_Answer = TypeVar("_Answer")


class Veth(NamedTuple):
    """One end of a veth, and our number for the namespace of the peer.

    Equal values mean the same device, with the same namespace behind it.
    """

    ifindex: int
    name: str
    netnsid: int


class _Candidate(NamedTuple):
    """A path to a namespace, and the namespace's inode number."""

    path: Path
    inode: int


class _Known(NamedTuple):
    """A namespace that was found. Its inode number is not reused as long as the veth exists."""

    candidate: _Candidate
    cookie: int
    found: float


class _Inside(NamedTuple):
    """What was found inside a namespace, and when, in seconds."""

    seen: float
    addresses: frozenset[Address]
    redirects: bool


class Namespaces:
    """Finds pods' namespaces from the current one, and remembers them while their veth exists."""

    def __init__(self, directories: Iterable[Path] = NAMESPACE_DIRECTORIES) -> None:
        self._directories = tuple(directories)
        self._known: dict[Veth, _Known] = {}
        # Cookie -> what was found inside.
        self._insides: dict[int, _Inside] = {}
        self.tc_only: frozenset[int] = frozenset()

    def cookies(self, veths: Iterable[Veth]) -> dict[int, int]:
        """Cookie of the namespace behind each veth, by ifindex; those not found are missing.

        ProbeError if the kernel has no such cookies or netlink fails.
        """
        present = set(veths)
        self._known = {veth: known for veth, known in self._known.items() if veth in present}
        self._forget_others({known.cookie for known in self._known.values()})
        missing = present - self._known.keys()
        if missing:
            try:
                self._find(missing)
            except OSError as error:
                raise ProbeError(f"cannot look into network namespaces: {error}") from error
        return {veth.ifindex: known.cookie for veth, known in self._known.items()}

    def look_inside(self, opted_out: Set[Address]) -> bool:
        """Find the namespaces whose sockets must be left alone; returns whether `tc_only` changed.

        These are the ones with one of these addresses, and those that redirect their own traffic.
        Both are set up while a pod starts: a namespace is checked at every call while it is young,
        and once a minute later.
        """
        now = time.monotonic()
        due = {
            known.candidate: known.cookie
            for known in self._known.values()
            if self._is_due(known, now)
        }
        ask = partial(_look_around, now)
        # Without a file descriptor to enter them, the next call does.
        with contextlib.suppress(OSError):
            self._insides |= {due[each]: inside for each, inside in _enter(due, ask).items()}
        before = self.tc_only
        self.tc_only = frozenset(
            cookie
            for cookie, inside in self._insides.items()
            if inside.redirects or not inside.addresses.isdisjoint(opted_out)
        )
        return self.tc_only != before

    def addresses_in(self, cookie: int) -> list[Address]:
        """Externally reachable addresses in a namespace; empty if unknown. Thread-safe."""
        inside = self._insides.get(cookie)
        found = inside.addresses if inside else ()
        return [each for each in found if not is_loopback(each) and not is_link_local(each)]

    def _is_due(self, known: _Known, now: float) -> bool:
        last = self._insides.get(known.cookie)
        is_young = now - known.found < _YOUNG_SECONDS
        return last is None or is_young or now - last.seen >= _LOOK_SECONDS

    def _forget_others(self, cookies: Set[int]) -> None:
        self._insides = {each: seen for each, seen in self._insides.items() if each in cookies}
        self.tc_only &= cookies

    def _find(self, missing: set[Veth]) -> None:
        seen = {own_inode()} | {known.candidate.inode for known in self._known.values()}
        netnsids = {veth.ifindex: veth.netnsid for veth in missing}
        behind = _behind(netnsids, self._directories, seen)
        entered = _enter(set(behind.values()), own_cookie)
        for veth in missing:
            candidate = behind.get(veth.ifindex)
            if candidate and candidate in entered:
                self._known[veth] = _Known(candidate, entered[candidate], time.monotonic())


def peers(netnsids: Mapping[int, int]) -> dict[int, int]:
    """Inode number of the namespace behind each veth, by ifindex; those not found are missing.

    `netnsids`: our number for that namespace, by the veth's ifindex. OSError if netlink fails.
    """
    behind = _behind(netnsids, NAMESPACE_DIRECTORIES, {own_inode()})
    return {ifindex: candidate.inode for ifindex, candidate in behind.items()}


def visit_others(visit: Callable[[], bool]) -> None:
    """Call `visit` inside every other namespace, each once, until it returns True. OSError.

    It runs in a thread of its own, which ends afterwards.
    """
    with ThreadPoolExecutor(1) as executor:
        executor.submit(_visit, visit).result()


def _visit(visit: Callable[[], bool]) -> None:
    seen = {own_inode()}
    for candidates in (_named(NAMESPACE_DIRECTORIES), _of_processes()):
        for candidate in candidates:
            if candidate.inode not in seen and _has_entered(candidate):
                seen.add(candidate.inode)
                if visit():
                    return


def _has_entered(candidate: _Candidate) -> bool:
    """Enter it. False if it is gone or not a namespace."""
    try:
        with _opened(candidate.path) as fd:
            libc.enter_network_namespace(fd)
    except OSError as error:
        if error.errno in _NO_NAMESPACE:
            return False
        raise
    return own_inode() == candidate.inode


def own_cookie() -> int:
    """The cookie of the calling thread's network namespace.

    ProbeError on kernels before 5.14 (commit e8b9eab99232 "net: retrieve netns cookie via
    getsocketopt").
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            cookie = probe.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, _COOKIE.size)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        raise ProbeError(
            "the kernel has no cookies of network namespaces (SO_NETNS_COOKIE, Linux 5.14): the "
            "socket hooks treat every process as one of a pod"
        ) from error
    return int(_COOKIE.unpack(cookie)[0])


def own_inode() -> int:
    """The inode number of the calling thread's network namespace."""
    return os.stat("/proc/thread-self/ns/net").st_ino


def _behind(
    netnsids: Mapping[int, int], directories: Iterable[Path], seen: set[int]
) -> dict[int, _Candidate]:
    """The namespace behind each veth, by ifindex; skips those whose inodes are in `seen`."""
    found: dict[int, _Candidate] = {}
    with Rtnetlink() as netlink:
        for candidates in (_named(directories), _of_processes()):
            by_number = _numbers(netlink, candidates, seen)
            found |= {
                ifindex: by_number[number]
                for ifindex, number in netnsids.items()
                if number in by_number
            }
            if netnsids.keys() <= found.keys():
                break
    return found


def _named(directories: Iterable[Path]) -> Iterator[_Candidate]:
    for directory in directories:
        if directory.is_dir():
            for path in directory.iterdir():
                with contextlib.suppress(OSError):
                    yield _Candidate(path, path.stat().st_ino)


def _of_processes() -> Iterator[_Candidate]:
    for name in os.listdir(_PROC):
        if name.isdigit():
            path = _PROC / name / "ns/net"
            with contextlib.suppress(OSError):
                if match := _NET_LINK.fullmatch(os.readlink(path)):
                    yield _Candidate(path, int(match[1]))


def _numbers(
    netlink: Rtnetlink, candidates: Iterable[_Candidate], seen: set[int]
) -> dict[int, _Candidate]:
    """Our number for each namespace that is not in `seen` yet and has one."""
    numbers = {}
    for candidate in candidates:
        if candidate.inode not in seen:
            seen.add(candidate.inode)
            with contextlib.suppress(OSError), _opened(candidate.path) as fd:
                numbers[_number(netlink, fd)] = candidate
    return numbers


def _number(netlink: Rtnetlink, namespace: int) -> int:
    with netlink.iproute() as iproute:
        return int(iproute.get_netnsid(fd=namespace)["nsid"])


def _enter(
    candidates: Collection[_Candidate], ask: Callable[[], _Answer]
) -> Mapping[_Candidate, _Answer]:
    """The result of `ask` inside each namespace, in a separate thread that ends afterwards."""
    if not candidates:
        return {}
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(_ask_inside, candidates, ask).result()


def _ask_inside(
    candidates: Collection[_Candidate], ask: Callable[[], _Answer]
) -> dict[_Candidate, _Answer]:
    answers = {}
    for candidate in candidates:
        with contextlib.suppress(FileNotFoundError), _opened(candidate.path) as fd:
            libc.enter_network_namespace(fd)
            if own_inode() == candidate.inode:
                answers[candidate] = ask()
    return answers


def _look_around(now: float) -> _Inside:
    """Whatever the kernel does not report counts as absent; a later call may find it."""
    addresses, redirects = frozenset[Address](), False
    with contextlib.suppress(OSError):
        with Rtnetlink() as netlink:
            addresses = frozenset(found.address for found in read_addresses(netlink))
        redirects = redirects_own_traffic()
    return _Inside(now, addresses, redirects)


def _opened(path: Path) -> contextlib.AbstractContextManager[int]:
    return owned(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
