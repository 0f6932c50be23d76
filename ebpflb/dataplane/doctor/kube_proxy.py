# SPDX-License-Identifier: Apache-2.0
"""What kube-proxy has left here, and whether it still runs."""

from collections.abc import Iterator, Sequence

from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kube_proxy.process import running_kube_proxies
from ebpflb.dataplane.kube_proxy.removal import Removed, remove_kube_proxy

CHECK = "kube-proxy"

_REMOVE = "`ebpflb takeover` removes it"
_STOP = "stop it: it and ebpflb serve the same Services (docs/takeover.md)"


def check_kube_proxy() -> list[Finding]:
    """Of the network namespace of the calling thread. EbpflbError."""
    return judge(running_kube_proxies(), remove_kube_proxy(dry_run=True))


def judge(running: Sequence[int], left: Removed) -> list[Finding]:
    """`left`: what would be removed now."""
    return all_well(CHECK, "none runs, nothing is left of it", _found(running, left))


def _found(running: Sequence[int], left: Removed) -> Iterator[Finding]:
    if running:
        where = f"process {examples(running)}"
        yield Finding(Severity.WARNING, CHECK, where, "kube-proxy runs here", _STOP)
    for line in left.lines():
        yield Finding(Severity.WARNING, CHECK, line, "is left of kube-proxy", _REMOVE)
    for line in left.kept:
        yield Finding(Severity.NOTE, CHECK, line, "is kube-proxy's, and others need it")
    for line in left.unseen:
        yield Finding(Severity.NOTE, CHECK, "", f"not looked at: {line}")
