# SPDX-License-Identifier: Apache-2.0
"""What every command of the plugin works with: the cluster's agents, and their answers.

Nodes that do not answer are listed on standard error at the end, and the exit status is 1.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click

from ebpflb.cli.options import Output, complete_node, options
from ebpflb.cli.render import PAUSE_SECONDS, Found, Lines, pause, show
from ebpflb.cli.table import visible
from ebpflb.errors import ClusterError
from ebpflb.kubectl.access import Access
from ebpflb.kubectl.agents import RemoteAgent, find_agents
from ebpflb.kubectl.asking import LIMIT, NO_AGENT, Asking
from ebpflb.kubectl.execution import Executor, PodExecutor

Result = TypeVar("Result")

_USAGE_ERROR = 2
_SECONDS = 20.0


@dataclass
class Cluster(Asking):
    """agent_namespace: where to look for agents; empty for all. nodes: the only ones; none: all.

    impostors: see FoundAgents.
    """

    executor: Executor
    exit_status: int = 0
    agent_namespace: str = ""
    nodes: Sequence[str] = ()
    impostors: Sequence[str] = ()

    @property
    def namespace(self) -> str:
        """For names without one, and for lists without -A."""
        return self.access.namespace

    def find(self) -> None:
        """Find the agents. ClusterError, also if one of the given nodes does not exist."""
        self.look_again()
        if unknown := set(self.nodes) - {each.node for each in self.agents}:
            raise ClusterError(f"--node {some(unknown)}: not found: `kubectl get nodes` lists them")
        self.name_impostors()

    def look_again(self) -> None:
        """Find the current agents. On ClusterError the old ones stay."""
        with self.access.reading():
            found, self.impostors = find_agents(self.access, self.agent_namespace)
            self.agents = [each for each in found if each.node in (self.nodes or (each.node,))]

    def tell(self, agent: RemoteAgent, error: str) -> None:
        """Print an error now, on standard error."""
        click.echo(visible(f"{agent.node}: {' '.join(error.split())}"), err=True)
        self.exit_status = 1

    @property
    def has_failures(self) -> bool:
        """A node without an agent does not count."""
        return bool(self.failures.keys() - {NO_AGENT})

    def show(
        self,
        look: Callable[[], Found],
        lines: Callable[[Found], Lines],
        output: Output,
        *,
        watch: bool,
        plain: Callable[[Found], object] = lambda found: found,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> Found:
        """Like show(); `watch` looks up the agents each time, and lists those without an answer."""

        def look_anew() -> Found:
            self.look_again()
            self.failures.clear()
            return look()

        def wait() -> bool:
            self.name_impostors()
            self._name_failures()
            return pause(pause_seconds)

        return show(
            look_anew if watch else look, lines, output, watch=watch, plain=plain, wait=wait
        )

    def finish(self) -> None:
        """List the nodes that did not answer. Raises Exit unless they just have no agent."""
        self._name_failures()
        if self.exit_status or self.has_failures:
            raise click.exceptions.Exit(self.exit_status or 1)

    def name_impostors(self) -> None:
        """Print which pods are ignored, on standard error."""
        if self.impostors:
            what = "ignored, since the agents' DaemonSet has not created them"
            click.echo(visible(f"{what}: {some(self.impostors)}"), err=True)

    def _name_failures(self) -> None:
        for error, nodes in sorted(self.failures.items()):
            click.echo(visible(f"{', '.join(sorted(nodes))}: {error}"), err=True)


_cluster_options = options(
    click.option("--kubeconfig", metavar="PATH", default="", help="Same as in kubectl."),
    click.option("--context", metavar="NAME", default="", help="Same as in kubectl."),
    click.option(
        "--agent-namespace",
        metavar="NS",
        default="",
        help="The agents' namespace; needed if you cannot list pods in all namespaces.",
    ),
    click.option(
        "--parallel",
        type=click.IntRange(1, 1000),
        default=LIMIT,
        show_default=True,
        metavar="N",
        help="Ask at most this many nodes at a time.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0.1),
        default=_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for a node.",
    ),
    click.option(
        "--node",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_node,
        help="Only ask the agent of this node; may be given several times.",
    ),
)


def cluster_command(command: Callable[..., None]) -> Any:
    """Add the options that say which cluster and how to ask; the command gets a Cluster."""

    @wraps(command)
    def with_cluster(
        kubeconfig: str,
        context: str,
        agent_namespace: str,
        parallel: int,
        timeout: float,
        node: Sequence[str],
        **given: Any,
    ) -> None:
        access = Access(kubeconfig, context, timeout)
        cluster = Cluster(
            access, (), PodExecutor(access), parallel, agent_namespace=agent_namespace, nodes=node
        )
        cluster.find()
        command(cluster, **given)
        cluster.finish()

    return _cluster_options(with_cluster)


def some(nodes: Iterable[str], most: int = 3) -> str:
    """The first few names, and the number of the others."""
    every = sorted(nodes)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{', '.join(every[:most])}{more}"
