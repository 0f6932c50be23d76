# SPDX-License-Identifier: Apache-2.0
"""A relay, and nodes that answer otherwise."""

import pytest

from tests.unit.kubectl.relay.fake_relay import FakeRelay, say_everything


@pytest.fixture
def relay(objects):
    return FakeRelay(objects)


@pytest.fixture
def three(nodes):
    """They have something to say of everything."""
    say_everything(nodes)
    return nodes
