# SPDX-License-Identifier: Apache-2.0
"""The page without a mouse."""

import re

import pytest

from tests.ui.page import address, show

FOCUSED = "document.activeElement"


def label_of_focus(browser):
    """Without the rate, which changes every moment."""
    label = browser.run(f"{FOCUSED}.getAttribute('aria-label') ?? {FOCUSED}.title")
    return re.sub(r", [\d.]+/\w+", "", label)


def tab_to(browser, selector):
    for _ in range(30):
        browser.press("Tab")
        if browser.run(f"{FOCUSED}.matches('{selector}')"):
            return
    raise AssertionError(f"no tab stop is {selector}")


def test_a_line_is_opened_and_closed(browser, page):
    show(browser, page)
    tab_to(browser, ".card")
    assert (
        label_of_focus(browser)
        == "shop/cart: 8 connections, ▲ 38 %: 1 failed, 1 refused, 1 dropped"
    )
    browser.press("ArrowRight")
    focused = label_of_focus(browser)
    assert focused.startswith("shop/cart to shop/")
    browser.press("Enter")
    browser.wait(f"{FOCUSED}.id === 'panel-title'")
    assert "client=" in address(browser)
    assert browser.run("document.querySelectorAll('#panel .flows li').length") > 0
    browser.press("Escape")
    browser.wait("document.querySelector('#panel').hidden")
    assert address(browser) == ""
    assert label_of_focus(browser) == focused


def test_the_map_is_one_tab_stop_and_arrows_move_on_it(browser, page):
    show(browser, page)
    tab_to(browser, ".card")
    stops = "document.querySelectorAll('#map [tabindex=\"0\"]').length"
    assert browser.run(stops) == 1
    begun = label_of_focus(browser)
    browser.press("ArrowDown")
    assert label_of_focus(browser).startswith("dev/curl: 3 connections")
    browser.press("ArrowRight")
    assert label_of_focus(browser).startswith("dev/curl to pay/api: 3 connections")
    browser.press("ArrowRight")
    assert label_of_focus(browser).startswith("pay/api: 3 connections")
    browser.press("ArrowRight", 2)
    assert label_of_focus(browser).startswith("shop/web: 9 connections")
    browser.press("ArrowRight")
    browser.press("ArrowUp", 9)
    assert browser.run(stops) == 1
    browser.press("ArrowLeft", 4)
    browser.press("ArrowUp")
    assert label_of_focus(browser) == begun
    browser.press("Tab")
    assert not browser.run(f"document.querySelector('#map').contains({FOCUSED})")


def test_bars_are_one_tab_stop_which_opens_a_minute(browser, page):
    show(browser, page)
    tab_to(browser, ".bars g[role=button]")
    last = browser.run(f"{FOCUSED}.dataset.key")
    browser.press("ArrowLeft", 2)
    assert browser.run(f"Number({FOCUSED}.dataset.key)") == int(last) - 40
    browser.press("Enter")
    browser.wait("location.search.includes('until=')")
    end = browser.run("Date.parse(new URLSearchParams(location.search).get('until')) / 1000")
    assert end == int(last) - 20


@pytest.mark.parametrize(
    ("stop", "moves", "opened"),
    [
        (".bars g[role=button]", ("ArrowLeft", "ArrowLeft"), "until="),
        (".card", ("ArrowRight",), "client="),
    ],
)
def test_the_space_bar_opens_what_enter_opens(browser, page, stop, moves, opened):
    show(browser, page)
    tab_to(browser, stop)
    for each in moves:
        browser.press(each)
    browser.press(" ")
    browser.wait(f"location.search.includes('{opened}')")
