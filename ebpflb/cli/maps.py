# SPDX-License-Identifier: Apache-2.0
"""ebpflb maps: what the kernel holds, from the pinned maps."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import Output, columns, emit, output_option, size
from ebpflb.config.values import nearest, socket_address
from ebpflb.model.address import Address, format_address

if TYPE_CHECKING:
    from ebpflb.dataplane.view.dump import Element
    from ebpflb.dataplane.view.snapshot import BackendInUse, FrontendInForce
    from ebpflb.model.plan import Backend, Choice, Frontend
    from ebpflb.model.service import ServiceName


def _known_names(
    _ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    from ebpflb.dataplane.layout.capacity import MAPS

    for name in names:
        if name not in MAPS:
            raise click.BadParameter(f"unknown map {name!r}{nearest(name, MAPS)}")
    return names


def _names_like(_ctx: click.Context, _param: click.Parameter, begin: str) -> list[str]:
    from ebpflb.dataplane.layout.capacity import MAPS

    return [name for name in sorted(MAPS) if name.startswith(begin)]


def _service_name(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> "ServiceName | None":
    from ebpflb.model.service import ServiceName

    if text is None:
        return None
    namespace, _, name = text.partition("/")
    if not (namespace and name):
        raise click.BadParameter(f"{text!r}: want NAMESPACE/NAME")
    return ServiceName(namespace, name)


@click.group(
    epilog="""\b
Examples:
  ebpflb maps list
  ebpflb maps dump
  ebpflb maps dump lb_conntrack -o json
"""
)
def maps() -> None:
    """Show what the kernel holds. It reads the pinned maps and needs no agent."""


@maps.command(
    name="list",
    epilog="""\b
Examples:
  ebpflb maps list
  ebpflb maps list -o yaml
""",
)
@bpffs_option
@output_option
def list_maps(bpffs_root: str | None, output: Output) -> None:
    """Every BPF map with its type, how full it is, and its memory."""
    from ebpflb.dataplane.view.dump import map_fills

    fills = map_fills(open_pins(pin_root(bpffs_root))[1])
    rows = [(each.name, each.type, each.used, each.max, size(each.memory)) for each in fills]
    emit(fills, output, lambda: columns([("NAME", "TYPE", "USED", "MAX", "MEMORY"), *rows]))


@maps.command(
    epilog="""\b
Without NAME, like `ipvsadm -Ln`: each frontend with its Service, type and traffic policy, and
below it the backends.
  ACTIVE       connected sockets and flows that use a backend now
  CONNECTIONS  new ones since the frontend or backend was made
  FROM         which clients a backend serves: `this node` (its pods and processes),
               `elsewhere`, or `all`
  <-           source ranges, if only clients in these may connect
  DSR          direct server return: packets of clients outside go to a pod on another node in
               a `tunnel to` that node; a pod without one sees an address of this node

\b
Examples:
  ebpflb maps dump
  ebpflb maps dump --service default/web
  ebpflb maps dump -o json | jq '.[] | select(.refused > 0)'
  ebpflb maps dump lb_backends lb_slots
"""
)
@click.argument(
    "names", metavar="[NAME]...", nargs=-1, callback=_known_names, shell_complete=_names_like
)
@click.option(
    "--service", metavar="NAMESPACE/NAME", callback=_service_name, help="Only this Service."
)
@bpffs_option
@output_option
def dump(
    names: tuple[str, ...], service: "ServiceName | None", bpffs_root: str | None, output: Output
) -> None:
    """Print the frontends in force, or maps entry by entry."""
    if names and service:
        raise click.UsageError("--service selects frontends, and cannot be used with NAME")
    _, opened = open_pins(pin_root(bpffs_root))
    if names:
        from ebpflb.dataplane.view.dump import decode_map

        raw = {name: decode_map(opened[name]) for name in dict.fromkeys(names)}
        shown = {name: [element._asdict() for element in found] for name, found in raw.items()}
        emit(shown, output, lambda: _raw_lines(raw))
    else:
        from ebpflb.dataplane.view.snapshot import read_frontends

        found = read_frontends(opened, service)
        emit([_plain(each) for each in found], output, lambda: columns(list(_frontend_rows(found))))


def _plain(found: "FrontendInForce") -> dict[str, Any]:
    frontend = found.frontend
    return {
        "protocol": frontend.key.protocol.name,
        "address": format_address(frontend.key.address),
        "port": frontend.key.port,
        "type": frontend.type,
        "namespace": frontend.service.namespace,
        "service": frontend.service.service,
        "port_name": frontend.service.port,
        "internal_policy": frontend.internal_policy,
        "external_policy": frontend.external_policy,
        "affinity_timeout": frontend.affinity_timeout,
        "scheduler": frontend.scheduler,
        "dsr": frontend.dsr,
        "source_ranges": list(map(str, frontend.allowed_sources)),
        "connections": found.counts.connections,
        "refused": found.counts.refused,
        "dropped": found.counts.dropped,
        "local": _plain_choice(frontend.local, found.backends, has_dsr=False),
        "others": _plain_choice(frontend.others, found.backends, has_dsr=frontend.dsr),
        "draining": [_plain_backend(each, has_dsr=False) for each in found.draining],
    }


def _plain_choice(
    choice: "Choice", backends: "Mapping[Backend, BackendInUse]", *, has_dsr: bool
) -> dict[str, Any]:
    return {
        "backends": [_plain_backend(backends[each], has_dsr=has_dsr) for each in choice.backends],
        "if_empty": choice.if_empty,
    }


def _plain_backend(found: "BackendInUse", *, has_dsr: bool) -> dict[str, Any]:
    address, port, is_local, is_terminating, standing = found.backend[:5]
    return {
        "address": format_address(address),
        "port": port,
        "local": is_local,
        "terminating": is_terminating,
        "usable": found.usable,
        "standing": standing.name.lower(),
        "tunnel_to": _tunnel_to(found) if has_dsr else "",
        "active": found.active,
        "connections": found.counts.connections,
    }


def _frontend_rows(found: "Iterable[FrontendInForce]") -> Iterator[tuple[object, ...]]:
    yield (
        *("", "FRONTEND", "TYPE", "SERVICE", "POLICY"),
        *("ACTIVE", "CONNECTIONS", "REFUSED", "DROPPED"),
    )
    yield "  ->", "BACKEND", "STATE", "FROM"
    for each in found:
        frontend, counts = each.frontend, each.counts
        yield (
            frontend.key.protocol.name,
            _end(*frontend.key[:2]),
            frontend.type,
            _service_port(frontend),
            _policy(frontend),
            "-",
            *(counts.connections, counts.refused, counts.dropped),
        )
        yield from (("  <-", prefix, "source range") for prefix in frontend.allowed_sources)
        yield from _choice_rows(each)


def _choice_rows(found: "FrontendInForce") -> Iterator[tuple[object, ...]]:
    local, others = found.frontend.local, found.frontend.others
    if local == others:
        yield from _backend_rows(found, local, "all")
    else:
        both = [backend for backend in local.backends if backend in others.backends]
        for backend in both:
            yield _backend_row(found, found.backends[backend], "all")
        yield from _backend_rows(found, local, "this node", but=both)
        yield from _backend_rows(found, others, "elsewhere", but=both)
    for each in found.draining:
        yield _backend_row(found, each, "nobody new")


def _backend_rows(
    found: "FrontendInForce", choice: "Choice", source: str, but: "Iterable[Backend]" = ()
) -> Iterator[tuple[object, ...]]:
    if not choice.backends:
        yield "  ->", "(none)", choice.if_empty, source
    for backend in choice.backends:
        if backend not in but:
            yield _backend_row(found, found.backends[backend], source)


_STANDINGS = {"TRIAL": "on trial", "EJECTED": "ejected"}


def _backend_row(
    frontend: "FrontendInForce", found: "BackendInUse", source: str
) -> tuple[object, ...]:
    address, port, is_local, is_terminating, standing = found.backend[:5]
    state = ["local" if is_local else "remote"]
    if frontend.frontend.dsr and found.tunnel_to and source in ("all", "elsewhere"):
        state.append(f"tunnel to {_tunnel_to(found)}")
    state += ["terminating"] if is_terminating else []
    if standing.name in _STANDINGS:
        state.append(_STANDINGS[standing.name])
    elif not found.usable:
        state.append("unusable")
    counts = found.active, found.counts.connections
    return "  ->", _end(address, port), ", ".join(state), source, "", *counts


def _tunnel_to(found: "BackendInUse") -> str:
    """The node's address; empty for a backend that packets do not go to in a tunnel."""
    return format_address(found.tunnel_to) if found.tunnel_to else ""


def _end(address: Address, port: int) -> str:
    return socket_address(format_address(address), port)


def _service_port(frontend: "Frontend") -> str:
    namespace, service, port, _ = frontend.service
    return f"{namespace}/{service}{f':{port}' if port else ''}"


def _policy(frontend: "Frontend") -> str:
    is_inside = frontend.type == "ClusterIP"
    policy = frontend.internal_policy if is_inside else frontend.external_policy
    affinity = f", affinity {frontend.affinity_timeout} s" if frontend.affinity_timeout else ""
    scheduler = f", {frontend.scheduler}" if frontend.scheduler != "random" else ""
    return f"{policy}{affinity}{scheduler}{', DSR' * frontend.dsr}"


def _raw_lines(raw: Mapping[str, "list[Element]"]) -> Iterator[str]:
    for name, elements in raw.items():
        yield f"{name}: {len(elements)} {'entry' if len(elements) == 1 else 'entries'}"
        rows = [(f"  {_words(each.key)}", "->", _words(each.value)) for each in elements]
        yield from columns(rows) if rows else ()


def _words(value: Any, prefix: str = "") -> str:
    """A plain value on one line: a=1 b.c=2, lists with commas."""
    if isinstance(value, dict):
        inner = f"{prefix}." if prefix else ""
        return " ".join(_words(each, f"{inner}{name}") for name, each in value.items())
    text = ",".join(map(_words, value)) if isinstance(value, list) else str(value)
    return f"{prefix}={text or '-'}" if prefix else text or "-"
