# SPDX-License-Identifier: Apache-2.0
"""How the page looks: contrast, names in little room, a window's height, a phone."""

import pytest

from tests.ui.colours import colour, contrast
from tests.ui.flows import flow
from tests.ui.page import clean_page, show


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
        "figcaption": "body",
    }
    for text, ground in pairs.items():
        found = colour(browser, text, "color"), colour(browser, ground, "backgroundColor")
        assert contrast(*found) > 4.5, text
    assert contrast(colour(browser, ".bars text", "fill"), background(browser)) > 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_and_bars_have_enough_contrast(browser, page, scheme):
    browser.prefer(scheme)
    show(browser, page)
    seen = [colour(browser, f".line.unwell .{each}", "stroke") for each in ("bad", "spine")]
    seen.append(colour(browser, ".line:not(.unwell) .spine", "stroke"))
    seen += [colour(browser, f".bars .{each}", "fill") for each in ("fine", "bad")]
    show(browser, page, "?verdict=forwarded", "2 lines, 8 connections of 11")
    seen.append(colour(browser, ".line .spine", "stroke"))
    assert min(contrast(each, background(browser)) for each in seen) >= 3


def background(browser):
    return colour(browser, "body", "backgroundColor")


def test_lines_without_problems_are_faint_beside_others(browser, page):
    def of_healthy(query, lines):
        show(browser, page, query, lines)
        return [
            contrast(colour(browser, f".line:not(.unwell) .{each}", "stroke"), background(browser))
            for each in ("fine", "spine")
        ]

    beside = of_healthy("", "4 lines, 11 connections")
    alone = of_healthy("?verdict=forwarded", "2 lines, 8 connections of 11")
    assert all(one < other for one, other in zip(beside, alone, strict=True))


SPANS = """
[...document.querySelector('.card .name').children]
    .map((part) => [part.textContent, part.scrollWidth > part.clientWidth])
"""


def test_of_a_long_name_the_middle_is_cut(browser):
    name = "monitoring-and-alerting/prometheus-server-with-a-long-name-7d4b9c6f5-x2x4z"
    with clean_page(browser, "node1") as page:
        browser.resize(700, 800)
        page.agents.send("node1", flow(client=name))
        show(browser, page, "?group=pod", "1 line, 1 connection")
        assert browser.run(SPANS) == [
            ["moni", False],
            ["toring-and-alerting", True],
            ["/", False],
            ["prometheus-server-with-a-long-name-7d4b9c6f5", True],
            ["-x2x4z", False],
        ]
        end = "document.querySelector('.card .name').lastElementChild.getBoundingClientRect().right"
        room = "document.querySelector('.card .rate').getBoundingClientRect().left"
        assert browser.run(f"{end} <= {room}")


@pytest.mark.parametrize(
    ("group", "heads"),
    [
        ("workload", ["Clients", "Services", "Workloads"]),
        ("namespace", ["Client namespaces", "Service namespaces", "Pod namespaces"]),
        ("node", ["Client nodes", "Services", "Pod nodes"]),
    ],
)
def test_heads_follow_the_grouping(browser, page, group, heads):
    def texts(selector):
        script = f"[...document.querySelectorAll('{selector}')].map((each) => each.textContent)"
        browser.wait(f"document.querySelector('{selector}').textContent")
        return browser.run(script)

    browser.open(f"{page.url}?group={group}")
    assert texts("#heads span") == heads
    browser.open(f"{page.url}?group={group}&view=table")
    assert [f"{each}s" for each in texts("thead button")[:3]] == heads


def test_cards_use_the_height_of_the_window(browser, page):
    def lowest(height):
        browser.resize(1280, height)
        show(browser, page)
        return browser.run(
            "Math.max(...[...document.querySelectorAll('.card')]"
            ".map((card) => card.getBoundingClientRect().bottom))"
        )

    assert lowest(700) < 700 - 20
    assert lowest(1100) > lowest(700)


def widths(browser, selector):
    return browser.run(
        f"[...document.querySelectorAll('{selector}')].map((each) => each.scrollWidth)"
    )


def test_a_phone(browser, page):
    browser.resize(390, 844)
    show(browser, page)
    assert browser.run("document.documentElement.scrollWidth <= 390")
    columns = browser.run(
        "[...new Set([...document.querySelectorAll('#summary dl > div')]"
        ".map((tile) => Math.round(tile.getBoundingClientRect().left)))].length"
    )
    assert columns == 2
    places = """
        [...document.querySelectorAll('#heads span')]
            .map((head) => Math.round(head.getBoundingClientRect().left))
    """
    cards = "[0, 1, 2].map((at) => document.querySelector(`.card[data-key^='${NAME[at]}=']`))"
    lefts = f"(() => {{ const NAME = ['client', 'via', 'target']; return {cards}"
    lefts += ".map((card) => Math.round(card.getBoundingClientRect().left)) })()"
    browser.run("document.querySelector('#map-view').scrollLeft = 200")
    assert browser.run(places) == browser.run(lefts)
    show(browser, page, "?view=table")
    assert browser.run("document.documentElement.scrollWidth <= 390")
    rows = browser.run(
        "[...document.querySelectorAll('tbody tr')].map((row) => row.children[1].clientHeight)"
    )
    heights = browser.run("document.querySelector('tbody td').getClientRects()[0].height")
    assert max(rows) < 3 * heights
    names = widths(browser, "tbody tr:first-child th, tbody tr:first-child td")
    assert min(names[:3]) > 60
