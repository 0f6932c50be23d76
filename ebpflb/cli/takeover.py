# SPDX-License-Identifier: Apache-2.0
"""ebpflb takeover: remove what kube-proxy left on this node, once the agent serves it."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ebpflb.cli.agent_client import ask_agent, metrics_address_option
from ebpflb.cli.options import Output, output_option
from ebpflb.cli.render import emit
from ebpflb.config.settings import setting
from ebpflb.errors import EbpflbError, ProbeError

if TYPE_CHECKING:
    from ebpflb.dataplane.kube_proxy.removal import Removed

_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Takeover:
    """`obstacles`: why it would be refused now; only a dry run or --force may have any."""

    dry_run: bool
    obstacles: tuple[str, ...]
    removed: "Removed"


@click.command(
    epilog="""\b
Connections established through kube-proxy's iptables and nftables rules survive; those through
IPVS break. docs/moving-from-kube-proxy.md describes the move, and the way back.

\b
Examples:
  ebpflb takeover --dry-run
  ebpflb takeover --wait 60
  ebpflb takeover -o json
"""
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for the agent to be in sync and for kube-proxy to stop.  [0]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Go ahead even if the agent is not ready or kube-proxy is running.",
)
@metrics_address_option
@output_option
def takeover(
    dry_run: bool, wait: float, force: bool, metrics_bind_address: str | None, output: Output
) -> None:
    """Remove kube-proxy's iptables, nftables and IPVS state. Stop kube-proxy first.

    It refuses unless the agent is in sync and serves every Service. It leaves the rules of other
    programs alone, including the kubelet's. Running it twice is safe.
    """
    from ebpflb.dataplane.kube_proxy.removal import remove_kube_proxy

    if os.geteuid() != 0:
        raise ProbeError("`ebpflb takeover` needs root: run it as root or with sudo")
    address = setting("metrics-bind-address", metrics_bind_address, os.environ)
    obstacles = _wait_without(lambda: find_obstacles(address), 0.0 if dry_run or force else wait)
    if obstacles and not (dry_run or force):
        raise EbpflbError(f"not taken over: {'; '.join(obstacles)} (--force overrides this)")
    done = Takeover(dry_run, tuple(obstacles), remove_kube_proxy(dry_run))
    emit(done, output, lambda: _lines(done))


def find_obstacles(metrics_address: str) -> list[str]:
    from ebpflb.dataplane.kube_proxy.tools import running_kube_proxies

    obstacles = [*_of_agent(metrics_address)]
    if pids := running_kube_proxies():
        which = ", ".join(map(str, pids))
        obstacles.append(
            f"kube-proxy is running here (pid {which}) and would write its rules again"
        )
    return obstacles


def _of_agent(metrics_address: str) -> Iterator[str]:
    agent = ask_agent(metrics_address)
    if agent is None:
        yield f"no agent answers at {metrics_address or '(no address)'}"
        return
    if not agent.in_sync:
        yield "the agent is not in sync"
    elif not agent.services:
        yield "the agent serves no Service"
    for option, selector in agent.selectors.items():
        yield f"kube-proxy must serve what --{option} {selector!r} leaves out: remove that option"
    for what, lines in (
        ("cannot read", agent.source_errors),
        ("is not attached to", agent.attach_errors),
        ("does not serve", agent.refused),
    ):
        yield from (f"the agent {what} {place}: {text}" for place, text in lines.items())


def _wait_without(look: Callable[[], list[str]], seconds: float) -> list[str]:
    """Repeat `look` until it finds nothing or the time is up; returns what it found last."""
    end = time.monotonic() + seconds
    while (found := look()) and (left := end - time.monotonic()) > 0:
        time.sleep(min(_PAUSE, left))
    return found


def _lines(done: Takeover) -> Iterator[str]:
    removed = done.removed
    verb = "would remove" if done.dry_run else "removed"
    lines = removed.lines()
    yield from [f"{verb} {line}" for line in lines] or ["nothing to remove"]
    yield from (f"kept {line}" for line in removed.kept)
    yield from (f"not looked at: {line}" for line in removed.unseen)
    yield from (f"warning: {line}" for line in removed.warnings)
    if done.dry_run:
        yield from (f"would be refused: {line}" for line in done.obstacles)
