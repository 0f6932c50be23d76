# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: the page of `kubectl ebpflb ui` with a small shop's traffic, light and dark."""

from pathlib import Path

from ebpflb.kubectl.ui.traffic import EdgeTraffic
from tests.ui.browser import Browser
from tests.ui.flows import of_node
from tests.ui.page import page_over
from tests.ui.shop import NODES, SECONDS, traffic

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
_BAD_LINE = "?client=workload%3Ashop%2Freport&via=service%3Ashop%2Finvoices"
_EXPLAIN = "document.querySelector('#panel .flows button').click()"
_IS_EXPLAINED = "document.querySelector('#panel pre').textContent.includes('agree')"
_NODES_ARE_KNOWN = (
    "document.querySelector('#nodes summary').textContent === '6 nodes; node-c2 does not answer'"
)


def main() -> None:
    """Make them all again."""
    now = [0.0]
    live = EdgeTraffic(lambda: now[0])
    for second, node, flow in traffic():
        now[0] = second
        live.add(of_node(node, flow))
    now[0] = SECONDS
    with page_over(*NODES, traffic=live) as page, Browser() as browser:
        for node in NODES[:-1]:
            page.agents.send(node, "")
        page.agents.fail(NODES[-1], "the pod is not running (CrashLoopBackOff)")
        for name, query, scheme in (
            ("map-light", "", "light"),
            ("line-dark", _BAD_LINE, "dark"),
            ("table-light", "?view=table", "light"),
        ):
            browser.prefer(scheme)
            browser.open(f"{page.url}{query}")
            browser.wait(_NODES_ARE_KNOWN)
            if query == _BAD_LINE:
                browser.run(_EXPLAIN)
                browser.wait(_IS_EXPLAINED)
            browser.picture(FOLDER / f"ui-{name}.png")


if __name__ == "__main__":
    main()
