# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.layout.structs import STRUCTS, LbAddr, u8, u32, u64
from ebpflb.dataplane.view.dump import decode_map
from ebpflb.errors import PinError
from ebpflb.model.address import parse_address
from tests.memory_maps import MapShape, MemoryHash, memory_maps


@pytest.fixture
def maps():
    return memory_maps()


def addr(text: str) -> LbAddr:
    return LbAddr.from_buffer_copy(parse_address(text))


def put(maps, name, key, value):
    maps[name].update(bytes(key), bytes(value))


def decoded(maps, name):
    return [tuple(element) for element in decode_map(maps[name])]


def test_every_map_is_decoded_and_fit_for_json(maps):
    for name, spec in MAPS.items():
        if name == "lb_flows":
            continue
        put(maps, name, u32(0) if spec.key is u32 else spec.key(), b"\1" * maps[name].value_size)
        (element,) = decode_map(maps[name])
        json.dumps(element)


def test_zeros_of_arrays_do_not_come_out_but_those_of_hashes_do(maps):
    assert decoded(maps, "lb_descs") == []
    key = structs.LbFrontendKey(addr=addr("10.0.0.1"), port=80, proto=6)
    put(maps, "lb_frontends", key, u32(0))
    assert decoded(maps, "lb_frontends") == [({"addr": "10.0.0.1", "port": 80, "proto": "tcp"}, 0)]


def test_a_descriptor(maps):
    desc = structs.LbDesc(
        frontend=structs.LbFrontendKey(addr=addr("fd00::1"), port=53, proto=17),
        service=7,
        local=structs.LbRange(1, 2, 1, 5),
        others=structs.LbRange(0, 0, 2),
        type=2,
        flags=3,
        scheduler=1,
        affinity_timeout=60,
        source_ranges=5,
    )
    put(maps, "lb_descs", u32(4), desc)
    expected = {
        "frontend": {"addr": "fd00::1", "port": 53, "proto": "udp"},
        "service": 7,
        "local": {"base": 1, "count": 2, "if_empty": "refuse", "table": 5},
        "others": {"base": 0, "count": 0, "if_empty": "drop", "table": 0},
        "type": "node_port",
        "flags": ["internal_local", "external_local"],
        "scheduler": "round_robin",
        "affinity_timeout": 60,
        "source_ranges": 5,
    }
    assert decoded(maps, "lb_descs") == [(4, expected)]


@pytest.mark.parametrize(
    ("text", "length", "shown"), [("10.0.0.0", 104, "10.0.0.0/8"), ("fd03::", 16, "fd03::/16")]
)
def test_a_source_range_is_shown_without_the_bits_of_its_id(maps, text, length, shown):
    key = structs.LbSourceRange(length=32 + length, source_ranges=5, addr=addr(text))
    put(maps, "lb_src_ranges", key, u8(1))
    assert decoded(maps, "lb_src_ranges") == [({"source_ranges": 5, "range": shown}, 1)]


def test_the_backend_of_a_client(maps):
    key = structs.LbClientKey(7, addr("fd00::1"))
    put(maps, "lb_affinity", key, structs.LbAffinity(3, 2, 1_000_000_000))
    expected = {"backend": 3, "serial": 2, "last_used": 1_000_000_000}
    assert decoded(maps, "lb_affinity") == [({"service": 7, "client": "fd00::1"}, expected)]


def test_entries_come_in_the_order_of_their_keys(maps):
    for number in (256, 3, 70000):
        put(maps, "lb_netns", u64(number), structs.LbNetns())
        address = addr(f"10.0.{number % 251}.1")
        put(maps, "lb_addrs", address, u32(1))
    assert [key for key, _ in decoded(maps, "lb_netns")] == [3, 256, 70000]
    addresses = [parse_address(key) for key, _ in decoded(maps, "lb_addrs")]
    assert addresses == sorted(addresses)


def test_numbers_of_several_cpus_are_added_up(maps):
    counts = structs.LbCounts(connections=1, refused=2, dropped=3, reply=structs.LbTraffic(4, 5))
    maps["lb_count_front"].update(bytes(u32(1)), bytes(counts) * 2)
    ((_, summed),) = decoded(maps, "lb_count_front")
    assert (summed["connections"], summed["refused"], summed["dropped"]) == (2, 4, 6)
    assert summed["reply"] == {"packets": 8, "bytes": 10}
    key = structs.LbDropKey(DropReason.LB_DROP_NO_ROUTE, 4)
    maps["lb_count_drop"].update(bytes(key), bytes(u64(5)) * 2)
    assert decoded(maps, "lb_count_drop") == [({"reason": "no_route", "ifindex": 4}, 10)]


def test_texts_arrays_and_flags(maps):
    put(maps, "lb_names", u32(1), structs.LbName(b"default", b"web", b""))
    assert decoded(maps, "lb_names") == [(1, {"ns": "default", "service": "web", "port": ""})]
    settings = structs.LbSettings(flags=1)
    settings.snat_ports[0] = structs.LbPortRange(1, 2)
    put(maps, "lb_settings", u32(0), settings)
    found = decoded(maps, "lb_settings")[0][1]
    assert (found["flags"], found["snat_ports"]) == (["socket_host"], ["1-2", "0-0"])
    meta = structs.LbMeta(magic=1)
    meta.source[:] = bytes(range(32))
    put(maps, "lb_meta", u32(0), meta)
    assert decoded(maps, "lb_meta")[0][1]["source"] == bytes(range(32)).hex()


def test_what_is_known_of_addresses_and_uplinks(maps):
    put(maps, "lb_addr_flags", u32(0), structs.LbAddrState(5, addr("10.96.0.1")))
    known = {"flags": ["cluster_ip", "node"], "addr": "10.96.0.1"}
    assert decoded(maps, "lb_addr_flags") == [(0, known)]
    put(maps, "lb_dest_filter", u32(30080), structs.LbDest(flags=8, known=1))
    assert decoded(maps, "lb_dest_filter") == [(30080, {"flags": ["node_port"], "known": 1})]
    put(maps, "lb_uplinks", u32(2), structs.LbUplink(2, 2, addr("192.0.2.1"), addr("fd00::1")))
    uplink = {"ifindex": 2, "flags": ["subnets"], "snat4": "192.0.2.1", "snat6": "fd00::1"}
    uplink["mac"] = "000000000000"
    assert decoded(maps, "lb_uplinks") == [(2, uplink)]


def test_what_has_no_name_stays_a_number(maps):
    put(maps, "lb_devices", u32(1), structs.LbDevice(kind=9, flags=0x81))
    value = decoded(maps, "lb_devices")[0][1]
    assert (value["kind"], value["flags"]) == (9, ["ethernet", "0x80"])


def test_every_number_with_a_meaning_has_words():
    meaning = {
        *("proto", "type", "kind", "flags", "state", "hook", "direction", "if_empty"),
        *("other_state", "event", "path", "end", "scheduler"),
    }
    known = {(kind, name) for kind in STRUCTS.values() for name in kind.enums}
    fields = {(kind, name) for kind in STRUCTS.values() for name in structs.field_names(kind)}
    assert {each for each in fields if each[1] in meaning} | {
        (structs.LbDropKey, "reason")
    } == known
    assert enums.word(DropReason.LB_DROP_NO_ROUTE) == "no_route"


def test_a_map_of_another_version_is_refused(maps):
    strange = MemoryHash("lb_frontends", MapShape(MapType.HASH, 4, 4, 1))
    unknown = MemoryHash("lb_new", MapShape(MapType.HASH, 4, 4, 1))
    for each in (strange, unknown):
        with pytest.raises(PinError, match="made by another version"):
            decode_map(each)
