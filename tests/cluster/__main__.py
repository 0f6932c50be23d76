# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cluster`: builds the programs of a cluster, starts one, removes it."""

import os
import subprocess
import time
from typing import get_args

import click

from ebpflb.errors import EbpflbError
from tests.cluster.harness import binaries, release, state, teardown
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.layout import MOST_NODES, KubeProxy
from tests.cni.row import rows
from tests.image.build import image_archive

_NAME = click.argument("name", default="dev")


class _OneLineErrors(click.Group):
    """Turns an expected failure into one line."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except EbpflbError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_OneLineErrors)
def main() -> None:
    """A real Kubernetes on this machine (root). NAME is dev if not given."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(binaries.RECIPES)), metavar="[NAME]...")
def build(names: tuple[str, ...]) -> None:
    """Build the programs that are missing; without a NAME all of them."""
    binaries.build_all(list(names), click.echo)


@main.command()
@_NAME
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, MOST_NODES))
@click.option("--cni", default="ptp", show_default=True, type=click.Choice(list(rows())))
@click.option("--kube-proxy", type=click.Choice(get_args(KubeProxy)), help="It serves Services.")
@click.option("--ebpflb", is_flag=True, help="Build the image, and install the chart with Helm.")
def up(name: str, nodes: int, cni: str, kube_proxy: KubeProxy | None, ebpflb: bool) -> None:
    """Start a cluster that runs until `down`."""
    if os.geteuid() != 0:
        raise click.ClickException("needs root, for namespaces, cgroups and containers")
    binaries.build_all([], click.echo)
    started = time.monotonic()
    cluster = Cluster.up(name, nodes, rows()[cni].network, kube_proxy, owned=False)
    if ebpflb:
        cluster.load_image(image_archive())
        release.deploy(cluster, "install", release.values(cluster, **rows()[cni].values))
    click.echo(f"cluster {name} is up after {time.monotonic() - started:.0f} s. For kubectl, helm:")
    click.echo(f"  export PATH={binaries.folder()}:$PATH KUBECONFIG={cluster.kubeconfig}")
    click.echo(f"On a node: python -m tests.cluster shell {name} node1")


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
def down(names: tuple[str, ...]) -> None:
    """Remove clusters; without a NAME dev, and all clusters left behind by tests that have
    ended.
    """
    known = [item for item in state.every() if item.name in names]
    if missing := set(names) - {item.name for item in known}:
        state.load(missing.pop())
    if not names:
        known = [item for item in state.every() if item.name == "dev" or item.is_orphan]
    for item in known:
        teardown.remove(item)
        click.echo(f"cluster {item.name} is down")


@main.command()
def status() -> None:
    """Show the clusters."""
    for item in state.every():
        whose = "stays"
        if item.owner:
            whose = f"of process {item.owner.pid}" + (", which has ended" * item.is_orphan)
        half = "" if item.complete else ", not complete"
        click.echo(f"{item.name}: {item.nodes} nodes, {whose}{half}, {item.layout.folder}")


@main.command()
@_NAME
@click.argument("member", default="node1")
def shell(name: str, member: str) -> None:
    """Open a shell on a member of a cluster: node1, node2, ..., client or control."""
    cluster = Cluster.attach(name)
    places = (*cluster.nodes, cluster.client, cluster.control_plane.place)
    found = [place for place in places if place.name == member]
    if not found:
        raise click.ClickException(f"{member}: one of {', '.join(item.name for item in places)}")
    path = f"{binaries.folder()}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "KUBECONFIG": str(cluster.kubeconfig)}
    process: subprocess.Popen[bytes] = found[0].popen(["bash"], env=environment)
    raise SystemExit(process.wait())


if __name__ == "__main__":
    main()
