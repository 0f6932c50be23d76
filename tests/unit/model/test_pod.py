# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.model.pod import Pod, PodSockets, names_by_address
from tests.builders import address


@pytest.mark.parametrize(
    ("pods", "names"),
    [
        ({}, {}),
        ({"shop/a": []}, {}),
        ({"shop/a": ["10.1.0.1", "fd00::1"]}, {"10.1.0.1": "shop/a", "fd00::1": "shop/a"}),
        ({"shop/a": ["10.0.0.1"], "x/b": ["10.0.0.1"]}, {"10.0.0.1": ""}),
        (
            {"shop/a": iter(["10.0.0.1", "10.1.0.1"]), "x/b": iter(["10.0.0.1"])},
            {"10.0.0.1": "", "10.1.0.1": "shop/a"},
        ),
        ({name: ["10.0.0.1"] for name in ("a/a", "b/b", "c/c")}, {"10.0.0.1": ""}),
    ],
)
def test_an_address_that_several_pods_share_is_no_name_for_them(pods, names):
    assert names_by_address(pods) == names


def test_of_pods_the_sockets_that_stay_alone_and_the_owners_of_addresses_are_known():
    out = Pod("shop", "out", (address("10.1.0.1"), address("fd00::1")), uid="u1")
    kept, unknown = Pod("shop", "in", (address("10.1.0.2"),), uid="u2"), Pod("shop", "no-uid")
    found = PodSockets.of(iter([out, kept, unknown]), lambda pod: pod.name != "out")
    assert found.tc_only == {address("10.1.0.1"), address("fd00::1")}
    assert found.uids == {
        **dict.fromkeys((address("10.1.0.1"), address("fd00::1")), "u1"),
        address("10.1.0.2"): "u2",
    }
