# SPDX-License-Identifier: Apache-2.0
"""Servers that end with their test."""

from contextlib import ExitStack
from typing import Any

import pytest

from ebpflb.web.answers import Answer, StreamedAnswer
from tests.unit.web.served import OK, Served


@pytest.fixture
def serve(http_server):
    with ExitStack() as stack:

        def start(answer: Answer | StreamedAnswer = OK, **options: Any) -> Served:
            made = Served(http_server, answer, **options)
            stack.callback(http_server.close, made.socket)
            return made

        yield start
