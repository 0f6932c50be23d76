# SPDX-License-Identifier: Apache-2.0
"""The frontends in force as the rows that the plugin and the relay merge over all nodes."""

from collections.abc import Iterable

import msgspec

from ebpflb.config.values import socket_address
from ebpflb.dataplane.view.snapshot import FrontendInForce
from ebpflb.model.address import format_address
from ebpflb.model.compact.frontends import (
    COUNTS,
    SERVED,
    FrontendForm,
    FrontendName,
    FrontendRow,
    FrontendSettings,
)
from ebpflb.model.plan import Backend, Frontend


def frontend_row(found: FrontendInForce) -> FrontendRow:
    frontend = found.frontend
    local, others = frontend.local, frontend.others
    is_internal = frontend.type == "ClusterIP"
    here = _addresses(local.backends)
    # Usually they are the same, and there may be very many.
    every = here if local == others else here | _addresses(others.backends)
    shared = frozenset[str]() if is_internal and frontend.internal_policy == "Local" else here
    form = FrontendForm(name_of(frontend), settings_of(frontend), tuple(sorted(shared)))
    outside = SERVED if others.backends else str(others.if_empty)
    is_local_outside = not is_internal and frontend.external_policy == "Local"
    return FrontendRow(
        msgspec.Raw(msgspec.json.encode(form)),
        counts_of(found),
        tuple(sorted(every - shared)),
        outside if is_local_outside else "",
    )


def name_of(frontend: Frontend) -> FrontendName:
    address, port, protocol = frontend.key
    where = protocol.name, format_address(address), port
    return FrontendName(*frontend.service[:3], str(frontend.type), *where)


def settings_of(frontend: Frontend) -> FrontendSettings:
    return FrontendSettings(
        str(frontend.internal_policy),
        str(frontend.external_policy),
        frontend.affinity_timeout,
        str(frontend.scheduler),
        frontend.dsr,
        tuple(map(str, frontend.allowed_sources)),
        frontend.backup.value,
        frontend.unserved or "",
        frontend.retry,
        str(frontend.limits),
    )


def counts_of(found: FrontendInForce) -> tuple[int, ...]:
    return tuple(getattr(found.counts, name) for name in COUNTS)


def _addresses(backends: Iterable[Backend]) -> frozenset[str]:
    return frozenset(socket_address(format_address(each.address), each.port) for each in backends)
