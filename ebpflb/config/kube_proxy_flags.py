# SPDX-License-Identifier: Apache-2.0
"""Flags of kube-proxy that are not settings here: ignored with a reason, or another name for one.

Also the settings that are checked because kube-proxy has them, but do nothing here.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ebpflb.config import values
from ebpflb.config.option import Given
from ebpflb.config.options import (
    HEALTHZ_BIND_ADDRESS,
    HEALTHZ_PORT,
    METRICS_BIND_ADDRESS,
    METRICS_PORT,
    OPTIONS,
)
from ebpflb.errors import SettingError
from ebpflb.words.scheduler import Scheduler

Warn = Callable[[str], None]

MODES = ("iptables", "nftables", "ipvs")

NO_IPVS = "IPVS is not used"
NOT_IPVS = "the proxy mode is not ipvs"
NO_MARKS = "what is masqueraded needs no mark"
# On by default, to be off from 1.40 on (KEP-5707).
EXTERNAL_IPS_GATE = "AllowServiceExternalIPs"
NO_GATES = f"kube-proxy's feature gates do not exist here, except {EXTERNAL_IPS_GATE}"
NO_PROFILING = "there is no /debug/pprof"
NO_HIDDEN = "no metrics are hidden"
ALWAYS_LIBERAL = "TCP packets outside the window are always translated"
ONE_MODE = "the only mode is eBPF"
ONE_STREAM = "log lines go to stderr unbuffered"
ONE_VERBOSITY = "all modules have the same verbosity"
NO_PACE = "the agent sends few requests and needs no rate limit"
JSON_ONLY = "the agent uses JSON"
NO_RELIST = "watches report every change"

# Name -> why it has no effect.
IGNORED: Mapping[str, str] = {
    "proxy-mode": ONE_MODE,
    "iptables-masquerade-bit": NO_MARKS,
    "ipvs-scheduler": NOT_IPVS,
    "ipvs-exclude-cidrs": NO_IPVS,
    "ipvs-strict-arp": NO_IPVS,
    "ipvs-tcp-timeout": NO_IPVS,
    "ipvs-tcpfin-timeout": NO_IPVS,
    "ipvs-udp-timeout": NO_IPVS,
    "feature-gates": NO_GATES,
    "profiling": NO_PROFILING,
    "show-hidden-metrics-for-version": NO_HIDDEN,
    "config-sync-period": NO_RELIST,
    "kube-api-qps": NO_PACE,
    "kube-api-burst": NO_PACE,
    "kube-api-content-type": JSON_ONLY,
    "conntrack-tcp-be-liberal": ALWAYS_LIBERAL,
    "vmodule": ONE_VERBOSITY,
    "log-flush-frequency": ONE_STREAM,
    "log-json-info-buffer-size": ONE_STREAM,
    "log-json-split-stream": ONE_STREAM,
    "log-text-info-buffer-size": ONE_STREAM,
    "log-text-split-stream": ONE_STREAM,
}

# Those that may be given without a value.
SWITCHES = frozenset(
    (
        "ipvs-strict-arp",
        "profiling",
        "conntrack-tcp-be-liberal",
        "log-json-split-stream",
        "log-text-split-stream",
    )
)


class _PortFlag(NamedTuple):
    """A deprecated flag that sets only the port of an option, whose default is `address`."""

    option: str
    address: str
    usual: int


DEPRECATED_PORTS: Mapping[str, _PortFlag] = {
    "healthz-port": _PortFlag("healthz-bind-address", HEALTHZ_BIND_ADDRESS, HEALTHZ_PORT),
    "metrics-port": _PortFlag("metrics-bind-address", METRICS_BIND_ADDRESS, METRICS_PORT),
}

# Flags of one proxy mode each, for the same setting.
_OF_IPVS = {
    "ipvs-sync-period": "iptables-sync-period",
    "ipvs-min-sync-period": "iptables-min-sync-period",
}


def translate(flags: Mapping[str, object], warn: Warn) -> dict[str, object]:
    """The flags that are settings, by name; warn() gets a line for each of the others.

    Raises SettingError for an unknown proxy mode or a wrong port.
    """
    mode = flags.get("proxy-mode", "")
    if mode not in ("", *MODES):
        hint = values.nearest(str(mode), MODES)
        raise SettingError(f"--proxy-mode: {mode!r}: unknown value{hint}")
    found = _of_mode(dict(flags), str(mode), warn)
    for name, port in DEPRECATED_PORTS.items():
        if name in found:
            _apply_port(found, name, port, warn)
    gates = _gates(str(found.pop("feature-gates", "")))
    for name, given in settings_of_gates(gates, "--feature-gates", warn).items():
        found.setdefault(name, given.value)
    for name in sorted(found.keys() & IGNORED.keys()):
        warn(f"--{name} is ignored: {IGNORED[name]}")
        del found[name]
    return found


def settings_of_gates(gates: Mapping[str, object], where: str, warn: Warn) -> dict[str, Given]:
    """The settings that feature gates give; warn() gets a line if there are other gates.

    Raises SettingError if the value of such a gate is no boolean.
    """
    others = [name for name in gates if name != EXTERNAL_IPS_GATE]
    if others:
        told = where if len(others) == len(gates) else f"{where}: {', '.join(others)}"
        warn(f"{told} is ignored: {NO_GATES}")
    where = f"{where}: {EXTERNAL_IPS_GATE}"
    try:
        is_on = values.boolean(gates.get(EXTERNAL_IPS_GATE, True))
    except ValueError as error:
        raise SettingError(f"{where}: {gates[EXTERNAL_IPS_GATE]!r}: {error}") from error
    return {} if is_on else {"external-ips": Given("ignore", where)}


def _gates(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _of_mode(flags: dict[str, object], mode: str, warn: Warn) -> dict[str, object]:
    for ipvs, other in _OF_IPVS.items():
        name, reason = ipvs, NOT_IPVS
        if mode == "ipvs":
            name, reason = other, "the proxy mode is ipvs"
        if flags.pop(name, None) is not None:
            warn(f"--{name} is ignored: {reason}")
    if mode == "ipvs" and "ipvs-scheduler" in flags:
        chosen = scheduler_of_ipvs(str(flags.pop("ipvs-scheduler")), "--ipvs-scheduler", warn)
        flags.setdefault("scheduler", chosen)
    return flags


# kube-proxy gives all endpoints the same weight; here they have those of the Service.
_SCHEDULERS = {
    "rr": Scheduler.ROUND_ROBIN,
    "wrr": Scheduler.ROUND_ROBIN,
    "lc": Scheduler.LEAST_CONNECTIONS,
    "wlc": Scheduler.LEAST_CONNECTIONS,
    "twos": Scheduler.LEAST_CONNECTIONS,
    "sh": Scheduler.SOURCE_HASH,
    "mh": Scheduler.MAGLEV,
}
_NEAREST = {
    "sed": Scheduler.LEAST_CONNECTIONS,
    "nq": Scheduler.LEAST_CONNECTIONS,
    "lblc": Scheduler.LEAST_CONNECTIONS,
    "lblcr": Scheduler.LEAST_CONNECTIONS,
    # One address of a Service, one server: here the clients' addresses make it several.
    "dh": Scheduler.SOURCE_HASH,
}


def scheduler_of_ipvs(name: str, where: str, warn: Warn) -> str:
    """The counterpart of an IPVS scheduler; warn() gets a line if there is none."""
    if name in _SCHEDULERS:
        return _SCHEDULERS[name].value
    instead = _NEAREST.get(name, Scheduler.RANDOM)
    warn(f"{where}: {name!r} is not available, using {instead}")
    return instead.value


def _apply_port(flags: dict[str, object], name: str, port: _PortFlag, warn: Warn) -> None:
    given = flags.pop(name)
    try:
        number = values.Number(0, 65535)(given)
    except ValueError as error:
        raise SettingError(f"--{name}: {given!r}: {error}") from error
    warn(f"--{name} is deprecated: use --{port.option}")
    address = str(flags.get(port.option, port.address.removesuffix(f":{port.usual}")))
    flags[port.option] = values.with_port(address, number) if number else ""


_BY_DEVICE = "pods of this node are identified by their devices"

WITHOUT_EFFECT: Mapping[str, str] = {
    "detect-local-mode": _BY_DEVICE,
    "cluster-cidr": _BY_DEVICE,
    "pod-bridge-interface": _BY_DEVICE,
    "pod-interface-name-prefix": _BY_DEVICE,
}


def warn_without_effect(given: Collection[str], found: Mapping[str, Any], warn: Warn) -> None:
    """Warn about each such option that is set to anything but its default.

    given: names of options; found: all values, by field.
    """
    for option in OPTIONS:
        reason = WITHOUT_EFFECT.get(option.name)
        if reason is None or option.name not in given or option.default is None:
            continue
        if found[option.field] != option.default_value():
            warn(f"{option.name} has no effect: {reason}")
