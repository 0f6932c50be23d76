# SPDX-License-Identifier: Apache-2.0
"""When the programs may reset unknown connections."""

import logging
from collections.abc import Container

import pytest

from ebpflb.dataplane.flows.unknown_connections import PERIOD_SECONDS, UnknownConnections
from ebpflb.dataplane.layout.enums import AddrFlag, SettingFlag
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.model.address import Address, parse_address
from tests.memory_maps import memory_maps

CLUSTER_IP, EXTERNAL_IP, BOTH, NODE, GONE = map(
    parse_address, ("10.96.0.1", "203.0.113.1", "203.0.113.2", "192.0.2.1", "2001:db8::1")
)
ADDRESSES = {
    CLUSTER_IP: AddrFlag.LB_ADDR_CLUSTER_IP,
    EXTERNAL_IP: AddrFlag.LB_ADDR_EXTERNAL,
    BOTH: AddrFlag.LB_ADDR_EXTERNAL | AddrFlag.LB_ADDR_NODE,
    NODE: AddrFlag.LB_ADDR_NODE,
    GONE: AddrFlag(0),
}
RESET = "nothing else translates connections to Services"
UNSEEN = "connection tracking has not been looked at yet"


class Kernel:
    """kube-proxy's rules, connection tracking and a clock."""

    def __init__(self) -> None:
        self.sign = ""
        self.translated = False
        self.refusal: OSError | None = None
        self.asked: list[Container[Address]] = []
        self.now = 0.0
        self.maps = memory_maps({"lb_addr_flags": 8})
        for index, (address, flags) in enumerate(ADDRESSES.items()):
            record = AddrRecord(int(flags), address).pack()
            self.maps["lb_addr_flags"].update(index.to_bytes(4, "little"), record)

    def rules(self) -> str:
        if self.refusal:
            raise self.refusal
        return self.sign

    def connections(self, addresses: Container[Address]) -> bool:
        self.asked.append(addresses)
        if self.refusal:
            raise self.refusal
        return self.translated

    def unknown(self, *, is_beside: bool = False) -> UnknownConnections:
        return UnknownConnections(
            is_beside=is_beside,
            rules=self.rules,
            translated=self.connections,
            clock=lambda: self.now,
        )


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def pass_over(kernel: Kernel, unknown: UnknownConnections) -> tuple[bool, str]:
    """One look at everything; returns whether they are reset, and why or why not."""
    unknown.follow_rules()
    unknown.look(kernel.maps)
    assert (unknown.flag is SettingFlag.LB_SETTING_RESETS) is (unknown.treatment.way == "reset")
    return bool(unknown.flag), unknown.treatment.why


def test_they_are_reset_once_everything_has_been_seen(
    kernel: Kernel, caplog: pytest.LogCaptureFixture
):
    unknown = kernel.unknown()
    assert (unknown.flag, unknown.treatment) == (SettingFlag(0), ("passed", UNSEEN))
    unknown.look(kernel.maps)
    assert kernel.asked == []
    with caplog.at_level(logging.INFO):
        unknown.follow_rules()
        unknown.look(kernel.maps)
        assert (caplog.text, unknown.treatment) == ("", ("reset", RESET))
        unknown.follow_rules()
        unknown.follow_rules()
    assert caplog.text.count("unknown connections to Services are reset") == 1
    assert kernel.asked == [{CLUSTER_IP, EXTERNAL_IP}]


def test_they_pass_until_netfilter_translates_none(kernel: Kernel):
    unknown = kernel.unknown()
    kernel.translated = True
    left = (False, "netfilter still translates connections to Services")
    assert pass_over(kernel, unknown) == left
    kernel.translated = False
    kernel.now = PERIOD_SECONDS - 1
    assert pass_over(kernel, unknown) == left
    kernel.now = PERIOD_SECONDS
    assert pass_over(kernel, unknown) == (True, RESET)
    kernel.now *= 2
    pass_over(kernel, unknown)
    assert len(kernel.asked) == 2


def test_they_pass_while_rules_of_kube_proxy_are_here(kernel: Kernel):
    unknown = kernel.unknown()
    kernel.sign = "chain KUBE-SERVICES of table nat"
    here = (False, f"kube-proxy's rules are here: {kernel.sign}")
    assert pass_over(kernel, unknown) == here
    assert kernel.asked == []
    kernel.sign = ""
    assert pass_over(kernel, unknown) == (True, RESET)
    kernel.sign = "chain KUBE-SERVICES of table nat"
    assert pass_over(kernel, unknown) == here


def test_what_was_seen_before_such_rules_came_counts_no_more(kernel: Kernel):
    unknown = kernel.unknown()
    assert pass_over(kernel, unknown) == (True, RESET)
    kernel.sign = "chain services of table kube-proxy"
    unknown.follow_rules()
    kernel.sign, kernel.translated = "", True
    unknown.follow_rules()
    assert unknown.treatment.why == UNSEEN
    assert not pass_over(kernel, unknown)[0]


def test_a_look_during_which_such_rules_come_counts_for_nothing(kernel: Kernel):
    unknown = kernel.unknown()
    unknown.follow_rules()

    def rules_come_and_go(_: Container[Address]) -> bool:
        for kernel.sign in ("chain services of table kube-proxy", ""):
            unknown.follow_rules()
        return False

    unknown._translated = rules_come_and_go
    unknown.look(kernel.maps)
    assert unknown.treatment.why == UNSEEN


def test_beside_another_proxy_they_always_pass(kernel: Kernel):
    unknown = kernel.unknown(is_beside=True)
    beside = (False, "another proxy serves Services beside this one")
    assert pass_over(kernel, unknown) == beside
    assert kernel.asked == []


def test_they_pass_where_the_kernel_does_not_tell(kernel: Kernel):
    unknown = kernel.unknown()
    kernel.refusal = PermissionError(1, "not permitted")
    cannot = (False, "kube-proxy's rules cannot be looked for: not permitted")
    assert pass_over(kernel, unknown) == cannot
    kernel.refusal = None
    unknown.follow_rules()
    kernel.refusal = PermissionError(1, "not permitted")
    unknown.look(kernel.maps)
    assert unknown.treatment.why == "connection tracking cannot be read: not permitted"
    assert not unknown.flag
