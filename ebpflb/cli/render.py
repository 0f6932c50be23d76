# SPDX-License-Identifier: Apache-2.0
"""Output: aligned tables for people, JSON and YAML for tools."""

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise, zip_longest
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import click

Output = Literal["table", "wide", "json", "jsonl", "yaml"]
Found = TypeVar("Found")
DEFAULT_NAMESPACE = "default"
PAUSE_SECONDS = 2.0
_INDENT = "    "
_GAP = "  "
_NARROWEST = 20

output_option: Callable[[Any], Any] = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "jsonl", "yaml"]),
    default="table",
    show_default=True,
    help="Output format: `table` fits the terminal, `wide` shows everything.",
)
namespace_option: Callable[[Any], Any] = click.option(
    "-n",
    "--namespace",
    metavar="NS",
    help="Only show this namespace; also the default for names without one.",
)
name_namespace_option: Callable[[Any], Any] = click.option(
    "-n", "--namespace", metavar="NS", help="Namespace for names without one."
)
all_namespaces_option: Callable[[Any], Any] = click.option(
    "-A", "--all-namespaces", is_flag=True, help="Show all namespaces."
)

service_option: Callable[[Any], Any] = click.option(
    "--service", metavar="[NS/]NAME", help="Only show this Service."
)
watch_option: Callable[[Any], Any] = click.option(
    "-w", "--watch", is_flag=True, help="Keep refreshing until Ctrl-C."
)


def one_namespace(given: str | None, *, every: bool) -> str | None:
    """The namespace of -n, or None for all. UsageError for -n and -A together."""
    if given and every:
        raise click.UsageError("-n and -A cannot be used together")
    return given


def full_name(name: str, namespace: str | None) -> str:
    """NAMESPACE/NAME for a name with or without a namespace; None means `default`."""
    return name if "/" in name else f"{namespace or DEFAULT_NAMESPACE}/{name}"


class TextTable(NamedTuple):
    """Rows, the first is the header. Rows may be shorter; a string is a line of its own."""

    rows: Sequence[Sequence[object] | str]


def emit(value: object, output: Output, table: Callable[[], Iterable[str | TextTable]]) -> None:
    """Print a value in the chosen format; `table` makes lines and tables for people.

    Rows wider than the terminal continue on the next line, unless `output` is wide; nothing is cut
    off. Dataclasses become objects with the names of their fields. jsonl: one line for each item of
    a list, or one for anything else.
    """
    if output == "json":
        click.echo(json.dumps(to_plain(value), indent=2))
    elif output == "jsonl":
        for each in value if isinstance(value, list) else [value]:
            click.echo(json.dumps(to_plain(each)))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(to_plain(value), sort_keys=False), nl=False)
    else:
        width = terminal_width(output)
        lines = (
            line
            for each in table()
            for line in (
                columns(each, width) if isinstance(each, TextTable) else folded(each, width)
            )
        )
        click.echo("".join(f"{line}\n" for line in lines), nl=False)


def terminal_width(output: Output) -> int | None:
    """The columns that tables have; None without a limit."""
    fits = output == "table" and sys.stdout.isatty()
    return max(shutil.get_terminal_size().columns, _NARROWEST) if fits else None


def repeat(
    look: Callable[[], Found],
    show: Callable[[Found], None],
    output: Output,
    pause_seconds: float = PAUSE_SECONDS,
) -> NoReturn:
    """Look and show until Ctrl-C; each table clears the screen. Then raises Exit."""
    try:
        while True:
            found = look()
            if output in ("table", "wide"):
                click.clear()
            elif output == "yaml":
                click.echo("---")
            show(found)
            time.sleep(pause_seconds)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(0) from None


def to_plain(value: Any) -> Any:
    """Dataclasses to dicts, tuples to lists, all the way down."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value


def visible(value: Any) -> Any:
    """Escape control characters (\\x1b) in untrusted text: a terminal would obey them.

    Works on a string, or on those in lists and objects.
    """
    if isinstance(value, str):
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    if isinstance(value, Mapping):
        return {key: visible(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [visible(each) for each in value]
    return value


def columns(table: TextTable, width: int | None = None) -> Iterator[str]:
    """Lines with each column as wide as its widest cell, numbers right-aligned.

    `width`: columns that do not fit go on further lines, below those of their row.
    """
    rows = [row for row in table.rows if not isinstance(row, str)]
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*texts, fillvalue="")]
    right = [
        all(isinstance(cell, int) or cell in ("", "-") for cell in column)
        for column in zip_longest(*rows[1:], fillvalue="")
    ]
    pads = [
        str.rjust if to_right else str.ljust
        for to_right, _ in zip_longest(right, widths, fillvalue=False)
    ]
    parts = _parts(widths, width)
    for row in table.rows:
        if isinstance(row, str):
            yield from folded(row, width)
            continue
        cells = [
            pad(visible(str(cell)), size)
            for cell, pad, size in zip(row, pads, widths, strict=False)
        ]
        for number, part in enumerate(parts):
            line = _GAP.join(cells[part]).rstrip()
            if line or not number:
                yield from folded(f"{_INDENT * bool(number)}{line}", width)


def _parts(widths: Sequence[int], width: int | None) -> list[slice]:
    """Which columns share a line."""
    begins, used = [0], 0
    for index, each in enumerate(widths):
        used += each + len(_GAP)
        if width is not None and index and used - len(_GAP) > width:
            begins.append(index)
            used = len(_INDENT) + each + len(_GAP)
    return [slice(*ends) for ends in pairwise([*begins, len(widths)])]


def folded(line: str, width: int | None) -> list[str]:
    """Wrap a line between words; continuation lines are indented."""
    line = visible(line)
    if width is None or len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip())) + _INDENT
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)


def size(count: int) -> str:
    """A number of bytes in a suitable unit."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:  # noqa: PLR2004  the factor between two units
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"
