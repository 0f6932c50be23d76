# SPDX-License-Identifier: Apache-2.0
"""ebpflb maps: what the kernel holds, from the pinned maps."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import Output, TextTable, emit, output_option, service_option, size
from ebpflb.cli.services import frontends_of, show_frontends
from ebpflb.config.values import nearest, socket_address

if TYPE_CHECKING:
    from ebpflb.dataplane.explain.known_flow import TrackedFlow, TrackedSockets
    from ebpflb.dataplane.view.dump import Element


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


@click.group(
    epilog="""\b
Examples:
  ebpflb maps list
  ebpflb maps dump
  ebpflb maps dump lb_conntrack -o json
"""
)
def maps() -> None:
    """Show the contents of the BPF maps. It needs no agent."""


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
    """List the BPF maps with their type, usage and memory."""
    from ebpflb.dataplane.view.dump import map_fills

    fills = map_fills(open_pins(pin_root(bpffs_root))[1])
    rows = [(each.name, each.type, each.used, each.max, size(each.memory)) for each in fills]
    emit(fills, output, lambda: [TextTable([("NAME", "TYPE", "USED", "MAX", "MEMORY"), *rows])])


@maps.command(
    epilog="""\b
Without NAME, it prints the same as `ebpflb services`.

\b
Examples:
  ebpflb maps dump
  ebpflb maps dump --service shop/web
  ebpflb maps dump -o json | jq '.[] | select(.refused > 0)'
  ebpflb maps dump lb_backends lb_slots
"""
)
@click.argument(
    "names", metavar="[NAME]...", nargs=-1, callback=_known_names, shell_complete=_names_like
)
@service_option
@bpffs_option
@output_option
def dump(
    names: tuple[str, ...], service: str | None, bpffs_root: str | None, output: Output
) -> None:
    """Print the frontends, or the entries of maps."""
    if names and service:
        raise click.UsageError("--service selects frontends, and cannot be used with NAME")
    _, opened = open_pins(pin_root(bpffs_root))
    if names:
        from ebpflb.dataplane.view.dump import decode_map

        raw = {name: decode_map(opened[name]) for name in dict.fromkeys(names)}
        shown = {name: [element._asdict() for element in found] for name, found in raw.items()}
        emit(shown, output, lambda: _raw_lines(raw))
    else:
        show_frontends(frontends_of(opened, service), output)


def _raw_lines(raw: Mapping[str, "list[Element]"]) -> Iterator[str | TextTable]:
    for name, elements in raw.items():
        yield f"{name}: {len(elements)} {'entry' if len(elements) == 1 else 'entries'}"
        rows = [(f"  {_words(each.key)}", "->", _words(each.value)) for each in elements]
        yield TextTable(rows)


@click.command(
    epilog="""\b
Like `ipvsadm -Lnc`: one line per flow. BEGAN and SILENT: seconds since its first and since its
last packet. Connections that socket LB handles have no conntrack entry; for these, it shows the
number of sockets per frontend and backend.

\b
Examples:
  ebpflb conntrack
  ebpflb conntrack -o jsonl | jq 'select(.state == "opening")'
"""
)
@bpffs_option
@output_option
def conntrack(bpffs_root: str | None, output: Output) -> None:
    """List the conntrack entries of this node."""
    from ebpflb.dataplane.explain.known_flow import socket_counts, tracked_flows

    opened = open_pins(pin_root(bpffs_root))[1]
    flows, sockets = tracked_flows(opened), socket_counts(opened)
    plain = [*(each._asdict() for each in flows), *(each._asdict() for each in sockets)]
    emit(plain, output, lambda: [TextTable(list(_flow_rows(flows, sockets)))])


def _flow_rows(
    flows: "Iterable[TrackedFlow]", sockets: "Iterable[TrackedSockets]"
) -> Iterator[tuple[object, ...]]:
    yield "", "STATE", "CLIENT", "FRONTEND", "BACKEND", "BEGAN", "SILENT"
    for flow in flows:
        client = socket_address(flow.client, flow.client_port)
        frontend = socket_address(flow.frontend, flow.frontend_port)
        backend = socket_address(flow.backend, flow.backend_port)
        times = int(flow.age), int(flow.silent)
        yield flow.protocol, flow.state, client, frontend, backend, *times
    for each in sockets:
        frontend = socket_address(each.frontend, each.frontend_port)
        backend = socket_address(each.backend, each.backend_port)
        count = f"{each.sockets} socket{'s' * (each.sockets != 1)}"
        yield each.protocol, "socket LB", count, frontend, backend, "-", "-"


def _words(value: Any, prefix: str = "") -> str:
    """A plain value on one line: a=1 b.c=2, lists with commas."""
    if isinstance(value, dict):
        inner = f"{prefix}." if prefix else ""
        return " ".join(_words(each, f"{inner}{name}") for name, each in value.items())
    text = ",".join(map(_words, value)) if isinstance(value, list) else str(value)
    return f"{prefix}={text or '-'}" if prefix else text or "-"
