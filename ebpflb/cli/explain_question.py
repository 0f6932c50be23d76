# SPDX-License-Identifier: Apache-2.0
"""SRC and DST of `ebpflb explain` as they are written, before anybody is asked what they mean."""

import re
from typing import NamedTuple

from ebpflb.errors import ConfigError
from ebpflb.model.address import Address, Protocol, parse_address
from ebpflb.model.service import ServiceName

HOST = "host"

_PROTOCOL = re.compile(r"(.+)/(tcp|udp|sctp)", re.IGNORECASE)
_BRACKETS = re.compile(r"\[([^\]]+)\](?::(.+))?")
_DNS = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\.[a-z0-9.-]+)?")
_LAST_PORT = 65535


class Place(NamedTuple):
    """One of `address` and `name`, or neither for the node itself. port: empty without one."""

    address: Address | None
    name: ServiceName | None
    port: str


class Target(NamedTuple):
    """DST. protocol: None where it is not given."""

    place: Place
    protocol: Protocol | None


def parse_source(text: str) -> Place:
    """An address, `host`, or NAMESPACE/POD, each with a port or without. ConfigError."""
    name, port = _split_port(text)
    if port:
        port_number(port, text)
    if name == HOST:
        return Place(None, None, port)
    found = _place(name, port)
    if found is None:
        raise ConfigError(f"{text!r}: want an address, `host` or NAMESPACE/POD")
    return found


def parse_target(text: str) -> Target:
    """ADDRESS:PORT, NAMESPACE/SERVICE or NAME.NAMESPACE.svc, with /PROTOCOL or not. ConfigError."""
    protocol = None
    match = _PROTOCOL.fullmatch(text)
    if match and ("/" in match[1] or ":" in match[1] or ".svc" in match[1]):
        text, protocol = match[1], Protocol[match[2].upper()]
    name, port = _split_port(text)
    dns = _DNS.fullmatch(name)
    place = Place(None, ServiceName(dns[2], dns[1]), port) if dns else _place(name, port)
    if place is None:
        want = "want ADDRESS:PORT, [IPv6]:PORT, NAMESPACE/SERVICE[:PORT] or NAME.NAMESPACE.svc"
        raise ConfigError(f"{text!r}: {want}, and /udp or /sctp behind it if it is not TCP")
    if place.address:
        port_number(port, text)
    return Target(place, protocol)


def port_number(port: str, text: str) -> int:
    """A port as a number. ConfigError names the text that it is from."""
    if port.isascii() and port.isdigit() and 0 < int(port) <= _LAST_PORT:
        return int(port)
    raise ConfigError(f"{text!r}: want a port from 1 to {_LAST_PORT}, as in ADDRESS:80")


def _split_port(text: str) -> tuple[str, str]:
    match = _BRACKETS.fullmatch(text)
    if match:
        return match[1], match[2] or ""
    if text.count(":") > 1:
        return text, ""
    name, _, port = text.partition(":")
    return name, port


def _place(name: str, port: str) -> Place | None:
    try:
        return Place(parse_address(name), None, port)
    except ValueError:
        namespace, slash, rest = name.partition("/")
        is_name = slash and namespace and rest and "/" not in rest
        return Place(None, ServiceName(namespace, rest), port) if is_name else None
