# SPDX-License-Identifier: Apache-2.0
"""One browser, and a page with a few flows of each kind."""

import pytest

from tests.ui.browser import Browser
from tests.ui.flows import dropped, failed, flow, refused
from tests.ui.page import clean_page


@pytest.fixture(scope="session")
def any_browser():
    with Browser() as made:
        yield made


@pytest.fixture
def browser(any_browser):
    """As wide as a laptop's, and light."""
    any_browser.resize(1280, 800)
    any_browser.prefer("light")
    return any_browser


@pytest.fixture
def page(browser):
    with clean_page(browser, "node1", "node2") as made:
        made.agents.send("node1", *[flow()] * 5, failed(), refused(service="shop/broken"))
        made.agents.send("node2", *[flow(client="dev/curl", service="pay/api")] * 3, dropped())
        yield made
