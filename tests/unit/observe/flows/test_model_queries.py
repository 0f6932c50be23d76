# SPDX-License-Identifier: Apache-2.0
from typing import NoReturn

import pytest

from ebpflb.errors import EbpflbError
from ebpflb.model.changes import Changes
from ebpflb.model.service import ServiceName
from ebpflb.observe.flows import queries
from ebpflb.observe.flows.queries import ask_model
from tests.builders import NODE, service


def test_the_thread_that_asks_gets_the_result():
    changes = Changes(NODE)
    changes.set(service("web"))
    found = ask_model(lambda asked: asked.answer(changes), lambda known: list(known.names()))
    assert found == [ServiceName("default", "web")]


def test_the_thread_that_asks_gets_the_error():
    def fail(_: Changes) -> NoReturn:
        raise KeyError("web")

    with pytest.raises(KeyError, match="web"):
        ask_model(lambda asked: asked.answer(Changes(NODE)), fail)


def test_nothing_is_reported_before_all_objects_were_read():
    with pytest.raises(EbpflbError, match="has not read all objects yet"):
        ask_model(lambda asked: asked.answer(None), Changes.names)


def test_a_busy_agent_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(queries, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(EbpflbError, match="busy"):
        ask_model(lambda _: None, Changes.names)
