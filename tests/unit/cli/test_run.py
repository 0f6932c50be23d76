# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ebpflb.agent import process
from ebpflb.cli import main
from ebpflb.config.kube_proxy_flags import DEPRECATED_PORTS, IGNORED, WITHOUT_EFFECT
from ebpflb.config.options import OPTIONS
from ebpflb.config.settings import Settings

KUBEADM = Path(__file__).parent.parent / "config/kube_proxy/kubeadm.yaml"


@pytest.fixture
def given(monkeypatch, logging_as_before):
    """What the agent was given; the test's own process is left as it is."""
    found: list[Settings] = []
    monkeypatch.setattr(process, "run", found.append)
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    return found


@pytest.fixture
def run(given):
    """Run the command; what it printed, and what the agent was given."""

    def invoke(*arguments, **environ):
        done = CliRunner().invoke(main, ["run", *arguments], env=environ)
        return done, given[-1] if given else None

    return invoke


BASICS = ("--manifests", "/m", "--cgroup-root", "/cg", "--node-name", "a")


def parameters():
    return {name: each for each in main.commands["run"].params for name in each.opts}


def test_every_setting_but_verbosity_is_an_option_by_each_of_its_names():
    names = {f"--{name}" for option in OPTIONS for name in option.names}
    assert names - parameters().keys() == {"--verbosity"}


def test_help_shows_what_works_and_nothing_else():
    shown = {name for name, each in parameters().items() if not each.hidden}
    for name in (*IGNORED, *DEPRECATED_PORTS, *WITHOUT_EFFECT):
        assert f"--{name}" in parameters()
        assert f"--{name}" not in shown
    assert {"--manifests", "--kubeconfig", "--oom-score-adj", "--cleanup", "--v"} <= shown


def test_options_become_settings(run):
    done, settings = run(
        *BASICS,
        *("--host-devices", "eth0,eth1", "--host-devices", "bond0"),
        *("--cluster-cidr", "10.0.0.0/8", "--socket-lb", "host", "-v"),
    )
    assert done.exit_code == 0
    assert settings.host_devices == ("eth0", "eth1", "bond0")
    assert settings.cluster_cidr == ("10.0.0.0/8",)
    assert (settings.socket_lb, settings.verbosity) == ("host", 1)


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ((), 0),
        (("-v",), 1),
        (("-vv",), 2),
        (("-v", "-v"), 2),
        (("-v", "--attach", "tcx"), 1),
        (("-v=4",), 4),
        (("-v4",), 4),
        (("-v", "4"), 4),
        (("--v=2",), 2),
        (("--v", "2"), 2),
        (("--verbose",), 1),
    ],
)
def test_v_counts_or_is_followed_by_a_number_as_with_kube_proxy(run, arguments, level):
    done, settings = run(*BASICS, *arguments)
    assert done.exit_code == 0, done.output
    assert settings.verbosity == level


@pytest.mark.parametrize("argument", ["-vx", "--v=two", "-v=-1"])
def test_v_with_something_else_is_a_usage_error(run, argument):
    done, _ = run(*BASICS, argument)
    assert done.exit_code == 2
    assert "want a number from 0" in done.output


def test_v_may_stand_before_the_command(given):
    CliRunner().invoke(main, ["-v", "run", *BASICS, "-v"])
    assert given[0].verbosity == 2


def test_the_environment_and_the_file_count_too(run, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("attach: tcx\nmanifests: /from-file\n")
    _, settings = run(
        *("--config", str(file), "--cgroup-root", "/cg", "--node-name", "a"),
        EBPFLB_MANIFESTS="/from-environment",
    )
    assert (str(settings.manifests), settings.attach) == ("/from-environment", "tcx")


@pytest.mark.parametrize(
    ("arguments", "environ", "line"),
    [
        (("--manifests", ""), {}, "--manifests: '': want a path"),
        ((*BASICS, "--hostname-override", "b"), {}, "--hostname-override: the same setting as"),
        ((*BASICS, "--proxy-mode", "nft"), {}, "--proxy-mode: 'nft': unknown value"),
        ((*BASICS, "--attach", "x"), {}, "--attach: 'x': unknown value (did you mean tcx?)"),
        (BASICS, {"EBPFLB_ATACH": "tcx"}, "unknown environment variable EBPFLB_ATACH"),
        ((*BASICS, "--config", "/nowhere"), {}, "settings file /nowhere: No such file"),
    ],
)
def test_a_wrong_setting_is_one_line(run, arguments, environ, line):
    done, settings = run(*arguments, **environ)
    assert (done.exit_code, settings) == (2, None)
    assert done.output.startswith(f"Error: {line}")
    assert done.output.count("\n") == 1


def test_settings_that_cannot_be_written_are_a_failure(run):
    done, settings = run(*BASICS, "--write-config-to", "/")
    assert (done.exit_code, settings) == (1, None)
    assert done.output == "Error: /: Is a directory\n"


def test_an_unknown_option_is_a_usage_error_with_the_nearest_name(run):
    done, _ = run("--host-device", "eth0")
    assert done.exit_code == 2
    assert "--host-devices" in done.output


def test_kube_proxys_command_line_and_file_work_as_they_are(run):
    done, settings = run(
        *("--config", str(KUBEADM), "--hostname-override=Node1", "--cgroup-root=/cg"),
        *("--proxy-mode=ipvs", "--profiling", "--ipvs-strict-arp=true", "--v=2"),
    )
    assert done.exit_code == 0, done.output
    assert (settings.node_name, settings.cluster_cidr) == ("node1", ("10.244.0.0/16",))
    assert settings.manifests is None
    lines = [line for line in done.output.splitlines() if " is ignored" in line]
    assert [line.split("--")[1].split()[0] for line in lines] == [
        "ipvs-strict-arp",
        "profiling",
        "proxy-mode",
    ]
    assert all(" level=warning part=run msg=" in line for line in lines)


def test_warnings_come_in_the_format_that_was_asked_for(run):
    done, _ = run(*BASICS, "--profiling", "--log-format", "json")
    line = yaml.safe_load(done.output)
    assert (line["level"], line["msg"]) == (
        "warning",
        "--profiling is ignored: there is no /debug/pprof",
    )


@pytest.mark.parametrize(
    ("argument", "on"),
    [("--masquerade-all", True), ("--masquerade-all=true", True), ("--masquerade-all=0", False)],
)
def test_a_switch_may_have_a_value(run, argument, on):
    assert run(*BASICS, argument)[1].masquerade_all is on


def test_an_underscore_is_as_good_as_a_dash(run):
    done, settings = run(*BASICS, "--cluster_cidr=10.0.0.0/8", "--proxy_mode", "ipvs")
    assert done.exit_code == 0, done.output
    assert settings.cluster_cidr == ("10.0.0.0/8",)


@pytest.mark.parametrize("arguments", [("--oom-score-adj=-5",), ("--oom-score-adj", "-5")])
def test_a_value_may_begin_with_a_dash(run, arguments):
    assert run(*BASICS, *arguments)[1].oom_score_adj == -5


def test_the_settings_in_force_can_be_written_and_read_again(run, given, tmp_path):
    file = tmp_path / "settings.yaml"
    done, _ = run(*BASICS, "--metrics-port=0", "--write-config-to", str(file))
    assert (done.exit_code, given) == (0, [])
    _, settings = run("--config", str(file))
    assert (settings.node_name, settings.metrics_bind_address) == ("a", "")


def test_cleanup_removes_below_the_pins_of_the_settings(run, given, tmp_path):
    done, _ = run(*BASICS, "--cleanup=true", "--bpffs-root", str(tmp_path))
    assert (done.exit_code, done.output, given) == (0, "nothing to remove\n", [])
    assert run(*BASICS, "--cleanup=false")[1] is not None


def test_init_only_checks_the_machine_and_changes_nothing(run, given, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "ebpflb.dataplane.kernel.probe.Probe.require", lambda probe: asked.append(probe)
    )
    done, _ = run("--manifests", str(tmp_path), *BASICS[2:], "--init-only")
    assert (done.exit_code, given, len(asked)) == (0, [], 1)
    assert "this machine has what the agent needs" in done.output
    done, _ = run(*BASICS, "--init-only")
    assert (done.exit_code, given, len(asked)) == (1, [], 1)
    assert "--manifests /m: No such file or directory" in done.output
