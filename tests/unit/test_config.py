# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields
from pathlib import Path

import pytest

from ebpflb import config
from ebpflb.config import (
    OPTIONS,
    BindAddress,
    Settings,
    cgroup_root,
    load_settings,
    nearest,
    parse_bind_address,
    setting,
)
from ebpflb.errors import ConfigError, ProbeError

GIVEN = {"manifests": "/m", "cgroup-root": "/cg"}


def test_every_setting_has_an_option_in_the_same_order():
    assert [option.field for option in OPTIONS] == [field.name for field in fields(Settings)]


def test_defaults(monkeypatch):
    monkeypatch.setattr("os.uname", lambda: type("Names", (), {"nodename": "Node-A.Example"}))
    assert load_settings(GIVEN, {}) == Settings(
        manifests=Path("/m"),
        node_name="node-a.example",
        cgroup_root=Path("/cg"),
        bpffs_root=Path("/sys/fs/bpf/ebpflb"),
        host_devices=(),
        workload_devices=(),
        socket_lb="all",
        attach="auto",
        metrics_bind_address="127.0.0.1:10249",
        healthz_bind_address="0.0.0.0:10256",
        cluster_cidr=(),
        log_format="text",
        verbosity=0,
    )


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("node-name: from-file\nattach: tcx\nsocket-lb: host\n")
    environ = {"EBPFLB_NODE_NAME": "from-environment", "EBPFLB_ATTACH": "clsact", "PATH": "/bin"}
    settings = load_settings({**GIVEN, "config": str(file), "node-name": "from-flag"}, environ)
    assert settings.node_name == "from-flag"
    assert settings.attach == "clsact"
    assert settings.socket_lb == "host"


def test_the_file_may_be_named_by_the_environment_and_may_be_empty(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("")
    assert load_settings(GIVEN, {"EBPFLB_CONFIG": str(file)}).attach == "auto"


@pytest.mark.parametrize(
    "value", ["eth*, bond0,,eth*", ("eth*", "bond0"), ["eth*,bond0"], ("eth*,", "bond0,eth*")]
)
def test_lists_are_repeated_or_split_at_commas(value):
    assert load_settings({**GIVEN, "host-devices": value}, {}).host_devices == ("eth*", "bond0")


def test_cidrs_are_made_canonical():
    given = {**GIVEN, "cluster-cidr": "10.1.2.3/16,FD00::1/64"}
    assert load_settings(given, {}).cluster_cidr == ("10.1.0.0/16", "fd00::/64")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("manifests", " ", "want a path"),
        ("manifests", 7, "want a string"),
        ("node-name", "Node_A", "lower-case letters"),
        ("node-name", "", "want the name of a Node"),
        ("socket-lb", "hosts", "did you mean host?"),
        ("attach", "xdp", "known: auto, clsact, tcx"),
        ("metrics-bind-address", "10249", "want IP:PORT"),
        ("metrics-bind-address", "127.0.0.1:65536", "a port from 1 to 65535"),
        ("healthz-bind-address", "::1:80", "stands in brackets"),
        ("healthz-bind-address", "localhost:80", "want an IP address"),
        ("cluster-cidr", "10.0.0.0/33", "does not appear to be"),
        ("host-devices", {"a": 1}, "want a string"),
        ("log-format", "yaml", "known: json, text"),
        ("verbosity", "-1", "want a number"),
        ("verbosity", True, "want a number"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_reason(name, value, words):
    with pytest.raises(ConfigError, match=r"^--") as caught:
        load_settings({**GIVEN, name: value}, {})
    assert str(caught.value).startswith(f"--{name}: {value!r}: ")
    assert words in str(caught.value)


def test_errors_say_where_the_value_stands(tmp_path):
    with pytest.raises(ConfigError, match=r"^EBPFLB_ATTACH: 'x': unknown value"):
        load_settings(GIVEN, {"EBPFLB_ATTACH": "x"})
    file = tmp_path / "settings.yaml"
    file.write_text("attach: 7")
    with pytest.raises(ConfigError, match=f"^{file}: attach: 7: unknown value"):
        load_settings({**GIVEN, "config": file}, {})


def test_a_setting_that_must_be_given_is_asked_for():
    with pytest.raises(ConfigError, match=r"^--manifests PATH is needed: file or directory"):
        load_settings({}, {})


def test_an_unknown_variable_is_a_misspelling():
    with pytest.raises(ConfigError, match=r"EBPFLB_NODENAME .did you mean EBPFLB_NODE_NAME"):
        load_settings(GIVEN, {"EBPFLB_NODENAME": "a"})


@pytest.mark.parametrize(
    "name",
    [
        "EBPFLB_SERVICE_HOST",
        "EBPFLB_SERVICE_PORT",
        "EBPFLB_SERVICE_PORT_METRICS",
        "EBPFLB_PORT",
        "EBPFLB_PORT_10249_TCP",
        "EBPFLB_PORT_10249_TCP_ADDR",
        "EBPFLB_METRICS_SERVICE_HOST",
    ],
)
def test_what_kubernetes_puts_there_for_a_service_called_ebpflb_is_none(name):
    load_settings(GIVEN, {name: "10.96.0.1"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node_name: a", "unknown key 'node_name' .did you mean node-name"),
        ("7: a", "unknown key 7 "),
        ("[a]", "want a mapping"),
        ("a: [", "while parsing"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, words):
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_settings({"config": file}, {})
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"settings file .*: No such file"):
        load_settings({"config": tmp_path / "x"}, {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        (":80", BindAddress("", 80)),
        ("127.0.0.1:1", BindAddress("127.0.0.1", 1)),
        ("[::]:65535", BindAddress("::", 65535)),
    ],
)
def test_bind_addresses(text, address):
    assert parse_bind_address(text) == address


def test_one_setting_alone_does_not_mind_the_others():
    environ = {"EBPFLB_BPFFS_ROOT": "/e", "EBPFLB_ATTACH": "x", "EBPFLB_X": ""}
    assert setting("bpffs-root", None, environ) == Path("/e")
    assert setting("bpffs-root", "/f", environ) == Path("/f")


def test_cgroup_v2_is_found_where_it_is_mounted(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /a\\040b cgroup2 rw 0 0\n"
        "cgroup2 /second cgroup2 rw 0 0\n"
    )
    assert cgroup_root(mounts) == "/a b"
    mounts.write_text("proc /proc proc rw 0 0\n")
    with pytest.raises(ProbeError, match=r"cgroup v2 is not mounted: .*--cgroup-root"):
        cgroup_root(mounts)


def test_the_nearest_words_are_offered_else_all():
    assert nearest("tcp", ["tcx", "clsact"]) == " (did you mean tcx?)"
    assert nearest("?", ["b", "a"]) == " (known: a, b)"


def test_the_default_of_the_cgroup_is_looked_up_only_when_needed(monkeypatch):
    monkeypatch.setattr(config, "_MOUNTS", Path("/nowhere"))
    load_settings(GIVEN, {})
