# SPDX-License-Identifier: Apache-2.0
"""Parsers of settings: a string or a YAML value in, a checked value out.

Each parser raises ValueError, whose text says what it wants. Also, addresses as text.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import NamedTuple

from ebpflb.config.label_selector import LabelSelector, checked_value, parse_label_selector
from ebpflb.words.connections import FLOW_EVENTS


def socket_address(address: str, port: int) -> str:
    """As in 10.0.0.1:80 or [fd00::1]:80."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_ip(text: str) -> bool:
    """Not a host name."""
    from ipaddress import ip_address

    try:
        ip_address(text)
    except ValueError:
        return False
    return True


# Go's time.ParseDuration, in seconds.
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
# As Go's strconv.ParseBool.
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
_LAST_PORT = 65535
NO_EVENTS = "none"
# What the maps can hold.
_LONGEST = 2**32 - 1
# sun_path without its terminating zero byte.
_LONGEST_SOCKET_PATH = 107


class BindAddress(NamedTuple):
    """Where a server listens; host is an IP address, or empty for all addresses."""

    host: str
    port: int


_MOST_COMPARED = 5000


def parse_bind_address(text: str) -> BindAddress | None:
    """Split "host:port", "[host]:port" or ":port"; None for an empty text. Raises ValueError."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
        raise ValueError("want IP:PORT with a port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets, as in [::1]:10249")
    if host and not is_ip(host):
        raise ValueError("want an IP address before the port")
    return BindAddress(host, int(port))


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: " (did you mean X?)", or all choices if none is close."""
    choices = sorted(known)
    return near(word, choices) or f" (known: {', '.join(choices)})"


def near(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word, or nothing: for words of which there may be thousands.

    In NAMESPACE/NAME the first two letters of the name count as right if any choice has them.
    """
    choices = sorted(known)
    if "/" in word:
        begin = "/" + word.rpartition("/")[2][:2]
        choices = [name for name in choices if begin in name] or choices
    found = difflib.get_close_matches(word, choices[:_MOST_COMPARED], n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def text(value: object) -> str:
    """A string, stripped of surrounding blanks."""
    if not isinstance(value, str):
        raise ValueError("want a string")  # noqa: TRY004  one kind of error for a wrong value
    return value.strip()


def path(value: object) -> Path:
    if not text(value):
        raise ValueError("want a path")
    return Path(text(value))


def optional_path(value: object) -> Path | None:
    """A path; None for an empty string."""
    return Path(text(value)) if text(value) else None


def node_name(value: object) -> str:
    """The name of a Node; lower-cased, as the kubelet does."""
    name = text(value).lower()
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
        raise ValueError("want the name of a Node: lower-case letters, digits, '-' and '.'")
    return name


def url(value: object) -> str:
    """The URL of a server, or an empty string."""
    found = text(value)
    if found and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", found):
        raise ValueError("want a URL, as in https://192.0.2.1:6443")
    return found


def urls(value: object) -> tuple[str, ...]:
    return tuple(url(word) for word in words(value))


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def __call__(self, value: object) -> str:
        # YAML reads off as a boolean.
        word = "off" if value is False else value
        if word not in self.words:
            raise ValueError(f"unknown value{nearest(str(value), self.words)}")
        return str(word)


@dataclass(frozen=True, slots=True)
class SomeOf:
    """At least one of the known words, in the order given."""

    known: tuple[str, ...]

    def __call__(self, value: object) -> tuple[str, ...]:
        found = words(value)
        for word in found or ("",):
            if word not in self.known:
                raise ValueError(f"unknown value {word!r}{nearest(word, self.known)}")
        return found


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in _TRUE + _FALSE:
        raise ValueError("want true or false")
    return value in _TRUE


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number from first to last, inclusive."""

    first: int
    last: int

    def __call__(self, value: object) -> int:
        if not isinstance(value, bool) and re.fullmatch(r"-?[0-9]{1,9}", str(value)):
            found = int(str(value))
            if self.first <= found <= self.last:
                return found
        raise ValueError(f"want a number from {self.first} to {self.last}")


class Prime(Number):
    """A prime from first to last, inclusive."""

    def __call__(self, value: object) -> int:
        found = super().__call__(value)
        if not _is_prime(found):
            above = (each for each in range(found, self.last + 1) if _is_prime(each))
            raise ValueError(f"want a prime, as {next(above, self.last)}")
        return found


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, isqrt(number) + 1))


# Envoy's and Istio's default of consecutive failures.
_FAILURES = 5
_MOST_FAILURES = 1000


def ejection(value: object) -> int:
    """After how many failed connections in a row an endpoint is ejected; 0: never."""
    # YAML reads on and off as booleans.
    words = {"off": 0, "on": _FAILURES, "False": 0, "True": _FAILURES}
    if str(value) in words:
        return words[str(value)]
    try:
        return Number(0, _MOST_FAILURES)(value)
    except ValueError as error:
        raise ValueError(f"want off, on or a number from 0 to {_MOST_FAILURES}") from error


def verbosity(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,9}", str(value)):
        raise ValueError("want a number from 0")
    return int(str(value))


def duration(value: object) -> float:
    """Seconds: a number, or in Go's notation: 30s, 1m0s, 500ms."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("want a duration, as in 30s")  # noqa: TRY004  as above
    word = str(value).strip()
    if re.fullmatch(r"\d+(\.\d+)?", word, re.ASCII):
        return _bounded(float(word))
    quantities = _QUANTITY.findall(word)
    if not quantities or "".join(map("".join, quantities)) != word.removeprefix("+"):
        raise ValueError("want a duration from 0, as in 30s, 1m30s or 500ms")
    return _bounded(sum(float(count) * _UNITS[unit] for count, unit in quantities))


def _bounded(seconds: float) -> float:
    if seconds > _LONGEST:
        raise ValueError(f"want a duration up to {_LONGEST}s")
    return seconds


def positive_duration(value: object) -> float:
    """As duration(), but greater than 0."""
    seconds = duration(value)
    if seconds <= 0:
        raise ValueError("want a duration greater than 0")
    return seconds


def words(value: object) -> tuple[str, ...]:
    """Strings and lists of strings, each split at commas, without duplicates, in order."""
    items = value if isinstance(value, list | tuple) else [value]
    found = (word.strip() for item in items for word in text(item).split(","))
    return tuple(dict.fromkeys(word for word in found if word))


def cidrs(value: object) -> tuple[str, ...]:
    """Networks in their canonical form."""
    from ipaddress import ip_network

    return tuple(dict.fromkeys(str(ip_network(word, strict=False)) for word in words(value)))


# The node's loopback, all and primary addresses; they may be mixed with CIDRs.
NODEPORT_WORDS = ("localhost", "all", "primary")


def nodeport_addresses(value: object) -> tuple[str, ...]:
    """Networks and NODEPORT_WORDS, in any mixture."""
    return tuple(dict.fromkeys(_network_or_word(word) for word in words(value)))


def _network_or_word(word: str) -> str:
    if word in NODEPORT_WORDS:
        return word
    try:
        return cidrs(word)[0]
    except ValueError as error:
        hint = near(word.lower(), NODEPORT_WORDS)
        wanted = f"want CIDRs or the words {', '.join(NODEPORT_WORDS)}"
        raise ValueError(f"{wanted}, not {word!r}{hint}") from error


# What serves external and load-balancer IPs: all, those of no node, or none.
SERVED_IPS = ("serve", "not-nodes", "ignore")


def served_ips(value: object) -> tuple[str, ...]:
    """Networks, or one of SERVED_IPS alone."""
    found = words(value)
    if len(found) == 1 and found[0] in SERVED_IPS:
        return found
    try:
        return cidrs(found or SERVED_IPS)
    except ValueError as error:
        *others, last = SERVED_IPS
        raise ValueError(f"want {', '.join(others)}, {last} or CIDRs") from error


def ports(value: object) -> tuple[int, ...]:
    """Port numbers, sorted."""
    items = value if isinstance(value, list | tuple) else [value]
    found = words([str(item) for item in items])
    return tuple(sorted(Number(1, _LAST_PORT)(word) for word in found))


# So many ports are left to masquerade with, that sockets and NodePorts do not use.
FEWEST_SNAT_PORTS = 1000


class PortRange(NamedTuple):
    """The first and the last port."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def node_port_range(value: object) -> PortRange:
    """A range that leaves enough ports to masquerade with."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text(value))
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 0 < first <= last <= _LAST_PORT:
        raise ValueError("want two ports, as in 30000-32767")
    if _LAST_PORT - 1023 - (last + 1 - max(first, 1024)) < FEWEST_SNAT_PORTS:
        raise ValueError(f"want a range that leaves {FEWEST_SNAT_PORTS} ports from 1024 on")
    return PortRange(first, last)


def flow_events(value: object) -> tuple[str, ...]:
    """Flow events in the order of a flow's life; empty for an empty value or the word none."""
    found = words(value)
    if found == (NO_EVENTS,):
        return ()
    for word in found:
        if word not in FLOW_EVENTS:
            raise ValueError(f"unknown event {word!r}{nearest(word, [*FLOW_EVENTS, NO_EVENTS])}")
    return tuple(event for event in FLOW_EVENTS if event in found)


def label_selector(value: object) -> LabelSelector | None:
    """A label selector; None for an empty string."""
    return parse_label_selector(text(value)) if text(value) else None


def label_value(value: object) -> str:
    """The value of a label, or nothing."""
    return checked_value(text(value)) if text(value) else ""


def socket_path(value: object) -> Path | None:
    """The path of a UNIX socket; None for an empty string."""
    path = optional_path(value)
    length = len(os.fsencode(path)) if path else 0
    if length > _LONGEST_SOCKET_PATH:
        raise ValueError(
            f"the path has {length} bytes: a UNIX socket's may have {_LONGEST_SOCKET_PATH}"
        )
    return path


def ip_or_nothing(value: object) -> str:
    """An IP address in its canonical form, or an empty string."""
    from ipaddress import ip_address

    return str(ip_address(text(value))) if text(value) else ""


def bind_address(default_port: int) -> Callable[[object], str]:
    """Where to listen, as parse_bind_address() takes it; an address alone gets `default_port`."""

    def parse(value: object) -> str:
        given = with_port(text(value), default_port)
        parse_bind_address(given)
        return given

    return parse


def with_port(address: str, port: int) -> str:
    """Add a port to an IP address that has none; anything else is left as it is."""
    host, _, last = address.rpartition(":")
    is_ambiguous = last.isdecimal() and is_ip(host)
    if not is_ip(address) or is_ambiguous:
        return address
    return socket_address(address, port)
