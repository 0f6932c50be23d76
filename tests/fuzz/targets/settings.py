# SPDX-License-Identifier: Apache-2.0
"""Settings files and KubeProxyConfigurations: one error in one line, or settings that can be
written and read again.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ebpflb.config.kube_proxy_config import API_VERSION, FIELDS, KIND
from ebpflb.config.options import OPTIONS
from ebpflb.config.settings import load_settings, settings_text
from ebpflb.errors import ConfigError
from tests.fuzz.targets import Play, Target, check_line

_HEAD = f"apiVersion: {API_VERSION}\nkind: {KIND}\n"
_SEEDS = [
    f"{_HEAD}mode: nftables\nclusterCIDR: 10.1.0.0/16,fd00::/64\n"
    "nodePortAddresses: [primary, 10.0.0.0/8, localhost]\n"
    "conntrack:\n  maxPerCore: 32768\n  min: null\n  tcpEstablishedTimeout: 24h0m0s\n"
    "iptables:\n  syncPeriod: 30s\n  localhostNodePorts: false\nfeatureGates: {A: true}\n",
    f"{_HEAD}bindAddress: '::'\nlogging:\n  format: json\n  flushFrequency: 5000000000\n"
    "  options: {json: {infoBufferSize: 64Ki}}\nipvs: {scheduler: rr, excludeCIDRs: ['::/0']}\n",
    "kind: ConfigMap\n---\n" + _HEAD,
    "scheduler: maglev\nejection: 3\nservice-selector: a in (b,c)\nexternal-ips: not-nodes\n",
    "protected-ports: [22, 10250]\nflow-events: start,end\nconntrack-udp-timeout: 1m30s\n",
]
_VALUES = [b"1e999", b".inf", b".nan", b"0x", b"-1", b"~", b"&a [*a]", b"!!binary ", b"1:60", b"? "]
_NAMES = {step for path in FIELDS for step in path.split(".")} | {
    name for option in OPTIONS for name in option.names
}
_WORDS = [*_VALUES, *(f"{name}: ".encode() for name in sorted(_NAMES))]


@contextmanager
def _playing() -> Iterator[Play]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield partial(_play, Path(folder) / "settings")


def _play(file: Path, given: bytes) -> None:
    file.write_bytes(given)
    warned: list[str] = []
    flags = {"config": file, "node-name": "node1"}
    try:
        found = load_settings(flags, {}, warned.append)
    except ConfigError as error:
        warned.append(str(error))
    else:
        file.write_text(settings_text(found))
        again = load_settings({"config": file}, {})
        assert replace(again, config=None) == replace(found, config=None)
    for each in warned:
        check_line(each)


TARGET = Target([each.encode() for each in _SEEDS], _WORDS, _playing)
