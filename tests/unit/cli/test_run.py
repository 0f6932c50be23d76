# SPDX-License-Identifier: Apache-2.0
import pytest
from click.testing import CliRunner

from ebpflb.agent import process
from ebpflb.cli import main
from ebpflb.config import OPTIONS, Settings


@pytest.fixture
def run(monkeypatch):
    """Run the command; what the agent was given is kept."""
    given: list[Settings] = []
    monkeypatch.setattr(process, "run", given.append)
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)

    def invoke(*arguments, **environ):
        done = CliRunner().invoke(main, ["run", *arguments], env=environ)
        return done, given[-1] if given else None

    return invoke


BASICS = ("--manifests", "/m", "--cgroup-root", "/cg", "--node-name", "a")


def test_every_setting_but_verbosity_is_an_option():
    names = {name for parameter in main.commands["run"].params for name in parameter.opts}
    assert {f"--{option.name}" for option in OPTIONS} - names == {"--verbosity"}


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


def test_v_may_stand_before_the_command(run, monkeypatch):
    given: list[Settings] = []
    monkeypatch.setattr(process, "run", given.append)
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
        ((), {}, "--manifests PATH is needed"),
        ((*BASICS, "--attach", "x"), {}, "--attach: 'x': unknown value (did you mean tcx?)"),
        (BASICS, {"EBPFLB_ATACH": "tcx"}, "unknown environment variable EBPFLB_ATACH"),
        ((*BASICS, "--config", "/nowhere"), {}, "settings file /nowhere: No such file"),
    ],
)
def test_a_wrong_setting_is_one_line(run, arguments, environ, line):
    done, settings = run(*arguments, **environ)
    assert (done.exit_code, settings) == (1, None)
    assert done.output.startswith(f"Error: {line}")
    assert done.output.count("\n") == 1


def test_an_unknown_option_is_a_usage_error_with_the_nearest_name(run):
    done, _ = run("--host-device", "eth0")
    assert done.exit_code == 2
    assert "--host-devices" in done.output
