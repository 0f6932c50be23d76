# SPDX-License-Identifier: Apache-2.0
"""Every path to a Service, on every kind of pod network and in every family: the demo's own
table.
"""

import pytest

from ebpflb.lab import demo
from ebpflb.lab.demo_rows import DemoRow
from tests.e2e.harness.in_force import wait_in_force

# The rows of one family: to a ClusterIP, to a NodePort, and to a Service without pods.
ROWS_PER_FAMILY = 15


@pytest.fixture(scope="module")
def rows(network) -> list[DemoRow]:
    """The demo's table on this network."""
    demo.write_services(network.lab)
    wait_in_force(network.nodes)
    return list(demo.path_rows(network.lab))


@pytest.mark.only_in(dsr="off")  # The table shows the client that pods see.
def test_every_way_ends_where_it_should(rows):
    assert [row for row in rows if not row.is_right] == []


def test_the_table_has_every_path(network, rows):
    assert len({row.what for row in rows}) == ROWS_PER_FAMILY * len(network.versions)
