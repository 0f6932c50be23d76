# SPDX-License-Identifier: Apache-2.0
import threading
import time

import pytest

from ebpflb.observe.http.server import Answer
from ebpflb.observe.metrics.shared_page import SharedPage

SECONDS = 10


class Pages:
    """Makes pages that are all different."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.made = 0
        self.now = 100.0

    def __call__(self) -> Answer:
        time.sleep(self.seconds)
        self.made += 1
        return Answer(str(self.made).encode())


def test_a_page_is_shared_for_a_second():
    pages = Pages()
    page = SharedPage(pages, lambda: pages.now)
    assert page() is page()
    pages.now += 0.9
    assert page().body == b"1"
    pages.now += 0.1
    assert page().body == b"2"


def test_a_hundred_who_ask_at_once_cost_one_page():
    pages = Pages(0.05)
    page = SharedPage(pages)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(page().body)) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == [b"1"] * 100


def test_a_page_that_cannot_be_made_does_not_block_the_next():
    broken = [ValueError("broken")]

    def make() -> Answer:
        if broken:
            raise broken.pop()
        return Answer(b"page")

    page = SharedPage(make)
    with pytest.raises(ValueError, match="broken"):
        page()
    assert page().body == b"page"
