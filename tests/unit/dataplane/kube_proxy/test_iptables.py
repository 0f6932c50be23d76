# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.dataplane.kube_proxy.iptables import KEEPER_TABLE, parse_json, removal_text
from ebpflb.errors import EbpflbError

TABLES = json.dumps(
    {
        "nftables": [
            {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
            {"table": {"family": "ip", "name": "kube-proxy", "handle": 3}},
        ]
    }
)


def test_objects_of_one_kind_are_read():
    assert parse_json(TABLES, "table") == [{"family": "ip", "name": "kube-proxy", "handle": 3}]
    assert parse_json(TABLES, "chain") == []
    assert parse_json("", "table") == []


@pytest.mark.parametrize("answer", ["no json", "[]", "{}"])
def test_an_answer_of_another_form_is_one_line(answer):
    with pytest.raises(EbpflbError, match=r"^nft --json printed something else: .*$"):
        parse_json(answer, "table")


def test_the_keeper_is_there_before_the_table_goes():
    lines = removal_text(["ip", "ip6"]).splitlines()
    for family in ("ip", "ip6"):
        keeper = lines.index(f"add rule {family} {KEEPER_TABLE} unused ct state established return")
        assert keeper < lines.index(f"delete table {family} kube-proxy")
    assert removal_text([]) == ""
