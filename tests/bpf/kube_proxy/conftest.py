# SPDX-License-Identifier: Apache-2.0
"""A node for each test, in whose namespace the test's thread runs."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.bpf.attach.network import Network
from tests.bpf.kube_proxy.gateway import Gateway


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """A node without any rules."""
    with contextlib.ExitStack() as stack:
        yield Gateway(Network(stack))
