# SPDX-License-Identifier: Apache-2.0
"""The output of `ebpflb explain` on a node."""

import json

from ebpflb.lab import LabNode, Member
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.command import ebpflb


def explained(node: LabNode, source: str, target: str, status: int):
    """The output; its exit status is checked."""
    done = ebpflb(node, "explain", source, target, "-o", "json", **socket_of(node))
    assert done.returncode == status, done
    found = json.loads(done.stdout)
    if found["model"]["unasked"] == "":
        assert found["agree"] is (status != 3), found["differences"]
    return found


def socket_of(node: LabNode) -> dict[str, str]:
    return {"EBPFLB_QUERY_SOCKET": str(node.query_socket), "EBPFLB_BPFFS_ROOT": str(node.bpffs)}


def place(address: str, port: int, protocol: str = "tcp") -> str:
    return f"{f'[{address}]' if ':' in address else address}:{port}/{protocol}"


def source_of(member: Member, version: int) -> str:
    return "host" if isinstance(member, LabNode) else address_of(member, version)
