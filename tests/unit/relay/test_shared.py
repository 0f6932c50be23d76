# SPDX-License-Identifier: Apache-2.0
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ebpflb.errors import ClusterError
from ebpflb.relay import shared
from ebpflb.relay.shared import Shared


class Work:
    """Goes on until `end`. results: of one call after the other; the last remains."""

    def __init__(self, *results):
        self.results = list(results)
        self.calls = 0
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self):
        self.calls += 1
        self.begun.set()
        assert self.end.wait(60)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def waiting(monkeypatch):
    """Released whenever a thread begins to wait for another's work."""
    found = threading.Semaphore(0)

    class Watched(Future[str]):
        def result(self, timeout=None):
            if not self.done():
                found.release()
            return super().result(timeout)

    monkeypatch.setattr(shared, "Future", Watched)
    return found


def at_the_same_time(of, work, waiting, what="same"):
    """The futures of three threads that want it while the first is at it."""
    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(of.get, what, work)]
        assert work.begun.wait(60)
        found += [threads.submit(of.get, what, work) for _ in range(2)]
        for _ in range(2):
            assert waiting.acquire(timeout=60)
        work.end.set()
    return found


def test_what_several_want_at_the_same_time_is_done_once(waiting):
    work = Work("done")
    found = at_the_same_time(Shared(), work, waiting)
    assert [each.result() for each in found] == ["done"] * 3
    assert work.calls == 1


def test_an_error_reaches_all_and_afterwards_it_is_done_anew(waiting):
    of, work = Shared[str](), Work(ClusterError("no answer"), "done")
    found = at_the_same_time(of, work, waiting)
    assert [str(each.exception()) for each in found] == ["no answer"] * 3
    assert of.get("same", work) == "done"
    assert of.get("same", work) == "done"
    assert work.calls == 3


def test_different_work_does_not_wait():
    of, work = Shared[str](), Work("first")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(of.get, "first", work)
        assert work.begun.wait(60)
        assert of.get("second", lambda: "second") == "second"
        work.end.set()
        assert first.result() == "first"
