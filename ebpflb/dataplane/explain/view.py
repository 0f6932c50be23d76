# SPDX-License-Identifier: Apache-2.0
"""What the walk has found as plain values, fit for JSON; frontends in the words of the model."""

from collections.abc import Sequence
from typing import Any

from ebpflb.dataplane.explain.choice import range_of
from ebpflb.dataplane.explain.known_flow import flows_of, sockets_to
from ebpflb.dataplane.explain.lookups import Chosen, Lookups, backend_key, frontend_key
from ebpflb.dataplane.explain.steps import Candidate, Client, Side, Step
from ebpflb.dataplane.kernel.routes import device_name
from ebpflb.dataplane.layout.enums import BackendFlag, DescFlag, NetnsFlag
from ebpflb.dataplane.layout.records import FRONTEND_TYPES, DescRecord
from ebpflb.dataplane.view.dump import word
from ebpflb.dataplane.view.frontends import IF_EMPTY
from ebpflb.model.address import format_address
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import TrafficPolicy

Plain = dict[str, Any]


def client_view(client: Client) -> Plain:
    """Who asks. `device`: the one by which its packets come, empty for the node itself."""
    return {
        "kind": str(client.kind),
        "address": format_address(client.address),
        "port": client.port,
        "device": device_name(client.ifindex) if client.ifindex else "",
        "tc_cover": bool(client.netns_flags & NetnsFlag.LB_NETNS_COVERED),
    }


def kernel_view(
    lookups: Lookups, client: Client, target: FrontendKey, steps: Sequence[Step]
) -> Plain:
    """The end of the walk, and everything on the way. MapError."""
    last = steps[-1]
    matched = next((step for step in steps if step.desc), None)
    desc = matched.desc if matched else None
    return {
        "verdict": str(last.fate),
        "place": last.place,
        "reason": word(last.reason) if last.reason else "",
        "why": last.why,
        "from": str(matched.side or "") if matched else "",
        "affinity": last.affinity,
        "steps": [_step(step) for step in steps],
        "frontend": frontend_view(lookups, desc) if desc else None,
        "backends": [_candidate(each) for each in last.candidates],
        "flows": [flow._asdict() for flow in flows_of(lookups.maps, client, target)],
        "sockets": [each._asdict() for each in sockets_to(lookups.maps, target)],
    }


def frontend_view(lookups: Lookups, desc: DescRecord) -> Plain:
    """A frontend as model/explain.py describes it, with its Service. MapError."""
    key, name = frontend_key(desc), lookups.name_of(desc)
    return {
        "address": format_address(key.address),
        "port": key.port,
        "protocol": key.protocol.name,
        "type": str(FRONTEND_TYPES[desc.type]),
        "service": f"{name.namespace}/{name.service}" if name else "",
        "port_name": name.port if name else "",
        "this_node": _choice(lookups, desc, Side.THIS_NODE),
        "elsewhere": _choice(lookups, desc, Side.ELSEWHERE),
        "internal_policy": _policy(desc, DescFlag.LB_DESC_INTERNAL_LOCAL),
        "external_policy": _policy(desc, DescFlag.LB_DESC_EXTERNAL_LOCAL),
        "affinity_timeout": desc.affinity_timeout,
        "allowed_sources": [str(each) for each in lookups.source_ranges(desc)],
        "masquerade": bool(desc.flags & DescFlag.LB_DESC_MASQUERADE),
    }


def _step(step: Step) -> Plain:
    return {"place": step.place, "verdict": str(step.fate), "why": step.why}


def _choice(lookups: Lookups, desc: DescRecord, side: Side) -> Plain:
    place = range_of(desc, side)
    backends = sorted(map(_sortable, lookups.backends(place)))
    return {
        "backends": [
            {"address": format_address(key.address), "port": key.port, "local": is_local}
            for key, is_local in backends
        ],
        "if_empty": str(IF_EMPTY[place.if_empty]),
    }


def _sortable(chosen: Chosen) -> tuple[FrontendKey, bool]:
    is_local = bool(chosen.record.flags & BackendFlag.LB_BACKEND_LOCAL)
    return backend_key(chosen.record), is_local


def _policy(desc: DescRecord, flag: DescFlag) -> str:
    return str(TrafficPolicy.LOCAL if desc.flags & flag else TrafficPolicy.CLUSTER)


def _candidate(each: Candidate) -> Plain:
    key, is_local = _sortable(each.backend)
    rewrite = each.rewrite
    return {
        "address": format_address(key.address),
        "port": key.port,
        "local": is_local,
        "terminating": bool(each.backend.record.flags & BackendFlag.LB_BACKEND_TERMINATING),
        "chance": 0.0 if rewrite.reason else round(each.chance, 4),
        "masquerade": format_address(rewrite.source) if rewrite.source else "",
        "hairpin": rewrite.hairpin,
        "reason": word(rewrite.reason) if rewrite.reason else "",
    }
