# SPDX-License-Identifier: Apache-2.0
"""What `ebpflb doctor` reads off the agent's own pages: is it there, what can it not serve."""

import http
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from ebpflb import __version__
from ebpflb.cli.agent_pages import Page
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well

CHECK = "agent"
CLOCK = "clock"

_ANSWER_SECONDS = 2.0
_START = "start it; what is loaded serves on as it is meanwhile"
_LATENCY = "kubeproxy_network_programming_duration_seconds_sum"
_SUM = re.compile(rf"^{_LATENCY}\{{.*\}} (\S+)$", re.MULTILINE)
# Fields of /status with what is not served: how grave, how that is said, what to do.
_TROUBLES = {
    "attach_errors": (Severity.ERROR, "is not served", "see the text; the agent goes on trying"),
    "refused": (Severity.ERROR, "keeps what it had", "it does not fit: `ebpflb maps list`"),
    "source_errors": (
        Severity.WARNING,
        "cannot be read",
        "correct it; what was read before is served on",
    ),
    "health_check_errors": (
        Severity.WARNING,
        "has a healthCheckNodePort that nobody answers",
        "free the port",
    ),
}
_REACH = "look at the way to the API server; what was read before is served on"


def check_agent(status: Mapping[str, Any] | None, address: str) -> list[Finding]:
    """`status`: the page of that name, None without an agent; `address`: where it was asked."""
    if status is None:
        where = address or "(no address)"
        return [Finding(Severity.WARNING, CHECK, where, "no agent answers there", _START)]
    what = f"{status['version']} runs (pid {status['pid']}), last sync {status['last_sync']}"
    return all_well(CHECK, what, [*_state(status), *_troubles(status)])


def check_health_port(page: Page | None, address: str) -> Iterator[Finding]:
    """`page`: what /healthz says; `address`: where the agent listens, empty for nowhere."""
    if not address:
        return
    if page is None:
        what = "the health port is not answered: load balancers and probes take the node for dead"
        yield Finding(Severity.WARNING, CHECK, address, what, "see the agent's log: is it taken?")
    elif page.status != http.HTTPStatus.OK:
        what = "/healthz is not 200: load balancers are to leave this node out"
        yield Finding(
            Severity.NOTE, CHECK, address, what, "unless the Node is about to go, see above"
        )


def check_query_socket(path: str) -> Iterator[Finding]:
    """`path`: where the agent answers `ebpflb flows` and `explain`, empty for nowhere."""
    if not path:
        return
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        try:
            asking.connect(path)
        except FileNotFoundError:
            what = "the query socket is not there: `ebpflb flows` cannot ask the agent from here"
            yield Finding(Severity.NOTE, CHECK, path, what, "run it where the agent runs")
        except OSError as error:
            what = f"the query socket is not answered: {error.strerror or error}"
            yield Finding(Severity.WARNING, CHECK, path, what, "see the agent's log")


def check_triggers(metrics: str) -> Iterator[Finding]:
    """Changes that were in force before they were made, by the page /metrics."""
    if any(float(each) < 0 for each in _SUM.findall(metrics)):
        what = "changes came from the future: the clocks of this node and the control plane differ"
        yield Finding(Severity.WARNING, CLOCK, "", what, "synchronise both (chrony, ntpd)")


def _state(status: Mapping[str, Any]) -> Iterator[Finding]:
    if not status["healthy"]:
        what = "changes have waited for a minute to get into the kernel"
        yield Finding(Severity.ERROR, CHECK, "", what, "see the agent's log")
    elif not status["in_sync"]:
        what = "not in sync: it starts, or a change is under way"
        yield Finding(Severity.WARNING, CHECK, "", what, "look again; then see the agent's log")
    if status["version"] != __version__:
        what = f"is of version {status['version']}, this program of {__version__}"
        yield Finding(Severity.NOTE, CHECK, "", what)


def _troubles(status: Mapping[str, Any]) -> Iterator[Finding]:
    for field, (severity, what, advice) in _TROUBLES.items():
        for where, text in status.get(field, {}).items():
            if (field, where) == ("source_errors", "api"):
                yield Finding(severity, "api", "", f"the API server: {text}", _REACH)
            else:
                yield Finding(severity, CHECK, where, f"{what}: {text}", advice)
    for text in status.get("conflicts", ()):
        advice = "give one of the two another address or port"
        yield Finding(Severity.WARNING, "addresses", "", text, advice)
