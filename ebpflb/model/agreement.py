# SPDX-License-Identifier: Apache-2.0
"""Whether a frontend in force is what the model wants, both as explain.py describes them."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from ebpflb.model.plan import IfEmpty

_SIDES = {"this_node": "clients of this node", "elsewhere": "clients elsewhere"}
_FIELDS = {
    "type": "type",
    "service": "Service",
    "port_name": "port name",
    "internal_policy": "internal traffic policy",
    "external_policy": "external traffic policy",
    "affinity_timeout": "affinity timeout",
    "allowed_sources": "source ranges",
    "masquerade": "masquerade",
}

Frontend = Mapping[str, Any]


def differences(kernel: Frontend | None, model: Frontend | None) -> list[str]:
    """One line for each thing in which they differ; None: there is no such frontend."""
    if kernel is None or model is None:
        if kernel is model:
            return []
        has, lacks = ("model", "kernel") if kernel is None else ("kernel", "model")
        return [f"the {has} has this frontend, the {lacks} has not"]
    return [*_fields(kernel, model), *_choices(kernel, model)]


def _fields(kernel: Frontend, model: Frontend) -> Iterator[str]:
    for field, name in _FIELDS.items():
        if kernel[field] != model[field]:
            yield f"{name}: kernel {_text(kernel[field])}, model {_text(model[field])}"


def _choices(kernel: Frontend, model: Frontend) -> Iterator[str]:
    for side, name in _SIDES.items():
        ours, wanted = _backends(kernel[side]), _backends(model[side])
        for each in sorted(ours - wanted):
            yield f"{name}: backend {each} in the kernel alone"
        for each in sorted(wanted - ours):
            yield f"{name}: backend {each} in the model alone"
        empty = kernel[side]["if_empty"], model[side]["if_empty"]
        if empty[0] != empty[1]:
            yield f"{name}: without a backend kernel {empty[0]}, model {empty[1]}"


def _backends(choice: Mapping[str, Any]) -> set[str]:
    return {
        f"{each['address']} port {each['port']}{' of this node' * each['local']}"
        for each in choice["backends"]
    }


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def expected(frontend: Frontend | None, side: str, client: str) -> str:
    """What the model wants for a new connection: translated, refused or dropped; "" without one.

    side: "this_node" or "elsewhere"; client: its address.
    """
    if frontend is None:
        return ""
    allowed = frontend["allowed_sources"]
    if allowed and not any(ip_address(client) in ip_network(each) for each in allowed):
        return "dropped"
    choice = frontend[side]
    if choice["backends"]:
        return "translated"
    return "dropped" if choice["if_empty"] == IfEmpty.DROP else "refused"
