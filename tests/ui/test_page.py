# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser shows what agents sent."""

import json
import re
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.ui.browser import Browser
from tests.ui.flows import dropped, failed, flow, refused
from tests.ui.page import CLUSTER, page_over, table

HOSTILE = '<img src=x onerror="document.title=1">'
SHOWN = "document.querySelector('#shown').textContent"


@pytest.fixture(scope="module")
def browser():
    with Browser() as made:
        yield made


@contextmanager
def clean_page(browser, *nodes):
    """At the end the browser has reported no error, and contacted no other server."""
    with page_over(*nodes) as made:
        try:
            yield made
        finally:
            requests, complaints = browser.leave()
    assert not complaints
    assert {urlsplit(each).netloc for each in requests} == {urlsplit(made.url).netloc}


@pytest.fixture
def page(browser):
    """A page with a few flows of each kind."""
    with clean_page(browser, "node1", "node2") as made:
        made.agents.send("node1", *[flow()] * 5, failed(), refused(service="shop/broken"))
        made.agents.send("node2", *[flow(client="dev/curl", service="pay/api")] * 3, dropped())
        yield made


def show(browser, page, query="", lines="4 lines, 11 connections"):
    browser.open(page.url + query)
    browser.wait(f"{SHOWN} === {json.dumps(lines)}")


def cards(browser):
    """Name, problems and rate, column by column."""
    return browser.run(
        "[...document.querySelectorAll('.card')]"
        ".map((card) => [...card.children].map((part) => part.textContent))"
    )


def address(browser):
    return browser.run("location.search")


def test_the_table_shows_what_was_sent(browser, page):
    show(browser, page, "?view=table")
    assert [row[:4] + row[5:6] for row in table(browser)] == [
        ["shop/cart", "shop/web", "shop/web", "6", "1 failed: no answer"],
        ["shop/cart", "shop/broken", "refused: no endpoint", "1", "1 refused: no endpoint"],
        ["shop/cart", "shop/web", "dropped: source range", "1", "1 dropped: source range"],
        ["dev/curl", "pay/api", "shop/web", "3", "\N{EN DASH}"],
    ]
    sums = browser.run(
        "[...document.querySelectorAll('#summary dd span')].map((x) => x.textContent)"
    )
    assert sums[:4] == ["11", "1", "1", "1"]


def test_the_page_and_its_tab_name_the_cluster(browser, page):
    show(browser, page)
    assert browser.text("#cluster") == CLUSTER
    assert browser.run("document.title") == f"ebpflb: {CLUSTER}"


def test_the_map_shows_the_same(browser, page):
    show(browser, page)
    assert [card[:2] for card in cards(browser)] == [
        ["shop/cart", "▲ 3"],
        ["dev/curl", ""],
        ["shop/broken", "▲ 1"],
        ["shop/web", "▲ 2"],
        ["pay/api", ""],
        ["shop/web", "▲ 1"],
        ["refused: no endpoint", ""],
        ["dropped: source range", ""],
    ]
    assert browser.run("document.querySelectorAll('.line').length") == 7


def test_new_flows_appear_by_themselves(browser, page):
    show(browser, page)
    page.agents.send("node1", flow(client="dev/new"))
    browser.wait(f"{SHOWN} === '5 lines, 12 connections'")
    assert "dev/new" in [card[0] for card in cards(browser)]


def test_filters_stand_in_the_address(browser, page):
    show(browser, page, "?view=table&service=pay%2Fapi", "1 line, 3 connections of 11")
    assert browser.run("document.querySelector('[name=service]').value") == "pay/api"
    browser.run(
        """
        const field = document.querySelector('[name=verdict]');
        field.value = 'failed';
        field.dispatchEvent(new Event('input', { bubbles: true }));
        document.querySelector('button[type=reset]').click();
        field.value = 'failed';
        field.dispatchEvent(new Event('input', { bubbles: true }));
        """
    )
    browser.wait(f"{SHOWN} === '1 line, 1 connection of 11'")
    assert address(browser) == "?view=table&verdict=failed"
    browser.open(browser.run("location.href"))
    browser.wait(f"{SHOWN} === '1 line, 1 connection of 11'")
    assert browser.run("document.querySelector('[name=verdict]').value") == "failed"


def test_a_name_counts_once_it_is_complete(browser, page):
    show(browser, page)
    browser.run("document.querySelector('[name=service]').focus()")
    browser.command("Input.insertText", text="pay/api")
    browser.press("Enter")
    browser.wait(f"{SHOWN} === '1 line, 3 connections of 11'")
    assert address(browser) == "?service=pay%2Fapi"
    assert browser.run("document.querySelector('[role=status]').textContent") == (
        "1 line, 3 connections of 11"
    )


def label_of_focus(browser):
    """Without the rate, which changes every moment."""
    label = browser.run("document.activeElement.getAttribute('aria-label')")
    return re.sub(r", [\d.]+/\w+", "", label)


def test_the_keyboard_opens_and_closes_a_line(browser, page):
    show(browser, page)
    for _ in range(30):
        browser.press("Tab")
        if browser.run("document.activeElement.classList.contains('line')"):
            break
    focused = label_of_focus(browser)
    assert "connections" in focused
    browser.press("Enter")
    browser.wait("document.activeElement.id === 'panel-title'")
    assert "client=" in address(browser)
    assert browser.run("document.querySelectorAll('#panel .flows li').length") > 0
    browser.press("Escape")
    browser.wait("document.querySelector('#panel').hidden")
    assert address(browser) == ""
    assert label_of_focus(browser) == focused


def test_the_back_button_closes_a_line(browser, page):
    show(browser, page)
    browser.run("document.querySelector('.card').click()")
    browser.wait("!document.querySelector('#panel').hidden")
    browser.run("history.back()")
    browser.wait("document.querySelector('#panel').hidden")


def test_an_open_line_shows_its_flows_and_explains_them(browser, page):
    show(browser, page, "?client=workload%3Ashop%2Fcart&via=service%3Ashop%2Fbroken")
    browser.wait("document.querySelector('#panel .flows button')")
    panel = browser.text("#panel")
    assert "shop/cart → shop/broken → any pod" in panel
    assert "refused: no endpoint (1)" in panel
    assert "recorded on node1" in panel
    browser.run("document.querySelector('#panel .flows button').click()")
    browser.wait("document.querySelector('#panel pre').textContent.startsWith('node1$')")
    assert "fails: refused at the socket hook" in browser.text("#panel pre")


def test_a_screen_reader_gets_roles_and_names(browser, page):
    show(browser, page, "?view=table&client=workload%3Adev%2Fcurl")
    browser.wait("document.querySelector('#panel .flows li')")
    tree = browser.tree()
    assert ("alert", "") not in tree
    for found in (
        ("search", "Filters"),
        ("combobox", "Namespace"),
        ("combobox", "Verdict"),
        ("searchbox", "Text"),
        ("button", "Table"),
        ("table", "Connections by client, Service and pod"),
        ("columnheader", "Problems"),
        ("rowheader", "shop/cart to shop/broken to refused: no endpoint: details"),
        ("dialog", "dev/curl → any Service → any pod"),
        ("button", "Close"),
        ("image", "Last 5 minutes: 11 connections, 3 of them went wrong"),
    ):
        assert found in tree
    show(browser, page)
    buttons = [name for role, name in browser.tree() if role == "button"]
    assert any(name.startswith("dev/curl to pay/api: 3 connections, ") for name in buttons)
    assert not [name for name in buttons if not name]


def test_hostile_names_are_text(browser, page):
    page.agents.send(
        "node1",
        flow(client=f"{HOSTILE}/{HOSTILE}", service=f"{HOSTILE}/x", backend=f"{HOSTILE}/y"),
        dropped(HOSTILE, service=f"{HOSTILE}/x", client=f"{HOSTILE}/{HOSTILE}"),
    )
    lines = "6 lines, 13 connections"
    show(browser, page, lines=lines)
    assert f"{HOSTILE}/x" in [card[0] for card in cards(browser)]
    show(browser, page, "?view=table", lines)
    assert f"{HOSTILE}/{HOSTILE}" in [row[0] for row in table(browser)]
    browser.run(
        "[...document.querySelectorAll('tbody tr')]"
        ".find((row) => row.textContent.startsWith('<')).click()"
    )
    browser.wait("document.querySelector('#panel .flows li')")
    assert HOSTILE in browser.text("#panel")
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.title") == f"ebpflb: {CLUSTER}"


def test_no_flows(browser):
    with clean_page(browser, "node1") as page:
        page.agents.send("node1", "")
        browser.open(page.url)
        browser.wait("document.querySelector('#empty').textContent.startsWith('No flows yet.')")
        browser.wait(
            "document.querySelector('#nodes li').textContent === 'node1following, 0 flows'"
        )
        assert browser.run("document.querySelector('#map-view').hidden")


def test_nodes_that_do_not_answer_are_named(browser, page):
    page.agents.fail("node2", f"exec is forbidden {HOSTILE}")
    show(browser, page)
    browser.wait("document.querySelector('#nodes summary').textContent.includes('not answer')")
    assert browser.text("#nodes summary") == "2 nodes; node2 does not answer"
    browser.run("document.querySelector('#nodes summary').click()")
    assert f"does not answer: exec is forbidden {HOSTILE}" in browser.text("#nodes ul")


def test_no_node_answers(browser):
    with clean_page(browser, "node1") as page:
        page.agents.fail("node1", "exec is forbidden")
        browser.open(page.url)
        browser.wait("document.querySelector('#empty').textContent.startsWith('No node answers.')")
        assert "node1: exec is forbidden" in browser.text("#empty")


def test_500_services_and_5000_edges(browser):
    flows = [
        flow(client=f"team{n % 50}/client-{n % 1000}x", service=f"team{n % 50}/service-{n % 500}")
        for n in range(5000)
    ]
    with clean_page(browser, "node1", "node2") as page:
        page.agents.send("node1", *flows[:2500], refused(service="team7/broken"))
        page.agents.send("node2", *flows[2500:])
        show(browser, page, "?group=pod", "1,001 lines, 5,001 connections")
        assert browser.text("#targets") == "Pods"
        drawn = browser.run("document.querySelectorAll('*').length")
        assert drawn < 4000
        assert len(cards(browser)) <= 3 * 15 + 6
        names = [card[0] for card in cards(browser)]
        assert "team7/broken" in names
        assert "487 others" in names
        show(browser, page, "?view=table&group=pod", "1,001 lines, 5,001 connections")
        assert len(table(browser)) == 100
        assert "901 more rows with" in browser.text("#table-view .rest")
        browser.run("document.querySelector('#table-view .rest button').click()")
        browser.wait("document.querySelectorAll('#table-view tbody tr').length === 1001")


def test_the_command_has_ended(browser):
    with page_over("node1") as page:
        page.agents.send("node1", flow())
        show(browser, page, lines="1 line, 1 connection")
    browser.wait("!document.querySelector('#trouble').hidden")
    assert "has ended" in browser.text("#trouble")
    browser.leave()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser, page, scheme):
    browser.prefer(scheme)
    show(browser, page)
    pairs = {
        "body": "body",
        ".card .rate": ".card",
        ".card .namespace": ".card",
        ".card .trouble": ".card",
        ".card.nobody .name": ".card.nobody",
        "#shown": "body",
        "#summary .bad dd": "body",
    }
    for text, ground in pairs.items():
        assert (
            contrast(colour(browser, text, "color"), colour(browser, ground, "backgroundColor"))
            > 4.5
        )


def colour(browser, selector, what):
    found = browser.run(f"getComputedStyle(document.querySelector({json.dumps(selector)})).{what}")
    return [int(part) for part in found.removeprefix("rgb(").removesuffix(")").split(",")]


def contrast(one, other):
    """As WCAG defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(parts):
    lights = [part / 255 for part in parts]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in lights]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
