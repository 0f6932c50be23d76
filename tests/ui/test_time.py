# SPDX-License-Identifier: Apache-2.0
"""The page looks back at a window that the nodes are asked for; it says how old its figures are."""

import time
from datetime import UTC, datetime
from threading import Event

import pytest

from ebpflb.errors import QueryError
from ebpflb.kubectl.ui.aside import Heard
from tests.ui.flows import failed, flow, of_node
from tests.ui.page import address, cards, clean_page, page_over, show, shown_lines

PAST = "document.querySelector('#past')"
SUMMARY = "document.querySelector('#nodes summary').textContent"


class Kept:
    """What the nodes have kept: two minutes of flows, which end at a full minute an hour ago."""

    def __init__(self):
        self.end = int(time.time()) // 60 * 60 - 3600
        self.asked = []

    def __call__(self, wanted):
        self.asked.append(wanted)
        found = [self.at(second, flow(client="shop/old")) for second in range(1, 121, 10)]
        found.append(self.at(70, failed(client="shop/old")))
        return Heard(found, (), {"timed out": {"node2"}})

    def at(self, second, made):
        moment = datetime.fromtimestamp(self.end - second, UTC)
        return of_node("node1", {**made, "time": f"{moment:%Y-%m-%dT%H:%M:%S}.000000000Z"})

    @property
    def until(self):
        return datetime.fromtimestamp(self.end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def page(browser, kept):
    with clean_page(browser, "node1", "node2", "node3", flows=kept) as made:
        made.agents.send("node1", flow(client="shop/new"))
        yield made


def clock(browser, seconds):
    return browser.run(f"new Date({seconds} * 1000).toLocaleTimeString('en-GB').slice(0, 5)")


def test_a_window_in_the_past(browser, page, kept):
    show(browser, page, f"?until={kept.until}", "1 line, 6 connections")
    times = clock(browser, kept.end - 60), clock(browser, kept.end)
    assert browser.text("#past b").endswith(f"{times[1]}")
    assert browser.text("#past b").startswith("Past: ")
    assert times[0] in browser.text("#past b")
    assert [card[0] for card in cards(browser)] == ["shop/old", "shop/web", "shop/web"]
    assert browser.text("#summary dd b") == "0.10/s"
    assert browser.run(SUMMARY) == ("3 nodes; node2 does not answer; node3 has no flows from then")
    assert not browser.run("document.querySelector('#pause').checkVisibility()")
    browser.run(f"{PAST}.querySelector('button').click()")
    browser.wait(shown_lines("1 line, 1 connection"))
    assert browser.run(f"{PAST}.hidden")
    assert address(browser) == ""
    browser.run("history.back()")
    browser.wait(shown_lines("1 line, 6 connections"))
    assert len(kept.asked) == 1


def test_five_minutes_of_the_past_and_one_line_of_them(browser, page, kept):
    query = f"?window=300&until={kept.until}&client=workload:shop/old"
    show(browser, page, query, "1 line, 13 connections")
    browser.wait("document.querySelector('#panel .flows .bad button')")
    assert "▲ 8 % (1 failed)" in browser.text("#panel")
    browser.run("document.querySelector('#panel .flows .bad button').click()")
    browser.wait("document.querySelector('#panel .bad pre').textContent.startsWith('node1$')")


def test_the_slider_looks_back_and_returns(browser, page, kept):
    show(browser, page, lines="1 line, 1 connection")
    slide = """
        var slider = document.querySelector('#back input');
        slider.value = %d;
        for (const name of ['input', 'change']) slider.dispatchEvent(new Event(name));
    """
    browser.run(slide % -12)
    browser.wait(f"!{PAST}.hidden && {PAST}.textContent.includes(' to ')")
    end = browser.run("Date.parse(new URLSearchParams(location.search).get('until')) / 1000")
    assert end % 300 == 0
    assert 3600 <= time.time() - end < 3600 + 300 + 60
    assert browser.text("#back output") == f"until {clock(browser, end)}"
    browser.run(slide % -999)
    browser.wait("document.querySelector('#empty').textContent.includes('kept no flows')")
    assert browser.run("document.querySelector('#trouble').hidden")
    browser.run(slide % 0)
    browser.wait(f"{PAST}.hidden")
    assert address(browser) == ""


def test_bars_have_times_and_a_click_on_one_shows_its_minute(browser, page, kept):
    show(browser, page, f"?window=300&until={kept.until}", "1 line, 13 connections")
    times = browser.run("[...document.querySelectorAll('.bars text')].map((x) => x.textContent)")
    assert times == [clock(browser, kept.end - 300 + 60 * minute) for minute in range(5)]
    bar = f"document.querySelector('.bars g[data-key=\"{kept.end - 80}\"]')"
    title = browser.run(f"{bar}.querySelector('title').textContent")
    assert title.endswith(": 3 connections, 0.15/s, ▲ 33 % with problems")
    assert "up to 3;" in browser.text("figcaption")
    browser.run(f"{bar}.dispatchEvent(new MouseEvent('click'))")
    browser.wait(shown_lines("1 line, 7 connections"))
    end = browser.run("Date.parse(new URLSearchParams(location.search).get('until')) / 1000")
    assert end == kept.end - 60
    assert browser.run("document.querySelector('[name=window]').value") == "60"


def test_while_the_nodes_are_asked_the_page_says_so(browser):
    go = Event()

    def slow(_):
        assert go.wait(60)
        raise QueryError("no node answers")

    with page_over("node1", flows=slow) as page:
        page.agents.send("node1", flow())
        show(browser, page, lines="1 line, 1 connection")
        browser.run(
            "document.querySelector('.bars g[role=button]').dispatchEvent(new Event('click'))"
        )
        browser.wait(f"{PAST}.textContent.includes('asking all nodes')")
        go.set()
        browser.wait("!document.querySelector('#trouble').hidden")
        assert browser.text("#trouble").startswith("no node answers (figures as of ")
        assert browser.text("#past b") == "Past: no answer"
    browser.leave()


OLD = "document.body.classList.contains('old')"


def test_figures_are_old_once_no_node_is_followed(browser, page):
    page.agents.send("node2", "")
    show(browser, page, lines="1 line, 1 connection")
    assert not browser.run(OLD)
    for node in ("node1", "node2", "node3"):
        page.agents.fail(node, "the pod is gone")
    browser.wait(OLD)
    assert browser.text("#trouble").startswith("No node is followed (figures as of ")
    page.agents.send("node1", "")
    browser.wait(f"!{OLD}")
    assert browser.run("document.querySelector('#trouble').hidden")


def test_the_command_has_ended(browser):
    with page_over("node1") as page:
        page.agents.send("node1", flow())
        show(browser, page, lines="1 line, 1 connection")
    browser.wait("!document.querySelector('#trouble').hidden")
    assert "has ended" in browser.text("#trouble")
    assert "(figures as of " in browser.text("#trouble")
    opacity = "getComputedStyle(document.querySelector('#content')).opacity"
    assert float(browser.run(opacity)) < 1
    browser.leave()
