# SPDX-License-Identifier: Apache-2.0
"""Every setting of an agent: its names, default and check, in one table.

A setting comes from the command line, else from the environment (EBPFLB_NODE_NAME), else from the
YAML file named by --config (node-name: ...), else it has its default. Each value is checked once,
here; the rest of the program reads a frozen `Settings`.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ebpflb.errors import ConfigError, ProbeError

ENVIRONMENT_PREFIX = "EBPFLB_"
BPFFS_ROOT = "/sys/fs/bpf/ebpflb"
METRICS_BIND_ADDRESS = "127.0.0.1:10249"
HEALTHZ_BIND_ADDRESS = "0.0.0.0:10256"

# Kubernetes puts these into a pod's environment when a Service is called ebpflb.
_SERVICE_LINK = re.compile(r"EBPFLB(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_\w+)?)")
_LAST_PORT = 65535
_MOUNTS = Path("/proc/mounts")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent was told, checked.

    No device patterns: those of dataplane/devices.py. An empty bind address: do not listen.
    """

    manifests: Path
    node_name: str
    cgroup_root: Path
    bpffs_root: Path
    host_devices: tuple[str, ...]
    workload_devices: tuple[str, ...]
    socket_lb: Literal["all", "host"]
    attach: Literal["auto", "tcx", "clsact"]
    metrics_bind_address: str
    healthz_bind_address: str
    cluster_cidr: tuple[str, ...]
    log_format: Literal["text", "json"]
    verbosity: int


class Option(NamedTuple):
    """One setting: its name as flag and YAML key, how a value is checked, and what it is for.

    parse takes a string (flag, environment) or a YAML value and raises ValueError; default gives
    the text to parse when nobody set the option, and is None where one must be given.
    """

    name: str
    parse: Callable[[object], Any]
    default: Callable[[], str] | None
    metavar: str
    help: str

    @property
    def field(self) -> str:
        """The name in Settings."""
        return self.name.replace("-", "_")

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return self.parse in (_list, _cidrs)

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return ENVIRONMENT_PREFIX + self.field.upper()


class BindAddress(NamedTuple):
    """Where a server listens; host is an IP address, or empty for all addresses."""

    host: str
    port: int


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Merge and check; flags holds what was given on the command line, by option name.

    Raises ConfigError naming the option and where the value stands, ProbeError without cgroup v2.
    """
    path = flags.get("config") or environ.get(ENVIRONMENT_PREFIX + "CONFIG")
    sources = [
        _from_flags(flags),
        _from_environment(environ),
        _from_file(Path(str(path))) if path else {},
    ]
    return Settings(**{option.field: _value(option, sources) for option in OPTIONS})


def setting(name: str, flag: object, environ: Mapping[str, str]) -> Any:
    """One checked setting for a command that needs no more than that. Raises as load_settings."""
    option = next(option for option in OPTIONS if option.name == name)
    flags = {} if flag is None else {name: flag}
    return _value(option, [_from_flags(flags), _from_environment(environ, strict=False)])


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
    if host:
        _check_ip(host)
    return BindAddress(host, int(port))


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: " (did you mean X?)", or every choice where nothing is near."""
    choices = sorted(known)
    found = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
    if found:
        return f" (did you mean {' or '.join(found)}?)"
    return f" (known: {', '.join(choices)})"


def cgroup_root(mounts: Path = _MOUNTS) -> str:
    """Where cgroup v2 is mounted, the first place if there are several. Raises ProbeError."""
    for line in mounts.read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return where.encode().decode("unicode_escape")
    raise ProbeError(
        "cgroup v2 is not mounted: run `mount -t cgroup2 none DIR`, or name it with --cgroup-root"
    )


class _Given(NamedTuple):
    """A value somebody gave, and the name under which errors speak of it."""

    value: object
    where: str


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    return {name: _Given(value, f"--{name}") for name, value in flags.items()}


def _from_environment(environ: Mapping[str, str], *, strict: bool = True) -> dict[str, _Given]:
    names = {option.variable: option.name for option in OPTIONS}
    given = {}
    for variable, value in environ.items():
        if variable in names:
            given[names[variable]] = _Given(value, variable)
        elif strict and _is_misspelt(variable):
            hint = nearest(variable, names)
            raise ConfigError(f"unknown environment variable {variable}{hint}")
    return given


def _is_misspelt(variable: str) -> bool:
    return (
        variable.startswith(ENVIRONMENT_PREFIX)
        and variable != ENVIRONMENT_PREFIX + "CONFIG"
        and not _SERVICE_LINK.fullmatch(variable)
    )


def _from_file(path: Path) -> dict[str, _Given]:
    names = {option.name for option in OPTIONS}
    content = _read_yaml(path)
    for key in content:
        if key not in names:
            raise ConfigError(f"{path}: unknown key {key!r}{nearest(str(key), names)}")
    return {str(key): _Given(value, f"{path}: {key}") for key, value in content.items()}


def _read_yaml(path: Path) -> Mapping[object, object]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"settings file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path}: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"settings file {path}: want a mapping of option names to values")
    return content


def _value(option: Option, sources: Sequence[Mapping[str, _Given]]) -> Any:
    given = next((source[option.name] for source in sources if option.name in source), None)
    if given is None:
        if option.default is None:
            raise ConfigError(f"--{option.name} {option.metavar} is needed: {option.help}")
        return option.parse(option.default())
    try:
        return option.parse(given.value)
    except ValueError as error:
        raise ConfigError(f"{given.where}: {given.value!r}: {error}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("want a string")  # noqa: TRY004  one kind of error for a wrong value
    return value.strip()


def _path(value: object) -> Path:
    if not _text(value):
        raise ValueError("want a path")
    return Path(_text(value))


def _node_name(value: object) -> str:
    name = _text(value)
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
        raise ValueError("want the name of a Node: lower-case letters, digits, '-' and '.'")
    return name


def _choice(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"unknown value{nearest(str(value), choices)}")
        return str(value)

    return parse


def _list(value: object) -> tuple[str, ...]:
    """Strings and lists of strings, each split at commas, without doubles, in order."""
    items = value if isinstance(value, list | tuple) else [value]
    words = (word.strip() for item in items for word in _text(item).split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _cidrs(value: object) -> tuple[str, ...]:
    from ipaddress import ip_network

    return tuple(str(ip_network(word, strict=False)) for word in _list(value))


def _bind_address(value: object) -> str:
    text = _text(value)
    parse_bind_address(text)
    return text


def _verbosity(value: object) -> int:
    if isinstance(value, bool) or not str(value).isdecimal():
        raise ValueError("want a number from 0")
    return int(str(value))


def _check_ip(host: str) -> None:
    from ipaddress import ip_address

    try:
        ip_address(host)
    except ValueError:
        raise ValueError("want an IP address before the port") from None


OPTIONS: tuple[Option, ...] = (
    Option(
        "manifests",
        _path,
        None,
        "PATH",
        "file or directory with Service, EndpointSlice and Node objects (YAML, JSON), watched",
    ),
    Option(
        "node-name",
        _node_name,
        lambda: os.uname().nodename.lower(),
        "NAME",
        "name of this node's Node object; decides which endpoints are local  [host name]",
    ),
    Option(
        "cgroup-root",
        _path,
        cgroup_root,
        "DIR",
        "cgroup v2 directory whose processes are served at the socket  [cgroup v2 mount]",
    ),
    Option("bpffs-root", _path, lambda: BPFFS_ROOT, "DIR", f"where pins live  [{BPFFS_ROOT}]"),
    Option(
        "host-devices",
        _list,
        lambda: "",
        "PATTERN,...",
        "uplinks and tunnels of the node  [eth*, en*, bond*, vxlan*, wg* and their like]",
    ),
    Option(
        "workload-devices",
        _list,
        lambda: "",
        "PATTERN,...",
        "the host's end of pods' devices, looked at first  [veth*, cali*, eni* and their like]",
    ),
    Option(
        "socket-lb",
        _choice("all", "host"),
        lambda: "all",
        "all|host",
        "whom to serve at the socket: everyone, or all but pods that tc serves  [all]",
    ),
    Option(
        "attach",
        _choice("auto", "tcx", "clsact"),
        lambda: "auto",
        "auto|tcx|clsact",
        "how to attach to devices  [auto: tcx where the kernel has it]",
    ),
    Option(
        "metrics-bind-address",
        _bind_address,
        lambda: METRICS_BIND_ADDRESS,
        "IP:PORT",
        f"/metrics, /proxyMode, /status; empty = off  [{METRICS_BIND_ADDRESS}]",
    ),
    Option(
        "healthz-bind-address",
        _bind_address,
        lambda: HEALTHZ_BIND_ADDRESS,
        "IP:PORT",
        f"/healthz, /livez; empty = off  [{HEALTHZ_BIND_ADDRESS}]",
    ),
    Option(
        "cluster-cidr",
        _cidrs,
        lambda: "",
        "CIDR,...",
        "addresses of the cluster's pods  [none]",
    ),
    Option(
        "log-format",
        _choice("text", "json"),
        lambda: "text",
        "text|json",
        "key=value lines or JSON objects on stderr  [text]",
    ),
    Option("verbosity", _verbosity, lambda: "0", "N", "1 logs every sync  [0]"),
)
