# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.relay.redaction import A_NODE, ClusterAddresses, NamespaceSight

NODES = frozenset({"10.0.0.1", "192.0.2.10", "fd00::1"})


def sight(*, nodes=False, addresses=NODES) -> NamespaceSight:
    known = ClusterAddresses(addresses, (), False)
    return NamespaceSight("shop", lambda _: False, nodes, known)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("10.0.0.1", "a node"),
        ("from 10.0.0.1, by 192.0.2.10", "from a node, by a node"),
        ("10.0.0.1->10.0.0.1", "a node->a node"),
        ("10.0.0.1:8080", "a node:8080"),
        ("tcp:10.0.0.1:8080", "tcp:a node:8080"),
        ("(10.0.0.1).", "(a node)."),
        ("10.0.0.1.", "a node."),
        ("10.0.0.1/32", "a node/32"),
        ("10.0.0.1.nip.io", "a node.nip.io"),
        ("010.000.000.001", "a node"),
        ("::ffff:10.0.0.1", "a node"),
        ("[::FFFF:A00:1]:80", "[a node]:80"),
        ("64:ff9b::10.0.0.1", "64:ff9b::a node"),
        ("[fd00::1]:443", "[a node]:443"),
        ("fd00::1: no route", "a node: no route"),
        ("::ffff:a00:1: no route", "a node: no route"),
        ("via fd00::1.", "via a node."),
        ("FD00::1, Fd00:0:0:0:0:0:0:1, fd00::0001", "a node, a node, a node"),
        ("src:fd00::1", "src:a node"),
        ("to :fd00::1:", "to :a node:"),
        ("src=fd00::1;", "src=a node;"),
        ("fd00::1/64 fd00::1-fd00::2", "a node/64 a node-fd00::2"),
        ("fd00::1%eth0", "a node%eth0"),
        (r'"from\nfd00::1\tand\u001b10.0.0.1"', r'"from\na node\tand\u001ba node"'),
        (r'"\ffd00::1 \u000010.0.0.1 \x0afd00::1"', r'"\fa node \u0000a node \x0aa node"'),
    ],
)
def test_addresses_of_nodes_in_a_text(line, shown):
    assert sight().text(line) == sight().text(line.encode()) == shown
    assert sight(nodes=True).text(line) == sight(nodes=True).text(line.encode()) == line


@pytest.mark.parametrize(
    "line",
    [
        *(
            "10.0.0.12",
            "110.0.0.1",
            "10.0.0.1.5",
            "5.10.0.0.1",
            "10.0.0.10:80",
            "10.0.0",
            "ip-10-0-0-1",
        ),
        *(
            "fd00::12",
            "fd00::1:2",
            "fd00:1::1",
            "afd00::1",
            "[fd00::10]:80",
            "fd00::",
            "::1",
            "1::fd00",
        ),
        *("10:00:00", "aa:bb:cc:dd:ee:ff", ":::", "a:b:c", "::", ":", "", "x" * 1000, "node-1"),
        "bank/db, 100% of 10.244.1.2:8080 größer\n",
        "\\",
    ],
)
def test_other_texts_stay(line):
    assert sight().text(line) == sight().text(line.encode()) == line


def test_a_text_is_read_in_linear_time():
    for part in ("10.", "a:", ":", "1", "g:", "\\", "fd00::1:"):
        sight().text(part * 100_000)


def test_bytes_that_are_no_text():
    assert sight().text(b"\xff10.0.0.1\xff") == f"�{A_NODE}�"


def test_without_nodes_a_text_stays():
    assert sight(addresses=frozenset()).text("10.0.0.1") == "10.0.0.1"
