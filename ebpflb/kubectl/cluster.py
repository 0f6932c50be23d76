# SPDX-License-Identifier: Apache-2.0
"""What every command of the plugin works with: the relay, or the agents, and their answers.

Nodes that do not answer are listed on standard error at the end, and the exit status is 1.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar, get_args

import click

from ebpflb.cli.options import Output, complete_node, options
from ebpflb.cli.render import PAUSE_SECONDS, Found, Lines, pause, show
from ebpflb.cli.table import visible
from ebpflb.errors import ClusterError, EbpflbError
from ebpflb.kubectl.access import Access, ForbiddenError
from ebpflb.kubectl.agents import find_agents
from ebpflb.kubectl.asking import LIMIT, NO_AGENT, AskedAgents
from ebpflb.kubectl.execution import Executor, PodExecutor
from ebpflb.kubectl.relay import NoRelayError, Relay, RelayQuestion, UselessRelayError

Result = TypeVar("Result")
Via = Literal["auto", "relay", "exec"]

THROUGH_THE_RELAY = "through the relay"
NOT_THROUGH_THE_RELAY = f"not {THROUGH_THE_RELAY}"

_SECONDS = 20.0


def _tell(text: str) -> None:
    click.echo(visible(text), err=True)


@dataclass
class Cluster(AskedAgents):
    """agent_namespace: where to look for agents; empty for all. nodes: the only ones; none: all.

    impostors: see FoundAgents. are_old: whether find() looks for agents again. relay: None if only
    agents may be asked. say: prints on standard error.
    """

    executor: Executor
    exit_status: int = 0
    agent_namespace: str = ""
    nodes: Sequence[str] = ()
    impostors: Sequence[str] = ()
    are_old: bool = False
    relay: Relay | None = None
    say: Callable[[str], None] = _tell

    @property
    def namespace(self) -> str:
        """For names without one, and for lists without -A."""
        return self.access.namespace

    def asked(
        self,
        question: RelayQuestion,
        read: Callable[[bytes], Result],
        otherwise: Callable[[], Result],
    ) -> Result:
        """What the relay answers; or `otherwise`, of the agents, which are found first.

        `read`: see Relay.ask(). ConfigError, ClusterError.
        """
        return self.through(lambda relay: self._answered(relay, question, read), otherwise)

    def through(self, ask: Callable[[Relay], Result], otherwise: Callable[[], Result]) -> Result:
        """What `ask` gets of the relay; or `otherwise`, of the agents, which are found first.

        ConfigError, ClusterError.
        """
        if self.relay:
            try:
                found = ask(self.relay)
            except UselessRelayError as error:
                if self.relay.is_only:
                    raise
                if not isinstance(error, NoRelayError):
                    self.say(f"{NOT_THROUGH_THE_RELAY} ({error}): asking the nodes by pods/exec")
            else:
                if not self.relay.is_only and sys.stderr.isatty():
                    self.say(THROUGH_THE_RELAY)
                return found
        self.find()
        return otherwise()

    def of_nodes(self, question: RelayQuestion) -> RelayQuestion:
        """The same about the given nodes."""
        parameters = {**question.parameters, "node": ",".join(self.nodes)}
        return question._replace(parameters=parameters)

    def _answered(
        self, relay: Relay, question: RelayQuestion, read: Callable[[bytes], Result]
    ) -> Result:
        found, failures = relay.ask(self.of_nodes(question), read)
        for error, nodes in failures.items():
            self.failures[" ".join(error.split())].update(nodes)
        return found

    def find(self) -> None:
        """Find the agents, unless they are known. UsageError if only the relay may be asked.

        ClusterError, at first also if one of the given nodes does not exist.
        """
        if self.relay and self.relay.is_only:
            raise click.UsageError("--via relay: only the nodes answer this, by --via exec")
        are_known = bool(self.agents)
        if are_known and not self.are_old:
            return
        try:
            self.look_again()
        except ForbiddenError as error:
            if self.relay and self.relay.is_missing:
                text = f"{error}; and there is no relay that could be asked"
                raise ForbiddenError(text) from error
            raise
        self.are_old = False
        unknown = set(self.nodes) - {each.node for each in self.agents}
        if unknown and not are_known:
            raise ClusterError(f"--node {some(unknown)}: not found: `kubectl get nodes` lists them")
        if self.impostors:
            what = "ignored, since the agents' DaemonSet has not created them"
            self.say(f"{what}: {some(self.impostors)}")

    def look_again(self) -> None:
        """Find the current agents. On ClusterError the old ones stay."""
        with self.access.reading():
            found, self.impostors = find_agents(self.access, self.agent_namespace)
            self.agents = [each for each in found if each.node in (self.nodes or (each.node,))]

    def tell(self, node: str, error: str) -> None:
        """Print an error now, on standard error."""
        self.say(f"{node}: {' '.join(error.split())}")
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
        """Like show(); with `watch`, agents are found anew each time, if they are asked.

        What is to be said, and the nodes without an answer, come after each table.
        """
        if not watch:
            return show(look, lines, output, plain=plain)
        said: list[str] = []
        self.say = said.append

        def look_anew() -> Found:
            self.are_old = True
            self.failures.clear()
            try:
                return look()
            except EbpflbError:
                tell_all()
                raise

        def tell_all() -> None:
            while said:
                _tell(said.pop(0))

        def wait() -> bool:
            tell_all()
            self._name_failures()
            return pause(pause_seconds)

        return show(look_anew, lines, output, watch=True, plain=plain, wait=wait)

    def finish(self) -> None:
        """List the nodes that did not answer. Raises Exit unless they just have no agent."""
        self._name_failures()
        if self.exit_status or self.has_failures:
            raise click.exceptions.Exit(self.exit_status or 1)

    def _name_failures(self) -> None:
        for error, nodes in sorted(self.failures.items()):
            _tell(f"{', '.join(sorted(nodes))}: {error}")


_cluster_options = options(
    click.option("--kubeconfig", metavar="PATH", default="", help="Same as in kubectl."),
    click.option("--context", metavar="NAME", default="", help="Same as in kubectl."),
    click.option(
        "--via",
        type=click.Choice(get_args(Via)),
        default="auto",
        show_default=True,
        help="Ask the relay, or the nodes by pods/exec; `auto`: the relay, if it answers you.",
    ),
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
        timeout: float,
        via: Via,
        node: Sequence[str],
        **given: Any,
    ) -> None:
        access = Access(kubeconfig, context, timeout)
        cluster = Cluster(
            access,
            (),
            PodExecutor(access),
            given.pop("parallel"),
            agent_namespace=given.pop("agent_namespace"),
            nodes=node,
            relay=None if via == "exec" else Relay(access, is_only=via == "relay"),
        )
        command(cluster, **given)
        cluster.finish()

    return _cluster_options(with_cluster)


def some(nodes: Iterable[str], most: int = 3) -> str:
    """The first few names, and the number of the others."""
    every = sorted(nodes)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{', '.join(every[:most])}{more}"
