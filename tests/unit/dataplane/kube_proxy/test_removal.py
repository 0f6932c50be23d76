# SPDX-License-Identifier: Apache-2.0
"""Which tools are run, and the messages for missing and failing ones."""

import shutil

import pytest

from ebpflb.dataplane.kube_proxy import tools
from ebpflb.dataplane.kube_proxy.removal import Removed, RemovedRules, remove_kube_proxy
from ebpflb.errors import EbpflbError, ProbeError

PROGRAMS = [
    f"{program}-{kind}" for program in ("iptables", "ip6tables") for kind in ("legacy", "nft")
]
SAVED = "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n"
CHAIN = '{"nftables": [{"chain": {"family": "ip6", "table": "nat", "name": "KUBE-SERVICES"}}]}'


class Machine:
    """A directory with programs, and a /proc/net."""

    def __init__(self, path):
        self.path = path

    def install(self, name, prints="", *, fails=""):
        """A program that prints something, or fails with something; it notes what it is given."""
        program = self.path / name
        (self.path / f"{name}.prints").write_text(fails or prints)
        to, status = ("2", 1) if fails else ("1", 0)
        program.write_text(f'#!/bin/sh\ncat >"$0.given"\ncat "$0.prints" >&{to}\nexit {status}\n')
        program.chmod(0o755)

    def install_iptables(self, name, saved=""):
        self.install(f"{name}-save", saved)
        self.install(f"{name}-restore")

    def given(self, name):
        """What a program has read."""
        return (self.path / f"{name}.given").read_text()


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    only = tmp_path.joinpath
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name, **_: str(only(name)) if only(name).exists() else None,
    )
    monkeypatch.setattr(tools, "_PROC_NET", tmp_path)
    return Machine(tmp_path)


def test_without_any_tool_and_anything_to_see_that_is_said(machine):
    missing = [*PROGRAMS, "nft", "ipset"]
    assert remove_kube_proxy(dry_run=False) == Removed(
        unseen=tuple(f"{name} is not installed" for name in missing)
    )


def test_with_all_tools_and_nothing_to_see_nothing_is_said(machine):
    for name in PROGRAMS:
        machine.install_iptables(name)
    machine.install("nft", '{"nftables": []}')
    machine.install("ipset")
    assert remove_kube_proxy(dry_run=False) == Removed()


def test_a_legacy_table_needs_the_legacy_tool(machine):
    (machine.path / "ip_tables_names").write_text("nat\nfilter\n")
    with pytest.raises(ProbeError, match=r"iptables-legacy-save is not installed.*table nat"):
        remove_kube_proxy(dry_run=True)
    machine.install_iptables("iptables-legacy")
    assert remove_kube_proxy(dry_run=True).iptables == ()


def test_a_chain_that_nft_sees_needs_iptables(machine):
    machine.install("nft", CHAIN)
    with pytest.raises(ProbeError, match=r"ip6tables-nft-save is not installed.*ip6 nat KUBE-SERV"):
        remove_kube_proxy(dry_run=True)


def test_virtual_services_need_ipvsadm(machine):
    (machine.path / "ip_vs").write_text("TCP  C0000201:7580 rr\n")
    machine.install("ipset", "create KUBE-NODE-PORT-TCP bitmap:port\nadd KUBE-NODE-PORT-TCP 30080")
    with pytest.raises(ProbeError, match=r"ipvsadm is not installed.*192\.0\.2\.1:30080"):
        remove_kube_proxy(dry_run=True)
    machine.install("ipvsadm")
    assert remove_kube_proxy(dry_run=True).virtual_services == ("TCP 192.0.2.1:30080",)


@pytest.mark.parametrize(
    ("version", "missing"),
    [("iptables-save v1.8.9 (nf_tables)", "legacy"), ("iptables-save v1.6.1", "nft")],
)
def test_tools_without_a_backend_in_their_name_are_used(machine, version, missing):
    machine.install("iptables-restore")
    machine.install("iptables-save", f"{version}\n{SAVED}")
    removed = remove_kube_proxy(dry_run=False)
    assert removed.iptables == (RemovedRules("iptables", "filter", ("KUBE-FORWARD",), ()),)
    assert f"iptables-{missing} is not installed" in removed.unseen
    assert machine.given("iptables-restore").startswith("*filter\n:KUBE-FORWARD")


def test_a_kernel_without_it_has_nothing_to_remove(machine):
    for name in PROGRAMS:
        machine.install_iptables(name)
    said = "iptables-nft-save: Failed to initialize nft: Protocol not supported"
    machine.install("iptables-nft-save", fails=said)
    machine.install(
        "nft", fails="netlink: Error: cache initialization failed: Operation not supported"
    )
    machine.install("ipset", fails="Cannot open session to kernel.")
    assert remove_kube_proxy(dry_run=False) == Removed()


def test_a_tool_that_fails_is_one_line_with_its_own_words(machine):
    machine.install_iptables("ip6tables-nft", SAVED)
    machine.install("ip6tables-nft-restore", fails="line 3: resource busy")
    with pytest.raises(EbpflbError, match=r"^ip6tables-nft-restore --noflush .*: line 3: resource"):
        remove_kube_proxy(dry_run=False)


def test_a_table_that_cannot_be_read_is_named(machine):
    text = "# Table `nat' is incompatible, use 'nft' tool.\n"
    machine.install_iptables("iptables-nft", text)
    unseen = remove_kube_proxy(dry_run=True).unseen
    assert "iptables-nft cannot read the table nat, which nft has changed" in unseen


def test_what_was_removed_has_a_line_for_each():
    removed = Removed(
        iptables=(RemovedRules("iptables-nft", "nat", ("KUBE-SERVICES",), ("-A 1", "-A 2")),),
        nftables=("ip kube-proxy",),
        virtual_services=("TCP 10.96.0.1:443",),
        devices=("kube-ipvs0",),
        ip_sets=("KUBE-CLUSTER-IP",),
    )
    assert removed.lines() == [
        "iptables-nft table nat: 1 chains, 2 jumps to them",
        "nftables table ip kube-proxy",
        "ipvs virtual service TCP 10.96.0.1:443",
        "device kube-ipvs0",
        "IP set KUBE-CLUSTER-IP",
    ]


def test_a_policy_that_drops_what_is_forwarded_is_warned_of(machine):
    machine.install_iptables("iptables-nft", SAVED.replace(":KUBE", ":FORWARD DROP [0:0]\n:KUBE"))
    (warning,) = remove_kube_proxy(dry_run=True).warnings
    assert warning.startswith("iptables-nft: the policy of FORWARD is DROP")
