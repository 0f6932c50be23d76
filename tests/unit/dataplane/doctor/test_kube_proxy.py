# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.doctor.node import judge_kube_proxy, judge_kube_proxy_beside
from ebpflb.dataplane.kube_proxy.removal import Removed


def found(running=(), **left):
    return [(str(e.severity), e.where, e.what) for e in judge_kube_proxy(running, Removed(**left))]


def test_nothing_left_is_well_also_where_a_tool_is_missing():
    good, note = found(unseen=("nft is not installed",))
    assert good == ("ok", "", "not running, nothing left of it")
    assert note == ("note", "", "not looked at: nft is not installed")


def test_one_that_runs_and_what_is_left_are_warnings():
    assert found([7, 8], nftables=("ip kube-proxy",), kept=("chain X",)) == [
        ("warning", "process 7, 8", "kube-proxy runs here"),
        ("warning", "nftables table ip kube-proxy", "is left over from kube-proxy"),
        ("note", "chain X", "is kube-proxy's, but others use it"),
    ]


@pytest.mark.parametrize(
    ("running", "left", "expected"),
    [
        ([7], Removed(), ("ok", "process 7 serves what --service-selector 'a' leaves out")),
        (
            [],
            Removed(nftables=("ip kube-proxy",)),
            ("ok", "nftables table ip kube-proxy serves what --service-selector 'a' leaves out"),
        ),
        (
            [],
            Removed(),
            (
                "warning",
                "neither it nor its rules were found, but --service-selector 'a' leaves Services "
                "to it",
            ),
        ),
    ],
)
def test_one_beside_is_no_trouble_but_its_absence_is(running, left, expected):
    (finding,) = judge_kube_proxy_beside(running, left, "--service-selector 'a'")
    assert (str(finding.severity), finding.what) == expected
