# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser shows what agents sent."""

from msgspec import convert

from ebpflb.kubectl.ui.aside import Heard
from ebpflb.model.flow import ServiceRate
from tests.ui.flows import dropped, flow, refused
from tests.ui.page import CLUSTER, address, cards, clean_page, show, shown_lines, table
from tests.unit.kubectl.answers import backend, service

HOSTILE = '<img src=x onerror="document.title=1">'


def test_the_table_shows_what_was_sent(browser, page):
    show(browser, page, "?view=table")
    assert [row[:4] + row[6:7] for row in table(browser)] == [
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
        ["shop/cart", "▲ 38 %"],
        ["dev/curl", ""],
        ["shop/broken", "▲ 100 %"],
        ["shop/web", "▲ 29 %"],
        ["pay/api", ""],
        ["refused: no endpoint", ""],
        ["dropped: source range", ""],
        ["shop/web", "▲ 11 %"],
    ]
    assert browser.run("document.querySelectorAll('.line').length") == 7


def test_new_flows_appear_by_themselves(browser, page):
    show(browser, page)
    page.agents.send("node1", flow(client="dev/new"))
    browser.wait(shown_lines("5 lines, 12 connections"))
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
    browser.wait(shown_lines("1 line, 1 connection of 11"))
    assert address(browser) == "?view=table&verdict=failed"
    browser.open(browser.run("location.href"))
    browser.wait(shown_lines("1 line, 1 connection of 11"))
    assert browser.run("document.querySelector('[name=verdict]').value") == "failed"


def test_a_name_counts_once_it_is_complete(browser, page):
    show(browser, page)
    browser.run("document.querySelector('[name=service]').focus()")
    browser.command("Input.insertText", text="pay/api")
    browser.press("Enter")
    browser.wait(shown_lines("1 line, 3 connections of 11"))
    assert address(browser) == "?service=pay%2Fapi"
    assert browser.run("document.querySelector('[role=status]').textContent") == (
        "1 line, 3 connections of 11"
    )


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
        ("button", "Copy command"),
    ):
        assert found in tree
    bars = [name for role, name in tree if role == "group" and name.startswith("5 minutes until ")]
    assert [name.partition(": ")[2] for name in bars] == [
        "11 connections, 3 with problems",
        "3 connections, 0 with problems",
    ]
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
        assert browser.text("#heads span:last-child") == "Pods"
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


COPIED = """
navigator.clipboard.writeText = async (text) => { document.body.dataset.copied = text; };
document.querySelector('#copy').click();
"""


def test_the_command_for_a_terminal_is_copied(browser, page):
    copied = "document.body.dataset.copied"
    show(browser, page, "?namespace=pay&verdict=forwarded", "1 line, 3 connections of 11")
    browser.run(COPIED)
    browser.wait(copied)
    head = "kubectl ebpflb flows --context main"
    assert browser.run(copied) == f"{head} -n pay --verdict forwarded --since 1m"
    assert browser.text("#copy") == "Copied"
    show(browser, page, "?via=service%3Ashop%2Fbroken")
    browser.wait("document.querySelector('#panel .flows button')")
    browser.run(COPIED)
    browser.wait(copied)
    assert browser.run(copied) == f"{head} -A --service shop/broken --since 1m"
    browser.run("document.querySelector('#panel .flows button').click()")
    browser.wait("document.querySelector('#panel pre').textContent.startsWith('node1$')")
    browser.run("document.querySelector('#panel pre').previousElementSibling.click()")
    browser.wait(f"{copied}.includes('explain')")
    assert browser.run(copied).startswith("kubectl ebpflb explain --context main -n shop --node ")


TWICE = """
navigator.clipboard.writeText = async () => {};
document.later = [];
window.setTimeout = (then, ms) => ms === 1500 && document.later.push(then);
(async () => {
  for (const _ of [1, 2]) {
    document.querySelector('#copy').click();
    await Promise.resolve();
  }
})();
"""


def test_a_button_that_is_pressed_again_has_its_name_back(browser, page):
    show(browser, page)
    browser.run(TWICE)
    browser.wait("document.later.length === 2")
    assert browser.text("#copy") == "Copied"
    browser.run("document.later.forEach((then) => then())")
    assert browser.text("#copy") == "Copy command"


def test_the_last_bar_which_has_not_ended_yet_is_that_of_now(browser, page):
    show(browser, page, "?window=300")
    browser.run(
        "[...document.querySelectorAll('#summary .bars g[role=button]')].at(-1)"
        ".dispatchEvent(new Event('click'))"
    )
    browser.wait("!location.search.includes('window')")
    assert "until" not in address(browser)
    assert browser.run("document.querySelector('#trouble').hidden")


def test_services_show_what_they_have_open(browser):
    active = convert(service(backend("10.1.0.1"), namespace="shop", active=1234), ServiceRate)
    with clean_page(browser, "node1", rates=lambda: Heard([active])) as page:
        page.agents.send("node1", flow(), flow(service="shop/new"))
        show(browser, page, "?view=table&via=service%3Ashop%2Fweb", "2 lines, 2 connections")
        browser.wait("document.querySelector('.active b').textContent === '1,234'")
        assert {row[1]: row[5] for row in table(browser)} == {
            "shop/new": "\N{EN DASH}",
            "shop/web": "1,234",
        }
        browser.wait(
            "document.querySelector('#panel .facts').innerText.includes('1,234 of the Service')"
        )


def test_the_legend_explains_what_is_drawn(browser, page):
    show(browser, page)
    assert not browser.run("document.querySelector('#legend dl').checkVisibility()")
    browser.run("document.querySelector('#legend summary').click()")
    assert "The share of connections with problems." in browser.text("#legend dl")
