# SPDX-License-Identifier: Apache-2.0
"""Output: tables for people, JSON and YAML for tools, once or again and again."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import click
from msgspec import Struct, structs

from ebpflb.cli.options import Output
from ebpflb.cli.table import TextTable, folded
from ebpflb.config.moment import local

Found = TypeVar("Found")
Lines = Iterable[str | TextTable[Any]]
PAUSE_SECONDS = 2.0
_NARROWEST = 20
# Values of TERM for terminals without cursor control.
_PLAIN_TERMINALS = (None, "", "dumb", "unknown")


def emit(
    value: object, output: Output, table: Callable[[], Lines], items: list[Any] | None = None
) -> None:
    """Print a value in the chosen format; `table` makes lines and tables for people.

    Lines wider than the terminal are wrapped, unless `output` is wide. Dataclasses become objects
    with the names of their fields. jsonl: one line for each of the `items`, by default those of a
    list, or one for anything else.
    """
    if output == "json":
        click.echo(json.dumps(to_plain(value), indent=2))
    elif output == "jsonl":
        if items is None:
            items = value if isinstance(value, list) else [value]
        for each in items:
            click.echo(json.dumps(to_plain(each)))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(to_plain(value), sort_keys=False), nl=False)
    else:
        lines = text_lines(table(), terminal_width(output), is_wide=output == "wide")
        click.echo("".join(f"{line}\n" for line in lines), nl=False)


def text_lines(found: Lines, width: int | None, *, is_wide: bool = False) -> Iterator[str]:
    """Lines and tables as lines of at most `width`."""
    for each in found:
        if isinstance(each, str):
            yield from folded(each, width)
        else:
            yield from each.lines(width, is_wide=is_wide)


def pause(seconds: float = PAUSE_SECONDS) -> bool:
    """Wait, and go on."""
    time.sleep(seconds)
    return True


def repeat(
    look: Callable[[], Found], print_: Callable[[Found], None], wait: Callable[[], bool]
) -> None:
    """Look and print until `wait` for the next time gives False."""
    while True:
        print_(look())
        if not wait():
            return


def show(
    look: Callable[[], Found],
    lines: Callable[[Found], Lines],
    output: Output,
    *,
    watch: bool = False,
    plain: Callable[[Found], object] = lambda found: found,
    wait: Callable[[], bool] = pause,
) -> Found:
    """Look, and print what was found; with `watch` until Ctrl-C.

    `lines`, `plain`: of what was found, for people and for tools. Each table clears the screen.
    """

    def print_(found: Found) -> None:
        if watch and output in ("table", "wide"):
            click.clear()
        elif watch and output == "yaml":
            click.echo("---")
        emit(plain(found), output, lambda: lines(found))

    if watch:
        repeat(look, print_, wait)
        raise click.exceptions.Exit(0)
    found = look()
    print_(found)
    return found


def terminal_width(output: Output) -> int | None:
    """The columns that lines have; None without a limit.

    The environment's COLUMNS counts where there is no terminal.
    """
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    fits = output == "table" and is_known
    return max(shutil.get_terminal_size().columns, _NARROWEST) if fits else None


def is_screen() -> bool:
    """Whether standard output is a terminal that can do more than print one line after another."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in _PLAIN_TERMINALS


def local_time(text: str) -> str:
    """The time of a flow in local time, with milliseconds; as it is if there is none such."""
    try:
        moment = local(text)
    except ValueError:
        return text
    return moment.strftime("%b %d %H:%M:%S.%f")[:-3]


def has_colours() -> bool:
    """Whether standard output shows colours."""
    return is_screen() and "NO_COLOR" not in os.environ


def to_plain(value: Any) -> Any:
    """Structs and dataclasses to dicts, tuples to lists, all the way down."""
    if isinstance(value, Struct):
        value = structs.asdict(value)
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value
