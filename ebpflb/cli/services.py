# SPDX-License-Identifier: Apache-2.0
"""ebpflb services: the frontends in force with their backends, from the pinned maps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ebpflb.cli.options import (
    Output,
    check_served,
    chosen,
    compact_option,
    list_options,
    watch_option,
)
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import show
from ebpflb.cli.table import Column, TextTable
from ebpflb.config.values import socket_address
from ebpflb.model.address import Address, format_address
from ebpflb.model.compact import compact
from ebpflb.model.compact.frontends import COUNTS
from ebpflb.words.scheduler import Scheduler

if TYPE_CHECKING:
    from ebpflb.dataplane.kernel.maps import MapSet
    from ebpflb.dataplane.view.snapshot import BackendInUse, FrontendInForce
    from ebpflb.model.plan import Backend, Choice, Frontend


@click.command(
    epilog="""\b
Like `ipvsadm -Ln`: each frontend with its Service, type and traffic policy, followed by its
backends.
  ACTIVE       connected sockets and flows that use a backend now
  CONNECTIONS  new ones since the frontend or backend was created
  FAILED       those of them that the backend refused or did not answer
  FROM         which clients a backend serves: `this node` (its pods and processes),
               `elsewhere`, or `all`
  STATE        among others the share of new connections of a backend whose weight differs, and
               `full` if it has as many connections as the Service allows
  <-           source ranges: only clients in these may connect
  DSR          direct server return: packets from outside the cluster reach a pod on another
               node through a `tunnel to` that node; a pod without one gets SNAT
It shows all namespaces unless -n is given.

\b
Examples:
  ebpflb services
  ebpflb services -n shop --service web -w
  ebpflb services -o jsonl | jq 'select(.refused > 0)'
"""
)
@compact_option
@watch_option
@bpffs_option
@list_options
def services(
    is_compact: bool, watch: bool, bpffs_root: str | None, output: Output, **given: Any
) -> None:
    """List the frontends of this node, with backends and counters."""
    namespace, service = chosen(given)

    def look() -> "list[FrontendInForce]":
        opened = open_pins(pin_root(bpffs_root))[1]
        return frontends_of(opened, service, namespace, may_be_none=watch or is_compact)

    if is_compact:
        from ebpflb.dataplane.view.frontend_rows import frontend_row

        click.echo(compact(list(map(frontend_row, look()))))
    else:
        show(look, frontend_lines, output, watch=watch, plain=plain_frontends)


def frontends_of(
    opened: "MapSet", service: str, namespace: str = "", *, may_be_none: bool = False
) -> "list[FrontendInForce]":
    """The frontends of a Service, by NAMESPACE/NAME, of a namespace, or all.

    ConfigError for a Service without any, unless that may be.
    """
    from ebpflb.dataplane.view.snapshot import read_frontends
    from ebpflb.model.service import ServiceName

    name = ServiceName(*service.split("/", 1)) if service else None
    found = read_frontends(opened, name)
    if not may_be_none and service and not found:
        others = {each.frontend.service for each in read_frontends(opened)}
        check_served(service, found, {f"{each.namespace}/{each.service}" for each in others})
    return [each for each in found if namespace in ("", each.frontend.service.namespace)]


def plain_frontends(found: "Iterable[FrontendInForce]") -> list[dict[str, Any]]:
    """As JSON has them."""
    return [_plain(each) for each in found]


def _plain(found: "FrontendInForce") -> dict[str, Any]:
    from ebpflb.dataplane.view.frontend_rows import counts_of, name_of, settings_of

    frontend = found.frontend
    return {
        **name_of(frontend)._asdict(),
        **settings_of(frontend)._asdict(),
        **dict(zip(COUNTS, counts_of(found), strict=True)),
        "local": _plain_choice(frontend.local, found, has_dsr=False),
        "others": _plain_choice(frontend.others, found, has_dsr=frontend.dsr),
        "draining": [_plain_backend(each, has_dsr=False) for each in found.draining],
    }


def _plain_choice(choice: "Choice", found: "FrontendInForce", *, has_dsr: bool) -> dict[str, Any]:
    return {
        "backends": [
            _plain_backend(found.in_use(each), share, has_dsr=has_dsr)
            for each, share in zip(choice.backends, choice.shares, strict=True)
        ],
        "if_empty": choice.if_empty,
    }


def _plain_backend(found: "BackendInUse", share: float = 0.0, *, has_dsr: bool) -> dict[str, Any]:
    address, port, is_local, is_terminating, ejection = found.backend[:5]
    return {
        "address": format_address(address),
        "port": port,
        "local": is_local,
        "terminating": is_terminating,
        "usable": found.usable,
        "share": round(share, 4),
        "ejection": ejection.word,
        "full": found.is_full,
        "tunnel_to": _tunnel_to(found) if has_dsr else "",
        "active": found.active,
        "connections": found.counts.connections,
        "failed": found.counts.failed,
    }


class _Below(NamedTuple):
    """A line below a frontend: a source range or a backend. counts: by the names of columns."""

    mark: str
    what: object
    state: object
    source: str = ""
    counts: Mapping[str, int] = {}


def _below(found: "FrontendInForce") -> Iterator[_Below]:
    local, others = found.frontend.local, found.frontend.others
    for prefix in found.frontend.allowed_sources:
        yield _Below("  <-", prefix, "source range")
    if local == others:
        yield from _backends(found, local, "all")
    elif local.weights or others.weights:
        yield from _backends(found, local, "this node")
        yield from _backends(found, others, "elsewhere")
    else:
        both = [backend for backend in local.backends if backend in others.backends]
        for backend in both:
            yield _backend(found, found.in_use(backend), "all")
        yield from _backends(found, local, "this node", but=both)
        yield from _backends(found, others, "elsewhere", but=both)
    for each in found.draining:
        yield _backend(found, each, "no new clients")


def _backends(
    found: "FrontendInForce", choice: "Choice", source: str, but: "Iterable[Backend]" = ()
) -> Iterator[_Below]:
    if not choice.backends:
        yield _Below("  ->", "(none)", choice.if_empty, source)
    for backend, share in zip(choice.backends, choice.shares, strict=True):
        if backend not in but:
            weighted = share if choice.weights else None
            yield _backend(found, found.in_use(backend), source, weighted)


def _backend(
    frontend: "FrontendInForce", found: "BackendInUse", source: str, share: float | None = None
) -> _Below:
    """`share`: of new connections, if weights differ."""
    address, port, is_local, is_terminating, ejection = found.backend[:5]
    state = ["local" if is_local else "remote"]
    if frontend.frontend.dsr and found.tunnel_to and source in ("all", "elsewhere"):
        state.append(f"tunnel to {_tunnel_to(found)}")
    state += ["terminating"] if is_terminating else []
    state += [f"{share:.1%}"] if share is not None else []
    state += ["full"] * found.is_full
    if ejection.is_left_out:
        state.append(ejection.shown)
    elif not found.usable:
        state.append("unusable")
    counts = {
        "ACTIVE": found.active,
        "CONNECTIONS": found.counts.connections,
        "FAILED": found.counts.failed,
    }
    return _Below("  ->", _end(address, port), ", ".join(state), source, counts)


def _tunnel_to(found: "BackendInUse") -> str:
    """The node's address; empty if the backend is not reached through a tunnel."""
    return format_address(found.tunnel_to) if found.tunnel_to else ""


def _end(address: Address, port: int) -> str:
    return socket_address(format_address(address), port)


def _policy(frontend: "Frontend") -> str:
    is_inside = frontend.type == "ClusterIP"
    policy = frontend.internal_policy if is_inside else frontend.external_policy
    affinity = f", affinity {frontend.affinity_timeout} s" if frontend.affinity_timeout else ""
    scheduler = f", {frontend.scheduler}" if frontend.scheduler is not Scheduler.RANDOM else ""
    backup = f", {frontend.backup.shown}" if frontend.backup.shown else ""
    unserved = f", unserved ports {frontend.unserved}" if frontend.unserved else ""
    switches = f"{', DSR' * frontend.dsr}{', retry' * frontend.retry}"
    limits = f", {frontend.limits}" if any(frontend.limits) else ""
    return f"{policy}{affinity}{scheduler}{switches}{backup}{unserved}{limits}"


def _service_port(frontend: "Frontend") -> str:
    from ebpflb.dataplane.view.frontend_rows import name_of

    return name_of(frontend).service_port


def _count(name: str) -> "Column[FrontendInForce]":
    title = name.upper()
    return Column(title, lambda f: getattr(f.counts, name), lambda b: b.counts.get(title, ""))


COLUMNS: "Sequence[Column[FrontendInForce]]" = (
    Column("", lambda f: f.frontend.key.protocol.name, lambda b: b.mark, "  ->"),
    Column("FRONTEND", lambda f: _end(*f.frontend.key[:2]), lambda b: b.what, "BACKEND"),
    Column("TYPE", lambda f: f.frontend.type, lambda b: b.state, "STATE"),
    Column("SERVICE", lambda f: _service_port(f.frontend), lambda b: b.source, "FROM"),
    Column("POLICY", lambda f: _policy(f.frontend)),
    Column("ACTIVE", lambda _: "-", lambda b: b.counts.get("ACTIVE", "")),
    *map(_count, COUNTS),
)


def frontend_lines(found: "Iterable[FrontendInForce]") -> "list[TextTable[FrontendInForce]]":
    """Frontends with their source ranges and backends."""
    return [TextTable(COLUMNS, found, _below)]
