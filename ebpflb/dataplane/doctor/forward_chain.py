# SPDX-License-Identifier: Apache-2.0
"""Whether netfilter drops what the node forwards to its pods.

If a chain at FORWARD drops by policy, a rule must accept connections to pods. kube-proxy's
iptables mode added rules that accept what it masqueraded; we add none. Only certain problems are
reported: a rule with a condition that is not understood is assumed to accept.
"""

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ebpflb.dataplane.attach.classify import PAIRS
from ebpflb.dataplane.attach.devices import NetworkState
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.rtnetlink import Interface, Rtnetlink, read_interfaces
from ebpflb.dataplane.kube_proxy.chains import Table, parse
from ebpflb.dataplane.kube_proxy.iptables import parse_json, saved_rules
from ebpflb.dataplane.kube_proxy.tools import program_path, run_if_supported
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Family

FORWARD = "forward"

_CHAIN = "FORWARD"
# kube-proxy's mark, which packets to pods of this node do not have.
_MARK = "0x4000/0x4000"
_ADVICE = "have the CNI accept traffic to and from pod addresses, or add rules that do"
_FAMILIES = {"ip": (Family.IPV4,), "ip6": (Family.IPV6,), "inet": tuple(Family)}


# Expressions of nft that accept, or that may.
_UNCERTAIN = {"accept", "vmap", "queue", "xt"}


class Way(NamedTuple):
    """The devices through which packets to pods arrive, and may leave; empty if unknown."""

    into: Collection[str]
    out: Collection[str]


def check_forward_chain(network: NetworkState) -> list[Finding]:
    """Checks the calling thread's namespace. OSError, EbpflbError."""
    with Rtnetlink() as netlink:
        way = way_to_pods(network, read_interfaces(netlink))
    found = [*_of_iptables(network, way), *_of_nft(network, way)]
    return all_well(FORWARD, "no FORWARD policy drops traffic to pods", found)


def way_to_pods(network: NetworkState, interfaces: Collection[Interface]) -> Way:
    """The kernel routes to a pod's device, the bridge above it, or another device of a CNI.

    A bridge without pods belongs to something else (Docker), and a card or tunnel leads elsewhere.
    """
    kinds = {ifindex: device.kind for ifindex, device in network.devices.items()}
    hosts = [each for each in interfaces if kinds.get(each.ifindex) == DeviceKind.LB_DEVICE_HOST]
    pods = [each for each in interfaces if kinds.get(each.ifindex) == DeviceKind.LB_DEVICE_WORKLOAD]
    elsewhere = {each.ifindex for each in hosts if each.kind not in PAIRS}
    above = {each.upper for each in pods}
    out = [
        each.name
        for each in interfaces
        if not (each.loopback or each.ifindex in elsewhere)
        and (each.kind != "bridge" or each.ifindex in above)
    ]
    return Way([each.name for each in hosts], out if pods else [])


def _of_iptables(network: NetworkState, way: Way) -> Iterator[Finding]:
    for tool, saved in saved_rules():
        family = Family.IPV6 if tool.startswith("ip6") else Family.IPV4
        tables = [table for table in parse(saved) if table.name == "filter"]
        is_asked = "-j NFQUEUE" in saved
        if family in network.primary and not is_asked and any(drops(each, way) for each in tables):
            yield _finding(f"{tool} chain {_CHAIN}", way)


def _finding(where: str, way: Way) -> Finding:
    into = examples(way.into) if way.into else "outside"
    what = (
        f"the policy is DROP and no rule accepts new connections from {into} to pods: connections "
        "to pods here from outside or other nodes time out"
    )
    return Finding(Severity.WARNING, FORWARD, where, what, _ADVICE)


def drops(table: Table, way: Way) -> bool:
    """Whether this iptables table drops new connections to pods by policy."""
    return table.chains.get(_CHAIN) == "DROP" and not _accepts(table, _CHAIN, way, set())


def _accepts(table: Table, chain: str, way: Way, seen: set[str]) -> bool:
    seen.add(chain)
    rules = (rule for rule in table.rules if rule.chain == chain)
    targets = [rule.target for rule in rules if _may_match(shlex.split(rule.text), way)]
    return "ACCEPT" in targets or any(
        _accepts(table, target, way, seen)
        for target in targets
        if target in table.chains and target not in seen
    )


def _may_match(words: Sequence[str], way: Way) -> bool:
    """Whether a rule, in words of iptables-save, may match the first packet to a pod."""
    conditions: Mapping[str, Callable[[str], bool]] = {
        "-i": lambda pattern: _names_one(pattern.replace("+", "*"), way.into),
        "-o": lambda pattern: _names_one(pattern.replace("+", "*"), way.out),
        "--ctstate": lambda states: "NEW" in states.split(","),
        "--mark": lambda mark: mark != _MARK,
        # Does not match: it is for a single host.
        "-s": lambda source: not source.endswith(("/32", "/128")),
    }
    return all(
        is_met(words[place + 1]) != (words[place - 1] == "!")
        for option, is_met in conditions.items()
        if option in words and (place := words.index(option))
    )


def _names_one(pattern: str, devices: Collection[str]) -> bool:
    return not devices or any(fnmatchcase(name, pattern) for name in devices)


def _of_nft(network: NetworkState, way: Way) -> Iterator[Finding]:
    """Base chains outside the tables of iptables-nft."""
    nft = program_path("nft")
    if nft is None:
        return
    for chain in parse_json(run_if_supported(nft, "--json", "list", "chains"), "chain"):
        families = _FAMILIES.get(chain["family"], ())
        if not _drops_forwarded(chain) or not network.primary.keys() & families:
            continue
        place = [chain["family"], chain["table"]]
        rules = parse_json(run_if_supported(nft, "--json", "list", "table", *place), "rule")
        if not nft_accepts(rules, chain["name"], way):
            yield _finding(f"nft chain {' '.join([*place, chain['name']])}", way)


def _drops_forwarded(chain: Mapping[str, Any]) -> bool:
    is_of_iptables = chain["table"] == "filter" and chain["name"] == _CHAIN
    return (chain.get("hook"), chain.get("policy")) == ("forward", "drop") and not is_of_iptables


def nft_accepts(rules: Sequence[Mapping[str, Any]], chain: str, way: Way) -> bool:
    """Whether a rule of this chain, or of one it jumps to, may accept. rules: nft's JSON."""
    for rule in rules:
        if rule["chain"] == chain and all(_may_hold(each, way) for each in rule["expr"]):
            for each in rule["expr"]:
                target = (each.get("jump") or each.get("goto") or {}).get("target")
                if _UNCERTAIN & each.keys() or (target and nft_accepts(rules, target, way)):
                    return True
    return False


def _may_hold(expression: Mapping[str, Any], way: Way) -> bool:
    """Whether the first packet to a pod may match this part of a rule."""
    match = expression.get("match")
    if not match or not isinstance(match["left"], Mapping):
        return True
    left = [each for each in match["left"].values() if isinstance(each, Mapping)]
    key = str(left[0].get("key") or left[0].get("field")) if left else ""
    wanted = _values(match["right"])
    conditions: Mapping[str, Callable[[], bool]] = {
        "iifname": lambda: any(_names_one(each, way.into) for each in wanted),
        "oifname": lambda: any(_names_one(each, way.out) for each in wanted),
        "state": lambda: "new" in wanted,
        "saddr": lambda: False,
    }
    is_met = conditions.get(key)
    return is_met is None or not wanted or is_met() == (match["op"] != "!=")


def _values(right: Any) -> list[str]:
    """The names that a match compares with; empty if it has another form."""
    found = right.get("set", []) if isinstance(right, Mapping) else right
    found = found if isinstance(found, list) else [found]
    return found if all(isinstance(each, str) and each[0] != "@" for each in found) else []
