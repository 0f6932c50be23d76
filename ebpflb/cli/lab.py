# SPDX-License-Identifier: Apache-2.0
"""ebpflb lab: a small test cluster of network namespaces on this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebpflb.cli.options import Output, output_option
from ebpflb.cli.render import emit
from ebpflb.cli.table import Column, TextTable
from ebpflb.errors import ProbeError

if TYPE_CHECKING:
    from ebpflb.lab.cluster import Lab, MemberStatus

_NAME = click.option(
    "--name", default="lab", show_default=True, help="Name of the lab; several can be up."
)


@click.group()
def lab() -> None:
    """Build a test cluster of network namespaces. Needs root."""
    if not find_spec("ebpflb.lab"):
        raise ProbeError("the image does not include the lab: run it from a checkout (see README)")


@lab.command()
@_NAME
@click.option("--nodes", default=2, show_default=True, help="Number of nodes.")
@click.option("--pods", default=3, show_default=True, help="Pods per node.")
@click.option(
    "--cni",
    type=click.Choice(["ptp", "bridge", "vxlan"]),
    default="ptp",
    show_default=True,
    help="How pods are connected: a route per pod, a bridge per node, or bridges and VXLAN.",
)
@click.option(
    "--family", type=click.Choice(["ipv4", "ipv6", "dual"]), default="dual", show_default=True
)
@click.option("--port", default=8080, show_default=True, help="Port of the pods, TCP and UDP.")
@click.option(
    "--rp-filter",
    default=2,
    show_default=True,
    help="net.ipv4.conf.*.rp_filter: 0 off, 1 strict (RHEL), 2 loose (systemd, Ubuntu).",
)
@output_option
def up(output: Output, cni: str, family: str, **options: int) -> None:
    """Build a lab and wait until its pods serve."""
    from ebpflb.lab import Cni, Lab, LabConfig, Stack

    config = LabConfig(cni=Cni(cni), family=Stack(family), **options)  # type: ignore[arg-type]
    _show([Lab.up(config, owned=False)], output)


@lab.command()
@_NAME
def down(name: str) -> None:
    """Remove a lab, even an incomplete one, and stop what runs in it."""
    from ebpflb.lab.build import take_down

    done = take_down(name)
    click.echo(f"lab {name!r} is down" if done else f"lab {name!r} was not up")


@lab.command()
@click.option("--name", default=None, help="Only show this lab.")
@output_option
def status(name: str | None, output: Output) -> None:
    """Show the labs and their members. Exit status 1 if anything in them is down."""
    from ebpflb.lab import Lab, state

    labs = [Lab.load(each) for each in ([name] if name else state.names())]
    if not labs and output in ("table", "wide"):
        click.echo("no lab is up")
    _show(labs, output)
    if not all(each.complete and each.is_whole() for each in labs):
        raise click.exceptions.Exit(1)


@lab.command("exec", context_settings={"allow_interspersed_args": False})
@_NAME
@click.argument("member")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, member: str, command: Sequence[str]) -> None:
    """Run COMMAND on MEMBER: a node, a pod or the client.

    All options after MEMBER belong to COMMAND; a -- before it is optional. The exit status is that
    of COMMAND.
    """
    from ebpflb.lab import Lab

    command = command[1:] if command[0] == "--" else command
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    try:
        Lab.load(name).member(member).become(command)
    except OSError as error:
        raise click.ClickException(f"{command[0]}: {error.strerror}") from error


@lab.command()
@_NAME
@click.argument("path", type=click.Path(path_type=Path))
def apply(name: str, path: Path) -> None:
    """Apply a manifest, or a directory of them, on every node of a lab."""
    from ebpflb.lab import Lab

    there = Lab.load(name)
    for file in there.apply(path):
        click.echo(f"{file}: on {', '.join(node.name for node in there.nodes)}")


def _show(labs: Sequence["Lab"], output: Output) -> None:
    emit([_as_dict(each) for each in labs], output, lambda: _lines(labs))


def _lines(labs: Sequence["Lab"]) -> "Iterator[str | TextTable[MemberStatus]]":
    from ebpflb.lab import state

    for each in labs:
        settings = each.config
        unfinished = "" if each.complete else ", not complete"
        orphan = ", left by a process that was killed" if state.is_orphan(each.name) else ""
        place = f"{each.directory}{unfinished}{orphan}"
        yield f"lab {each.name}: {settings.cni}, {settings.family}, {place}"
        yield TextTable(_MEMBERS, each.status())


_MEMBERS: "Sequence[Column[MemberStatus]]" = (
    Column("  NAME", lambda each: f"  {each.name}"),
    Column("KIND", lambda each: each.kind),
    Column("NODE", lambda each: each.node),
    Column("ADDRESSES", lambda each: " ".join(each.addresses)),
    Column("PID", lambda each: str(each.pid or "")),
    Column("STATE", lambda each: each.state),
)


def _as_dict(each: "Lab") -> dict[str, object]:
    return {
        "name": each.name,
        "complete": each.complete,
        "directory": str(each.directory),
        "config": asdict(each.config),
        "members": [asdict(row) for row in each.status()],
    }
