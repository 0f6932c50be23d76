# SPDX-License-Identifier: Apache-2.0
"""Syntax of SRC and DST of `ebpflb explain`."""

import re
from typing import NamedTuple

from ebpflb.cli.options import full_name
from ebpflb.errors import ConfigError
from ebpflb.model.address import Address, Protocol, parse_address
from ebpflb.model.service import ServiceName

HOST = "host"

_PROTOCOL = re.compile(r"(.+)/(tcp|udp|sctp)", re.IGNORECASE)
_BRACKETS = re.compile(r"\[([^\]]+)\](?::(.+))?")
_DNS = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\.[a-z0-9.-]+)?")
# With or without a namespace. Without one, digits and dots are a wrong address, not a name.
_NAME = re.compile(r"[^/]+/[^/]+|(?=[0-9.]*[a-z-])[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_LAST_PORT = 65535


class AddressOrName(NamedTuple):
    """An address, a name, or neither for the node itself. port: "" if not given."""

    address: Address | None
    name: ServiceName | None
    port: str


class Destination(NamedTuple):
    """DST. protocol: None if it is not given."""

    end: AddressOrName
    protocol: Protocol | None


class AskedConnection(NamedTuple):
    """SRC and DST as people write them.

    home: the namespace of names without one. at: a moment of the past, as the time of a Flow, or
    "". The properties raise ConfigError.
    """

    source: str
    target: str
    home: str = "default"
    at: str = ""

    def check(self) -> None:
        """ConfigError if SRC or DST is none."""
        _ = self.client, self.destination

    @property
    def client(self) -> AddressOrName:
        return parse_source(self.source, self.home)

    @property
    def destination(self) -> Destination:
        return parse_target(self.target, self.home)


def parse_source(text: str, namespace: str | None = None) -> AddressOrName:
    """Parse an address, `host`, or [NAMESPACE/]POD, each with or without a port. ConfigError.

    `namespace`: for names without one; None means `default`.
    """
    name, port = _split_port(text)
    if port:
        port_number(port, text)
    if name == HOST:
        return AddressOrName(None, None, port)
    found = address_or_name(name, port, namespace)
    if found is None:
        raise ConfigError(f"{text!r}: want an address, `host` or [NAMESPACE/]POD")
    return found


def parse_target(text: str, namespace: str | None = None) -> Destination:
    """Parse ADDRESS:PORT, [NAMESPACE/]SERVICE or NAME.NAMESPACE.svc, with or without /PROTOCOL.

    `namespace`: for names without one; None means `default`. ConfigError.
    """
    protocol = None
    match = _PROTOCOL.fullmatch(text)
    if match and ("/" in match[1] or ":" in match[1] or ".svc" in match[1]):
        text, protocol = match[1], Protocol[match[2].upper()]
    name, port = _split_port(text)
    dns = _DNS.fullmatch(name)
    end = (
        AddressOrName(None, ServiceName(dns[2], dns[1]), port)
        if dns
        else address_or_name(name, port, namespace)
    )
    if end is None:
        want = "want ADDRESS:PORT, [IPv6]:PORT, [NAMESPACE/]SERVICE[:PORT] or NAME.NAMESPACE.svc"
        raise ConfigError(f"{text!r}: {want}, followed by /udp or /sctp unless it is TCP")
    if end.address:
        port_number(port, text)
    return Destination(end, protocol)


def port_number(port: str, text: str) -> int:
    """A port as a number. ConfigError quotes `text`, which it is part of."""
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


def address_or_name(name: str, port: str, namespace: str | None) -> AddressOrName | None:
    """An address or [NAMESPACE/]NAME, without the port; None for neither."""
    try:
        return AddressOrName(parse_address(name), None, port)
    except ValueError:
        if not _NAME.fullmatch(name):
            return None
        return AddressOrName(None, ServiceName(*full_name(name, namespace).split("/")), port)


def address_or_pod(text: object) -> None:
    """ValueError for anything but an address or [NAMESPACE/]POD."""
    if address_or_name(str(text), "", None) is None:
        raise ValueError(f"{text!r}: want an address or [NAMESPACE/]POD")
