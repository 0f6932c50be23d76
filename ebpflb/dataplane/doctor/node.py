# SPDX-License-Identifier: Apache-2.0
"""The node itself: its kernel features, sysctls and clock, and what kube-proxy left behind."""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.attach.forwarding import CILIUM
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.flows.source_ports import Ports
from ebpflb.dataplane.kernel.probe import FEATURES, Probe, Support
from ebpflb.dataplane.kube_proxy.removal import Removed, remove_kube_proxy
from ebpflb.dataplane.kube_proxy.tools import running_kube_proxies
from ebpflb.dataplane.layout.enums import DeviceKind, SettingFlag
from ebpflb.dataplane.layout.structs import LbSettings
from ebpflb.model.address import Family

SYSCTLS = "sysctls"

_NET = Path("/proc/sys/net")
_STRICT = 1
_NOTHING = "is 0: the node forwards nothing between pods and the outside"


def check_sysctls(
    network: NetworkState, node_ports: Ports, snat: Iterable[Ports], net: Path = _NET
) -> list[Finding]:
    """`snat`: the source ports that our programs use for SNAT. OSError."""
    devices = sorted(network.devices.values(), key=lambda device: device.name)
    found = [
        *_forwarding(network, devices, net),
        *_reverse_path(devices, net),
        *_route_localnet(net),
        *_ports(node_ports, list(snat), net),
    ]
    return all_well(SYSCTLS, "the node forwards, and ports do not overlap", found)


def _forwarding(network: NetworkState, devices: list[Device], net: Path) -> Iterator[Finding]:
    """IPv4 uses the setting of the incoming device, IPv6 only `all`."""
    if Family.IPV6 in network.primary:
        name = "net.ipv6.conf.all.forwarding"
        if _read(net, name) == "0":
            yield Finding(Severity.ERROR, SYSCTLS, name, _NOTHING, f"sysctl -w {name}=1")
    if Family.IPV4 in network.primary:
        place = "net.ipv4.conf"
        names = [device.name for device in devices]
        off = [name for name in names if _read_device(net, place, name, "forwarding") == "0"]
        if off and off == names:
            name = "net.ipv4.ip_forward"
            yield Finding(Severity.ERROR, SYSCTLS, name, _NOTHING, f"sysctl -w {name}=1")
        elif off:
            what = "is 0: the node forwards nothing that arrives there"
            where = f"{place}.*.forwarding of {examples(off)}"
            advice = f"sysctl -w {place}.{off[0]}.forwarding=1"
            yield Finding(Severity.WARNING, SYSCTLS, where, what, advice)


def _reverse_path(devices: Iterable[Device], net: Path) -> Iterator[Finding]:
    """The stricter of a device's value and `all` applies. With one uplink, strict is harmless."""
    hosts = [each for each in devices if each.kind == DeviceKind.LB_DEVICE_HOST and each.up]
    of_all = int(_read(net, "net.ipv4.conf.all.rp_filter"))
    strict = [
        each.name
        for each in hosts
        if max(of_all, int(_read_device(net, "net.ipv4.conf", each.name, "rp_filter") or 0))
        == _STRICT
    ]
    if strict and len(hosts) > 1:
        what = "is 1 (strict): packets whose replies would leave by another device are dropped"
        where = f"net.ipv4.conf.*.rp_filter of {examples(strict)}"
        yield Finding(Severity.WARNING, SYSCTLS, where, what, "set it to 2 (loose) there")


def _route_localnet(net: Path) -> Iterator[Finding]:
    name = "net.ipv4.conf.all.route_localnet"
    if _read(net, name) != "0":
        what = "is 1, as kube-proxy sets it: neighbours can reach what listens on 127.0.0.1"
        advice = f"nothing here needs it: sysctl -w {name}=0"
        yield Finding(Severity.NOTE, SYSCTLS, name, what, advice)


def _ports(node_ports: Ports, snat: list[Ports], net: Path) -> Iterator[Finding]:
    name = "net.ipv4.ip_local_port_range"
    first, last = map(int, _read(net, name).split())
    local = (first, last)
    text = f"is {first}-{last}"
    reserved = _read(net, "net.ipv4.ip_local_reserved_ports")
    if _overlap(local, node_ports) and not _reserves(reserved, node_ports):
        what = f"{text}: a socket may take a port that is a NodePort, {_text(node_ports)}"
        advice = f"sysctl -w net.ipv4.ip_local_reserved_ports={_text(node_ports)}"
        yield Finding(Severity.WARNING, SYSCTLS, name, what, advice)
    if shared := [ports for ports in snat if _overlap(local, ports)]:
        what = f"{text}: sockets and masquerading share {examples(map(_text, shared))}"
        advice = "masquerading avoids ports in use; a smaller range leaves it ports of its own"
        yield Finding(Severity.NOTE, SYSCTLS, name, what, advice)


def _reserves(reserved: str, ports: Ports) -> bool:
    """Whether one of the reserved ranges ("1-2,7") covers all of `ports`."""
    for each in filter(None, reserved.split(",")):
        first, _, last = each.partition("-")
        if int(first) <= ports[0] and ports[1] <= int(last or first):
            return True
    return False


def _overlap(one: Ports, other: Ports) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _text(ports: Ports) -> str:
    return f"{ports[0]}-{ports[1]}"


def _read(net: Path, name: str) -> str:
    return (net / name.removeprefix("net.").replace(".", "/")).read_text().strip()


def _read_device(net: Path, place: str, device: str, name: str) -> str:
    """A device's sysctl; device names may contain dots. Empty if the device is gone."""
    try:
        path = net / place.removeprefix("net.").replace(".", "/") / device / name
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


CLOCK = "clock"

_STA_UNSYNC = 0x0040
_SYNCHRONISE = "run chrony, ntpd or systemd-timesyncd; measured latencies are wrong"


class _Timex(ctypes.Structure):
    """struct timex; `rest`: the fields after status."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_uint8 * 256),
    ]


def kernel_status() -> int:
    """The status of the clock (STA_*) from adjtimex(2). OSError."""
    state = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(state.status)


def check_clock(status: Callable[[], int] = kernel_status) -> list[Finding]:
    """At most a note, because Services do not depend on the clock. OSError."""
    if status() & _STA_UNSYNC:
        what = "not synchronised (adjtimex: STA_UNSYNC)"
        return [Finding(Severity.NOTE, CLOCK, "", what, _SYNCHRONISE)]
    return [Finding(Severity.OK, CLOCK, "", "synchronised")]


KERNEL = "kernel"


def check_kernel(probe: Probe) -> list[Finding]:
    """Every feature that is missing, or could not be probed."""
    found = []
    for feature, row in FEATURES.items():
        support, reason = probe.find(feature)
        if support is Support.SUPPORTED:
            continue
        what = f"{support.value}: {reason}"
        if row.instead:
            severity, advice = Severity.NOTE, f"workaround: {row.instead}"
        else:
            severity = Severity.ERROR if support is Support.MISSING else Severity.WARNING
            advice = "ebpflb cannot run without it"
        found.append(Finding(severity, KERNEL, feature, what, advice))
    there = len(FEATURES) - len(found)
    return all_well(KERNEL, f"{there} of {len(FEATURES)} features are available", found)


POLICY = "policy"


def check_policy(network: NetworkState, settings: LbSettings | None) -> list[Finding]:
    """Whether policies see masqueraded packets. `settings`: those in force."""
    via_stack = settings and settings.flags & SettingFlag.LB_SETTING_VIA_STACK
    engine = network.policy_engine
    name = engine.name if engine else "who enforces policies"
    if via_stack and CILIUM in _names(network):
        what = "the kernel routes masqueraded packets, and Cilium masquerades them again"
        return [
            Finding(Severity.WARNING, POLICY, CILIUM, what, "set forwarding to redirect or auto")
        ]
    if via_stack:
        what = f"the kernel routes masqueraded packets, and {name} sees them"
        return [Finding(Severity.OK, POLICY, "", what)]
    if engine is None:
        what = "masqueraded packets are redirected; no policy engine found"
        return [Finding(Severity.OK, POLICY, "", what)]
    what = f"masqueraded packets are redirected, bypassing {name} and its policies ({engine.sign})"
    return [Finding(Severity.WARNING, POLICY, "", what, "set forwarding to stack or auto")]


def _names(network: NetworkState) -> set[str]:
    return {device.name for device in network.devices.values()} | network.left_out.keys()


KUBE_PROXY = "kube-proxy"

_REMOVE = "`ebpflb takeover` removes it"
_STOP = "stop it: it and ebpflb serve the same Services (docs/moving-from-kube-proxy.md)"


_START_IT = "start it, or remove the option"


def check_kube_proxy(selector: str = "") -> list[Finding]:
    """Checks the network namespace of the calling thread. EbpflbError.

    `selector`: the option that leaves some Services to kube-proxy, if any.
    """
    running, rules = running_kube_proxies(), remove_kube_proxy(dry_run=True)
    if selector:
        return judge_kube_proxy_beside(running, rules, selector)
    return judge_kube_proxy(running, rules)


def judge_kube_proxy_beside(running: Sequence[int], rules: Removed, selector: str) -> list[Finding]:
    """kube-proxy should serve what the option excludes; it may run where we cannot see it."""
    found = [f"process {examples(running)}"] if running else rules.lines()
    if found:
        what = f"{found[0]} serves what {selector} leaves out"
        return [Finding(Severity.OK, KUBE_PROXY, "", what)]
    what = f"neither it nor its rules were found, but {selector} leaves Services to it"
    return [Finding(Severity.WARNING, KUBE_PROXY, "", what, _START_IT)]


def judge_kube_proxy(running: Sequence[int], left: Removed) -> list[Finding]:
    """`left`: what would be removed now."""
    rows = [
        (Severity.WARNING, line, "is left over from kube-proxy", _REMOVE) for line in left.lines()
    ]
    rows += [(Severity.NOTE, line, "is kube-proxy's, but others use it", "") for line in left.kept]
    rows += [(Severity.NOTE, "", f"not looked at: {line}", "") for line in left.unseen]
    if running:
        where = f"process {examples(running)}"
        rows.insert(0, (Severity.WARNING, where, "kube-proxy runs here", _STOP))
    found = [Finding(severity, KUBE_PROXY, *rest) for severity, *rest in rows]
    return all_well(KUBE_PROXY, "not running, nothing left of it", found)
