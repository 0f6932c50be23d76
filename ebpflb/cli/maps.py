# SPDX-License-Identifier: Apache-2.0
"""ebpflb maps: what the kernel holds, from the pinned maps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.options import Output, full_name, output_option, service_option
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import emit
from ebpflb.cli.services import frontend_lines, frontends_of, plain_frontends
from ebpflb.cli.table import Column, TextTable, size
from ebpflb.config.values import nearest

if TYPE_CHECKING:
    from ebpflb.dataplane.view.dump import Element, MapFill


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
    emit(fills, output, lambda: [TextTable(_MAPS, fills)])


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
        items = [{"map": name, **each} for name, found in shown.items() for each in found]
        emit(shown, output, lambda: _raw_lines(raw), items)
    else:
        found = frontends_of(opened, full_name(service, None) if service else "")
        emit(plain_frontends(found), output, lambda: frontend_lines(found))


def _raw_lines(raw: Mapping[str, "list[Element]"]) -> "Iterator[str | TextTable[Element]]":
    for name, elements in raw.items():
        yield f"{name}: {len(elements)} {'entry' if len(elements) == 1 else 'entries'}"
        yield TextTable(_RAW, elements)


def _words(value: Any, prefix: str = "") -> str:
    """A plain value on one line: a=1 b.c=2, lists with commas."""
    if isinstance(value, dict):
        inner = f"{prefix}." if prefix else ""
        return " ".join(_words(each, f"{inner}{name}") for name, each in value.items())
    text = ",".join(map(_words, value)) if isinstance(value, list) else str(value)
    return f"{prefix}={text or '-'}" if prefix else text or "-"


_MAPS: "Sequence[Column[MapFill]]" = (
    Column("NAME", lambda each: each.name),
    Column("TYPE", lambda each: each.type),
    Column("USED", lambda each: each.used),
    Column("MAX", lambda each: each.max),
    Column("MEMORY", lambda each: size(each.memory)),
)
_RAW: "Sequence[Column[Element]]" = (
    Column("", lambda each: f"  {_words(each.key)}"),
    Column("", lambda _: "->"),
    Column("", lambda each: _words(each.value)),
)
