# SPDX-License-Identifier: Apache-2.0
"""The ctypes binding of libbpf.so.1: bpf(2) as functions over file descriptors.

Returned descriptors belong to the caller (`os.close`) and are close-on-exec. Every function retries
on EINTR and raises OSError with the kernel's errno and its own name, and with the path if there is
one. ProbeError if the library is missing.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from errno import EINTR, EINVAL, ENOENT, ENOSPC
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.uapi import (
    AttachFlag,
    AttachType,
    BpfObject,
    Exist,
    LinkInfo,
    MapInfo,
    MapType,
    ProgFlag,
    ProgInfo,
    ProgType,
    XdpFlag,
)
from ebpflb.errors import ProbeError

_QUERY_EFFECTIVE = 1 << 0
_QUERY_ROOM = 64

_Info = TypeVar("_Info", MapInfo, ProgInfo, LinkInfo)


class _CreateLink(ctypes.Structure):
    _fields_ = [("sz", ctypes.c_size_t), ("flags", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class _CreateMap(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("btf_fd", ctypes.c_uint32),
        ("btf_key_type_id", ctypes.c_uint32),
        ("btf_value_type_id", ctypes.c_uint32),
        ("btf_vmlinux_value_type_id", ctypes.c_uint32),
        ("inner_map_fd", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
    ]


class _LoadProg(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_uint32),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
    ]


class NotPinnedError(OSError):
    """Another kind of object is pinned at a path, or a directory is there."""


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise ProbeError("libbpf.so.1 not found: install the package libbpf1 or libbpf") from error


@cache
def _function(name: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(_library(), name)
    return function


def call(name: str, *args: Any, path: Path | None = None) -> int:
    """Call a function of libbpf by name."""
    while (result := _function(name)(*args)) == -EINTR:
        pass
    if result < 0:
        text = f"{name}: {os.strerror(-result)}"
        raise OSError(-result, text, str(path)) if path else OSError(-result, text)
    return result


def _options(kind: type[ctypes.Structure], **fields: Any) -> Any:
    return ctypes.byref(kind(sz=ctypes.sizeof(kind), **fields))


@cache
def possible_cpus() -> int:
    """How many values a per-CPU map holds for one key."""
    return call("libbpf_num_possible_cpus")


def obj_get(path: Path, kind: BpfObject | None = None) -> int:
    """A descriptor of the map, program or link pinned at `path`.

    NotPinnedError if something else than `kind` is there.
    """
    try:
        fd = call("bpf_obj_get", os.fsencode(path), path=path)
    except PermissionError as error:
        # A directory.
        if kind and path.is_dir():
            raise NotPinnedError(error.errno, f"is no {kind}", str(path)) from error
        raise
    if kind and not os.readlink(f"/proc/self/fd/{fd}").endswith(kind):
        os.close(fd)
        raise NotPinnedError(EINVAL, f"is no {kind}", str(path))
    return fd


def obj_pin(fd: int, path: Path) -> None:
    """Pin the object at `path` on a bpffs; EEXIST if something is there."""
    call("bpf_obj_pin", fd, os.fsencode(path), path=path)


def map_create(
    kind: MapType, name: str, key_size: int, value_size: int, max_entries: int, flags: int = 0
) -> int:
    """Create a map; sizes in bytes, name of at most 15 characters."""
    options = _options(_CreateMap, map_flags=flags)
    args = (kind, name.encode(), key_size, value_size, max_entries, options)
    return call("bpf_map_create", *args)


def map_update(fd: int, key: bytes, value: bytes, exist: Exist = Exist.ANY) -> None:
    """Set one element; for a per-CPU map, `value` has one value per CPU, each rounded up to 8."""
    call("bpf_map_update_elem", fd, key, value, ctypes.c_uint64(exist))


def map_lookup(fd: int, key: bytes, size: int) -> bytes | None:
    """The value of `key`, of `size` bytes in all, or None."""
    value = ctypes.create_string_buffer(size)
    try:
        call("bpf_map_lookup_elem", fd, key, value)
    except FileNotFoundError:
        return None
    return value.raw


def map_delete(fd: int, key: bytes) -> bool:
    """Delete one element; False if it was not there."""
    try:
        call("bpf_map_delete_elem", fd, key)
    except FileNotFoundError:
        return False
    return True


def map_next_key(fd: int, key: bytes | None, key_size: int) -> bytes | None:
    """The key after `key` (None = before the first), or None after the last."""
    following = ctypes.create_string_buffer(key_size)
    try:
        call("bpf_map_get_next_key", fd, key, following)
    except FileNotFoundError:
        return None
    return following.raw


def map_update_batch(fd: int, keys: bytes, values: bytes, count: int) -> int:
    """Set `count` elements in order; returns how many were set. After an error some may be set."""
    return _batch("bpf_map_update_batch", fd, keys, values, count=count)[0]


def map_delete_batch(fd: int, keys: bytes, count: int) -> int:
    """Delete up to `count` elements in order; stops at a missing one. Returns how many."""
    return _batch("bpf_map_delete_batch", fd, keys, count=count)[0]


def _batch(name: str, *args: Any, count: int) -> tuple[int, bool]:
    """Returns how many elements were done, and whether it ended with ENOENT."""
    result = -EINTR
    while result == -EINTR:
        done = ctypes.c_uint32(count)
        result = _function(name)(*args, ctypes.byref(done), None)
    if result < 0 and result != -ENOENT:
        raise OSError(-result, f"{name}: {os.strerror(-result)}")
    return done.value, result == -ENOENT


class Batch(NamedTuple):
    """Concatenated elements of a map; `cursor` goes into the next call, None after the last."""

    keys: bytes
    values: bytes
    size: int
    cursor: bytes | None


def map_lookup_batch(
    fd: int, cursor: bytes | None, count: int, key_size: int, value_size: int
) -> Batch:
    """The next elements after `cursor` (None = from the start), at most `count`.

    `value_size` covers all CPUs of a per-CPU map. A hash returns whole buckets: ENOSPC if the
    first one does not fit into `count`. An array's cursor is the key of the last element read.
    """
    keys = ctypes.create_string_buffer(count * key_size)
    values = ctypes.create_string_buffer(count * value_size)
    following = ctypes.create_string_buffer(max(key_size, 4))
    args = (fd, cursor, following, keys, values)
    size, last = _batch("bpf_map_lookup_batch", *args, count=count)
    arrays = (ctypes.string_at(keys, size * key_size), ctypes.string_at(values, size * value_size))
    return Batch(*arrays, size, None if last else following.raw)


def map_info(fd: int) -> MapInfo:
    """Type, id, sizes and name of a map."""
    return _info(fd, MapInfo())


def prog_info(fd: int) -> ProgInfo:
    """Id, tag, name and verifier effort of a program."""
    return _info(fd, ProgInfo())


def link_info(fd: int) -> LinkInfo:
    """Id, program and hook of a link."""
    return _info(fd, LinkInfo())


def _info(fd: int, empty: _Info) -> _Info:
    length = ctypes.c_uint32(ctypes.sizeof(empty))
    call("bpf_obj_get_info_by_fd", fd, ctypes.byref(empty), ctypes.byref(length))
    return empty


def prog_by_id(identity: int) -> int:
    """A descriptor of the program with this id; ENOENT if it is gone."""
    return call("bpf_prog_get_fd_by_id", identity)


def prog_maps(fd: int) -> list[int]:
    """The ids of the maps that a program uses."""
    count = prog_info(fd).nr_map_ids
    identities = (ctypes.c_uint32 * count)()
    _info(fd, ProgInfo(nr_map_ids=count, map_ids=ctypes.addressof(identities)))
    return list(identities)


def map_by_id(identity: int) -> int:
    """A descriptor of the map with this id; ENOENT if it is gone."""
    return call("bpf_map_get_fd_by_id", identity)


def prog_load(
    kind: ProgType,
    name: str,
    instructions: bytes,
    attach_type: AttachType | int = 0,
    flags: ProgFlag | int = 0,
) -> int:
    """Load a program of 8-byte instructions under a GPL-compatible licence."""
    options = _options(_LoadProg, expected_attach_type=attach_type, prog_flags=flags)
    count = ctypes.c_size_t(len(instructions) // 8)
    args = (kind, name.encode(), b"Dual BSD/GPL", instructions, count, options)
    return call("bpf_prog_load", *args)


def prog_query(target: int, attach_type: AttachType, *, effective: bool = False) -> list[int]:
    """Ids of the programs at a hook in execution order.

    `target`: a cgroup's fd, or an ifindex for TCX; `effective`: include programs of ancestor
    cgroups. EINVAL on a kernel without the hook.
    """
    room = _QUERY_ROOM
    while True:
        identities, count = (ctypes.c_uint32 * room)(), ctypes.c_uint32(room)
        flags = _QUERY_EFFECTIVE if effective else 0
        try:
            args = (None, identities, ctypes.byref(count))
            call("bpf_prog_query", target, attach_type, flags, *args)
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            room *= 2
        else:
            return list(identities[: count.value])


def link_create(
    prog: int, target: int, attach_type: AttachType, flags: AttachFlag | XdpFlag | int = 0
) -> int:
    """Attach through a link; `target` is a cgroup's fd, or an ifindex for TCX and XDP."""
    return call("bpf_link_create", prog, target, attach_type, _options(_CreateLink, flags=flags))


def link_update(link: int, prog: int) -> None:
    """Replace the program of a link atomically."""
    call("bpf_link_update", link, prog, None)


def links() -> Iterator[LinkInfo]:
    """All links of the machine that are still there, by id."""
    identity = ctypes.c_uint32(0)
    while True:
        try:
            call("bpf_link_get_next_id", identity, ctypes.byref(identity))
        except FileNotFoundError:
            return
        try:
            fd = link_by_id(identity.value)
        except FileNotFoundError:
            continue
        with owned(fd):
            yield link_info(fd)


def link_by_id(identity: int) -> int:
    """A descriptor of the link with this id; ENOENT if it is gone."""
    return call("bpf_link_get_fd_by_id", identity)


def link_detach(link: int) -> None:
    """Take the link's program off its hook, even if others still hold the link."""
    call("bpf_link_detach", link)
