# SPDX-License-Identifier: Apache-2.0
"""The server of `kubectl ebpflb ui`, over agents that print what a test gives them."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ebpflb.kubectl.ui.active import ActiveConnections, AskRates
from ebpflb.kubectl.ui.aside import Heard
from ebpflb.kubectl.ui.commands import CommandWords
from ebpflb.kubectl.ui.explaining import Run, answer_of_node
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.pages import PageSources
from ebpflb.kubectl.ui.pages import pages_of as pages_of_sources
from ebpflb.kubectl.ui.past import AskFlows, Past
from ebpflb.kubectl.ui.server import Pages, PageServer
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from tests.ui.browser import Browser
from tests.ui.flows import FakeAgents

CLUSTER = "kind-test (https://127.0.0.1:6443)"


class Page(NamedTuple):
    url: str
    agents: FakeAgents


def explained(node: str, arguments: Sequence[str]) -> str:
    """The output of `ebpflb explain` where a Service has no endpoint."""
    return f"""\
fails: refused at the socket hook: no usable
endpoint

FROM      10.1.3.7, a pod of this node, via veth1f
TO        {arguments[2].upper()}, ClusterIP of
          shop/invoices:http
PATH      socket hook: refused - no usable endpoint
POLICY    internal traffic policy Cluster; the
          endpoints for this node
ENDPOINT  the Service port has none in this family

Kernel and model agree
"""


def pages_of(
    traffic: EdgeTraffic,
    following: Following,
    *,
    run: Run = explained,
    flows: AskFlows = lambda _: Heard([]),
    rates: AskRates = lambda: Heard([]),
    clock: Callable[[], float] = time.time,
) -> Pages:
    """`flows`: of the past, by this clock."""
    words = CommandWords("main", "")
    return pages_of_sources(
        PageSources(
            traffic,
            following,
            Past(flows, clock),
            ActiveConnections(rates),
            partial(answer_of_node, run, words),
            words,
            CLUSTER,
        )
    )


@contextmanager
def page_over(*nodes: str, traffic: EdgeTraffic | None = None, **asked: Any) -> Iterator[Page]:
    """The page with these nodes, none of which has answered yet. `asked`: see pages_of()."""
    agents = FakeAgents(*nodes)
    traffic = traffic or EdgeTraffic()
    following = Following(traffic, agents.find, pause_seconds=0.05)
    following.start()
    try:
        with PageServer(pages_of(traffic, following, **asked)) as server:
            yield Page(server.url, agents)
    finally:
        following.stop()
        agents.end()


@contextmanager
def clean_page(browser: Browser, *nodes: str, **asked: Any) -> Iterator[Page]:
    """At the end the browser has reported no error, and contacted no other server."""
    with page_over(*nodes, **asked) as made:
        try:
            yield made
        finally:
            requests, complaints = browser.leave()
    assert not complaints
    assert {urlsplit(each).netloc for each in requests} == {urlsplit(made.url).netloc}


def show(
    browser: Browser, page: Page, query: str = "", lines: str = "4 lines, 11 connections"
) -> None:
    """Open the page, and wait for so many lines."""
    browser.open(page.url + query)
    browser.wait(shown_lines(lines))


def shown_lines(text: str) -> str:
    """The condition that it tells of so many."""
    return f"document.querySelector('#shown').textContent === {json.dumps(text)}"


def address(browser: Browser) -> str:
    return str(browser.run("location.search"))


def cards(browser: Browser) -> list[list[str]]:
    """Name, problems and rate, column by column."""
    found: list[list[str]] = browser.run(
        "[...document.querySelectorAll('.card')]"
        ".map((card) => [...card.children].map((part) => part.textContent))"
    )
    return found


def table(browser: Browser) -> list[list[str]]:
    """The cells of each row in the table."""
    found: list[list[str]] = browser.run(
        "[...document.querySelectorAll('#table-view tbody tr')]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return found
