# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, and what they mean."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce
from typing import Any, Literal, NamedTuple

import click
from click.shell_completion import CompletionItem

from ebpflb.config.moment import is_ago, moment, rfc3339_ns
from ebpflb.config.values import SomeOf, near
from ebpflb.errors import ConfigError

Output = Literal["table", "wide", "json", "jsonl", "yaml"]
DEFAULT_NAMESPACE = "default"

Decorator = Callable[[Any], Any]


class KnownNames(NamedTuple):
    """The object of a context in which names can be completed, from the options given so far."""

    services: Callable[[Mapping[str, Any]], Iterable[str]]
    nodes: Callable[[Mapping[str, Any]], Iterable[str]]


def completed(
    which: Callable[[KnownNames], Callable[[Mapping[str, Any]], Iterable[str]]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What completes a name of this kind: nothing without KnownNames."""

    def complete(ctx: click.Context, _param: click.Parameter, given: str) -> list[CompletionItem]:
        known = ctx.find_object(KnownNames)
        found = which(known)(ctx.params) if known else ()
        return [CompletionItem(name) for name in found if name.startswith(given)]

    return complete


def options(*each: Decorator) -> Decorator:
    """One decorator for several options, in the order of --help."""
    return lambda command: reduce(lambda made, option: option(made), reversed(each), command)


def _with_a_name(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    if text is not None and (not all(text.split("/")) or text.count("/") > 1):
        raise click.UsageError(f"--service {text!r}: want NAME or NAMESPACE/NAME")
    return text


def checked(parse: Callable[[object], object]) -> Callable[..., str | None]:
    """The callback of an option whose text is passed on if `parse` accepts it."""

    def callback(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
        try:
            if text:
                parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        return text

    return callback


def moment_option(flag: str, text: str, *, for_all: bool = False) -> Decorator:
    """An option for a moment(). `text`: its help.

    Local time becomes UTC, for an agent's zone may be another. How long ago stays so, by the clock
    of each agent, unless it is the same moment `for_all`.
    """

    def callback(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str | None:
        try:
            found = moment(given, time.time_ns()) if given else 0
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        return rfc3339_ns(found) if given and (for_all or not is_ago(given)) else given

    return click.option(flag, metavar="TIME", callback=callback, help=text)


at_option = moment_option(
    "--at",
    "Explain it as of then: 10m for so long ago, 03:10, 2026-11-24T03:10; up to 24 hours.",
    for_all=True,
)


def words_option(flag: str, known: tuple[str, ...], text: str) -> Decorator:
    """An option for some of these words, separated by commas. `text`: its help."""

    def complete(_ctx: click.Context, _param: click.Parameter, given: str) -> list[CompletionItem]:
        before, comma, last = given.rpartition(",")
        fitting = (word for word in known if word.startswith(last))
        return [CompletionItem(f"{before}{comma}{word}") for word in fitting]

    return click.option(
        flag,
        metavar="WORD,...",
        callback=checked(SomeOf(known)),
        shell_complete=complete,
        help=text,
    )


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
complete_service = completed(lambda known: known.services)
complete_node = completed(lambda known: known.nodes)
service_option: Decorator = click.option(
    "--service",
    metavar="[NS/]NAME",
    callback=_with_a_name,
    shell_complete=complete_service,
    help="Only show this Service.",
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


compact_option: Decorator = click.option("--compact", "is_compact", is_flag=True, hidden=True)
"""Prints what the plugin merges: see model/compact/."""
list_options = options(service_option, namespace_options, output_option)


class Chosen(NamedTuple):
    """What to list: a namespace, empty for all; or only a Service, by NAMESPACE/NAME."""

    namespace: str
    service: str


def chosen(given: Mapping[str, Any], home: str = "") -> Chosen:
    """By -n, -A and --service; `home`: see listed(). UsageError."""
    namespace = listed(given, home)
    if not given["service"]:
        return Chosen(namespace, "")
    service = full_name(given["service"], namespace or home)
    return Chosen(service.partition("/")[0], service)


def check_served(service: str, found: Collection[object], names: Iterable[str]) -> None:
    """ConfigError if a Service, by NAMESPACE/NAME, was chosen and nothing was found of it.

    `names`: of those that are served.
    """
    if service and not found:
        raise ConfigError(f"no Service {service} is served{near(service, names)}")


def listed(given: Mapping[str, Any], home: str = "") -> str:
    """The namespace to list, by -n and -A; empty for all. UsageError.

    `home`: that without -n and -A, and of names without one.
    """
    if given["namespace"] and given["all_namespaces"]:
        raise click.UsageError("-n and -A cannot be used together")
    return "" if given["all_namespaces"] else given["namespace"] or home


def full_name(name: str, namespace: str | None) -> str:
    """NAMESPACE/NAME for a name with or without a namespace; without any it is `default`."""
    return name if "/" in name else f"{namespace or DEFAULT_NAMESPACE}/{name}"
