# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's rules are removed; established connections and the rules of others survive."""

import contextlib
import re
import socket
import time

import pytest

from ebpflb.dataplane.kube_proxy.chains import KEEPER
from ebpflb.dataplane.kube_proxy.iptables import KEEPER_TABLE
from ebpflb.dataplane.kube_proxy.removal import Removed, remove_kube_proxy
from ebpflb.errors import EbpflbError
from tests.bpf.attach.network import run
from tests.bpf.kube_proxy.gateway import (
    BACKENDS,
    LOADERS,
    NODE_PORT,
    SOON,
    VIP_PORT,
    Connection,
    Gateway,
    kube_proxy_names,
    load_iptables,
    ruleset,
    saved,
)
from tests.bpf.kube_proxy.rules import FAMILIES, rules

ALIKE = {
    "KUBE-FIREWALL",
    "KUBE-IPTABLES-HINT",
    "KUBE-KUBELET-CANARY",
    "KUBE-MARK-DROP",
    "KUBE-SERVICES-OF-MINE",
}


def without_keepers(text: str) -> str:
    """Rules without those that the removal adds to keep connections alive."""
    text = re.sub(rf"^(:{KEEPER} -|-A {KEEPER} .*)\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf"^\tchain {KEEPER} .*?^\t}}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(rf"^table \S+ {KEEPER_TABLE} .*?^}}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\n+", "\n", text)


def is_reached(gateway: Gateway, version: int, address: str, port: int) -> bool:
    with contextlib.suppress(OSError), gateway.listen(version):
        gateway.connect(address, port, SOON).close()
        return True
    return False


@pytest.mark.parametrize("place", LOADERS)
@pytest.mark.parametrize("version", FAMILIES)
@pytest.mark.parametrize("port", [VIP_PORT, NODE_PORT])
def test_an_established_connection_goes_on_and_a_new_one_is_not_made(gateway, place, version, port):
    LOADERS[place]()
    address = str(FAMILIES[version]["vip" if port == VIP_PORT else "node"])
    with contextlib.closing(Connection(gateway, version, address, port)) as connection:
        assert connection.client_as_seen == FAMILIES[version]["gateway"], (
            "the masquerade rule is missing"
        )
        assert connection.is_alive()
        removed = remove_kube_proxy(dry_run=False)
        assert removed.lines()
        assert connection.is_alive()
        assert not is_reached(gateway, version, address, port)
        time.sleep(0.2)
        assert connection.is_alive()


@pytest.mark.parametrize("place", LOADERS)
def test_without_a_keeper_the_connection_would_break(gateway, place):
    LOADERS[place]()
    names = FAMILIES[4]
    with contextlib.closing(Connection(gateway, 4, str(names["vip"]), VIP_PORT)) as connection:
        remove_kube_proxy(dry_run=False)
        assert connection.is_alive()
        if place == "nftables":
            run("nft", "delete", "table", "ip", KEEPER_TABLE)
        else:
            for command in ("-F", "-X"):
                run(f"iptables-{place}", "-t", "nat", command, KEEPER)
        assert not connection.is_alive(SOON)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_others_wrote_is_byte_for_byte_as_before(gateway, backend):
    load_iptables(backend, "others.iptables")
    run("nft", "-f", "-", stdin=rules("others.nft", {}))
    theirs, everything = saved(backend), ruleset()
    for load in LOADERS.values():
        load()
    assert kube_proxy_names(saved(backend)) > ALIKE
    removed = remove_kube_proxy(dry_run=False)
    after = {version: without_keepers(text) for version, text in saved(backend).items()}
    assert after == {version: without_keepers(text) for version, text in theirs.items()}
    other = BACKENDS[backend == BACKENDS[0]]
    assert kube_proxy_names(saved(other)) == set()
    if backend == "nft":
        assert without_keepers(ruleset()) == without_keepers(everything)
    else:
        assert "table ip kube-proxy {" not in ruleset()
        assert all(name in ruleset() for name in ("inet user", "ip kube-proxy-exporter"))
    assert removed.nftables == ("ip kube-proxy", "ip6 kube-proxy")
    assert removed.kept == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_counters_of_others_go_on(gateway, backend):
    run(f"iptables-{backend}", "-A", "OUTPUT", "-d", "127.0.0.9", "-j", "ACCEPT")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"counted", ("127.0.0.9", 9))
    LOADERS[backend]()
    remove_kube_proxy(dry_run=False)
    assert "[1:35] -A OUTPUT -d 127.0.0.9/32 -j ACCEPT" in run(f"iptables-{backend}-save", "-c")


@pytest.mark.parametrize("backend", BACKENDS)
def test_chains_that_other_rules_jump_to_are_kept(gateway, backend):
    LOADERS[backend]()
    for program in ("iptables", "ip6tables"):
        run(f"{program}-{backend}", "-t", "nat", "-N", "KUBE-HOSTPORTS")
        run(f"{program}-{backend}", "-t", "nat", "-A", "KUBE-HOSTPORTS", "-j", "KUBE-MARK-MASQ")
    removed = remove_kube_proxy(dry_run=False)
    assert kube_proxy_names(saved(backend)) == {
        "KUBE-HOSTPORTS",
        "KUBE-MARK-MASQ",
        "KUBE-POSTROUTING",
    }
    (kept,) = {
        text.split("\n-A POSTROUTING ")[1].split("\n")[0] for text in saved(backend).values()
    }
    assert kept.endswith("-j KUBE-POSTROUTING")
    expected = f"iptables-{backend} table nat: KUBE-MARK-MASQ, which KUBE-HOSTPORTS jumps to"
    assert expected in removed.kept
    assert not remove_kube_proxy(dry_run=False).lines()


def test_a_dry_run_shows_the_same_and_changes_nothing(gateway):
    for load in LOADERS.values():
        load()
    before = [saved(backend) for backend in BACKENDS], ruleset()
    would = remove_kube_proxy(dry_run=True)
    assert ([saved(backend) for backend in BACKENDS], ruleset()) == before
    assert remove_kube_proxy(dry_run=False) == would


def test_the_second_time_nothing_is_left_to_do(gateway):
    for load in LOADERS.values():
        load()
    tables = remove_kube_proxy(dry_run=False).iptables
    assert {(each.tool, each.table) for each in tables} == {
        (f"{program}-{backend}", table)
        for program in ("iptables", "ip6tables")
        for backend in BACKENDS
        for table in ("filter", "nat", "mangle")
    }
    before = [saved(backend) for backend in BACKENDS], ruleset()
    assert remove_kube_proxy(dry_run=False) == Removed()
    assert ([saved(backend) for backend in BACKENDS], ruleset()) == before


def test_where_nothing_was_nothing_is_made(gateway):
    assert remove_kube_proxy(dry_run=False) == Removed()
    assert ruleset() == ""
    assert [saved(backend) for backend in BACKENDS] == [{4: "", 6: ""}] * 2


def test_kube_proxy_can_come_back(gateway):
    for load in LOADERS.values():
        load()
        remove_kube_proxy(dry_run=False)
        load()
        with contextlib.closing(Connection(gateway, 4, "10.96.0.10", VIP_PORT)) as connection:
            assert connection.is_alive()
        assert remove_kube_proxy(dry_run=False).lines()


def test_a_table_is_changed_completely_or_not_at_all(gateway, monkeypatch):
    LOADERS["legacy"]()
    before = saved("legacy")
    monkeypatch.setattr(
        "ebpflb.dataplane.kube_proxy.chains.Removal.text",
        lambda what: f"*{what.table}\n" + "-F KUBE-SERVICES\n-X KUBE-NOT-THERE\nCOMMIT\n",
    )
    with pytest.raises(EbpflbError, match=r"^iptables-legacy-restore .*: .*KUBE-NOT-THERE|line 3"):
        remove_kube_proxy(dry_run=False)
    assert saved("legacy") == before
