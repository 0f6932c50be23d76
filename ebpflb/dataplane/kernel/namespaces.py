# SPDX-License-Identifier: Apache-2.0
"""Which network namespace is behind a pod's veth, told by its cookie.

A socket hook knows who asks by the cookie of the network namespace. Cookies are never used twice
and can only be read from inside, so a thread of its own enters each namespace once.

A veth is matched with a namespace by the number that our namespace has for the peer's
(IFLA_LINK_NETNSID, RTM_GETNSID). The peer's ifindex would not do: where several nodes share a
machine, each has a device 2. Namespaces are looked for in /run/netns (containerd, CRI-O) and
/run/docker/netns, and only if one is still missing, among all processes: in a container the agent
needs the host's directory, or the host's PID namespace.
"""

import contextlib
import errno
import os
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.kernel.descriptor import owned
from ebpflb.dataplane.kernel.netlink import Rtm, Rtnetlink, attribute, attributes
from ebpflb.errors import ProbeError

NAMESPACE_DIRECTORIES = (Path("/run/netns"), Path("/run/docker/netns"))

_PROC = Path("/proc")
SO_NETNS_COOKIE = 71
_COOKIE = struct.Struct("=Q")
_NETNSA_NSID, _NETNSA_FD = 1, 3
_RTGENMSG = bytes(4)
# Left behind without a mount, or of a process that has ended.
_NO_NAMESPACE = (errno.EINVAL, errno.ENOENT, errno.ESRCH)
_NET_LINK = re.compile(r"net:\[([0-9]+)\]")


class _Place(NamedTuple):
    """A path that leads into a namespace, and the namespace's inode number."""

    path: Path
    inode: int


class _Veth(NamedTuple):
    """What says that a device is still the same one, with the same namespace behind it."""

    ifindex: int
    name: str
    netnsid: int | None


class _Known(NamedTuple):
    """A namespace that was found. Its inode number is its own as long as the veth is there."""

    inode: int
    cookie: int


class Namespaces:
    """Finds the namespaces of pods from the current one. Remembers them while their veth exists."""

    def __init__(self, directories: Iterable[Path] = NAMESPACE_DIRECTORIES) -> None:
        self._directories = tuple(directories)
        self._known: dict[_Veth, _Known] = {}

    def cookies(self, devices: Iterable[Device]) -> dict[int, int]:
        """Cookie of the namespace behind each veth, by ifindex; those not found are missing.

        ProbeError when the kernel does not tell cookies or netlink fails.
        """
        veths = {
            _Veth(device.ifindex, device.name, device.netnsid)
            for device in devices
            if device.netnsid is not None
        }
        self._known = {veth: known for veth, known in self._known.items() if veth in veths}
        missing = veths - self._known.keys()
        if missing:
            try:
                self._find(missing)
            except OSError as error:
                raise ProbeError(f"cannot look into network namespaces: {error}") from error
        return {veth.ifindex: known.cookie for veth, known in self._known.items()}

    def _find(self, missing: set[_Veth]) -> None:
        seen = {own_inode()} | {known.inode for known in self._known.values()}
        with Rtnetlink() as netlink:
            for places in (_named(self._directories), _of_processes()):
                found = _numbers(netlink, places, seen)
                behind = {veth: found[veth.netnsid] for veth in missing if veth.netnsid in found}
                entered = _enter(set(behind.values()))
                for veth, place in behind.items():
                    if place in entered:
                        self._known[veth] = _Known(place.inode, entered[place])
                missing = missing - self._known.keys()
                if not missing:
                    return


def peers(devices: Iterable[Device]) -> dict[int, int]:
    """Inode number of the namespace behind each veth, by ifindex; those not found are missing.

    OSError when netlink fails.
    """
    numbers = {device.ifindex: device.netnsid for device in devices if device.netnsid is not None}
    seen = {own_inode()}
    found: dict[int, int] = {}
    with Rtnetlink() as netlink:
        for places in (_named(NAMESPACE_DIRECTORIES), _of_processes()):
            known = _numbers(netlink, places, seen)
            found |= {
                ifindex: known[number].inode
                for ifindex, number in numbers.items()
                if number in known
            }
            if numbers.keys() <= found.keys():
                break
    return found


def visit_others(
    visit: Callable[[], bool], directories: Iterable[Path] = NAMESPACE_DIRECTORIES
) -> None:
    """Call `visit` inside every other namespace, each once, until it returns True. OSError.

    It runs in a thread that does nothing else ever after.
    """
    with ThreadPoolExecutor(1) as executor:
        executor.submit(_visit, visit, tuple(directories)).result()


def _visit(visit: Callable[[], bool], directories: Iterable[Path]) -> None:
    seen = {own_inode()}
    for places in (_named(directories), _of_processes()):
        for place in places:
            if place.inode not in seen and _can_enter(place):
                seen.add(place.inode)
                if visit():
                    return


def _can_enter(place: _Place) -> bool:
    """Go there. False when it is gone, or no namespace."""
    try:
        with _opened(place.path) as fd:
            libc.enter_network_namespace(fd)
    except OSError as error:
        if error.errno in _NO_NAMESPACE:
            return False
        raise
    return own_inode() == place.inode


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
            "the kernel does not tell the cookie of a network namespace (SO_NETNS_COOKIE, Linux "
            "5.14): the socket hooks take every process for a pod"
        ) from error
    return int(_COOKIE.unpack(cookie)[0])


def own_inode() -> int:
    """The inode number of the calling thread's network namespace."""
    return os.stat("/proc/thread-self/ns/net").st_ino


def _named(directories: Iterable[Path]) -> Iterator[_Place]:
    for directory in directories:
        if directory.is_dir():
            for path in directory.iterdir():
                with contextlib.suppress(OSError):
                    yield _Place(path, path.stat().st_ino)


def _of_processes() -> Iterator[_Place]:
    for name in os.listdir(_PROC):
        if name.isdigit():
            path = _PROC / name / "ns/net"
            with contextlib.suppress(OSError):
                if match := _NET_LINK.fullmatch(os.readlink(path)):
                    yield _Place(path, int(match[1]))


def _numbers(netlink: Rtnetlink, places: Iterable[_Place], seen: set[int]) -> dict[int, _Place]:
    """Our number for each namespace that is not in `seen` yet and has one."""
    numbers = {}
    for place in places:
        if place.inode not in seen:
            seen.add(place.inode)
            with contextlib.suppress(OSError), _opened(place.path) as fd:
                numbers[_number(netlink, fd)] = place
    return numbers


def _number(netlink: Rtnetlink, namespace: int) -> int:
    request = _RTGENMSG + attribute(_NETNSA_FD, struct.pack("=I", namespace))
    (answer,) = netlink.request(Rtm.GETNSID, request)
    (number,) = struct.unpack("=i", attributes(answer, len(_RTGENMSG))[_NETNSA_NSID])
    return int(number)


def _enter(places: set[_Place]) -> Mapping[_Place, int]:
    """The cookie of each namespace. The thread that goes there does nothing else ever after."""
    if not places:
        return {}
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(_cookies_inside, places).result()


def _cookies_inside(places: set[_Place]) -> dict[_Place, int]:
    cookies = {}
    for place in places:
        with contextlib.suppress(FileNotFoundError), _opened(place.path) as fd:
            libc.enter_network_namespace(fd)
            if own_inode() == place.inode:
                cookies[place] = own_cookie()
    return cookies


def _opened(path: Path) -> contextlib.AbstractContextManager[int]:
    return owned(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
