# SPDX-License-Identifier: Apache-2.0
"""A node of the test's own, into which the test's thread is put."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.bpf.attach.network import Network
from tests.bpf.kube_proxy.gateway import Gateway


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """Without any rules."""
    with contextlib.ExitStack() as stack:
        yield Gateway(Network(stack))
