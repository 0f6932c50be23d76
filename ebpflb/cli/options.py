# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, and what they mean."""

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

import click

Output = Literal["table", "wide", "json", "jsonl", "yaml"]
DEFAULT_NAMESPACE = "default"

Decorator = Callable[[Any], Any]


def options(*each: Decorator) -> Decorator:
    """One decorator for several options, in the order of --help."""
    return lambda command: reduce(lambda made, option: option(made), reversed(each), command)


output_option: Decorator = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "jsonl", "yaml"]),
    default="table",
    show_default=True,
    help="Output format: `table` fits the terminal, `wide` shows everything.",
)
name_namespace_option: Decorator = click.option(
    "-n", "--namespace", metavar="NS", help="Namespace for names without one."
)
service_option: Decorator = click.option(
    "--service", metavar="[NS/]NAME", help="Only show this Service."
)
watch_option: Decorator = click.option(
    "-w", "--watch", is_flag=True, help="Keep refreshing until Ctrl-C."
)
namespace_options = options(
    click.option(
        "-n",
        "--namespace",
        metavar="NS",
        help="Only show this namespace; also the default for names without one.",
    ),
    click.option("-A", "--all-namespaces", is_flag=True, help="Show all namespaces."),
)


def one_namespace(given: str | None, *, every: bool) -> str | None:
    """The namespace of -n, or None for all. UsageError for -n and -A together."""
    if given and every:
        raise click.UsageError("-n and -A cannot be used together")
    return given


def full_name(name: str, namespace: str | None) -> str:
    """NAMESPACE/NAME for a name with or without a namespace; None means `default`."""
    return name if "/" in name else f"{namespace or DEFAULT_NAMESPACE}/{name}"
