# SPDX-License-Identifier: Apache-2.0
"""ebpflb run: the agent in the foreground; also accepts kube-proxy's command line."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ebpflb.cli import VERBOSITY, add_verbosity
from ebpflb.config.kube_proxy_flags import DEPRECATED_PORTS, IGNORED, SWITCHES, WITHOUT_EFFECT
from ebpflb.config.option import Option
from ebpflb.config.options import OPTIONS
from ebpflb.config.settings import Settings, load_settings
from ebpflb.log import set_up

_log = logging.getLogger("ebpflb.run")

# On the command line it is -v.
_VERBOSITY = "verbosity"
# An option whose value is optional, and true or false.
_SWITCH: dict[str, Any] = {"is_flag": False, "flag_value": "true"}

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class _Level(click.ParamType[int]):
    """A verbosity as a number or by repeating the v: -v, -vv, -v 2, -v=2."""

    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        level = str(value).removeprefix("=")
        if level.isdecimal():
            return int(level)
        if level.strip("v"):
            self.fail(f"{value!r}: want a number from 0", param, ctx)
        return 1 + len(level)


def _option(option: Option, name: str, *, hidden: bool) -> Decorator:
    return click.option(
        f"--{name}",
        metavar=option.metavar,
        help=f"{option.help[0].upper()}{option.help[1:]}",
        multiple=option.is_list,
        hidden=hidden,
        **(_SWITCH if option.is_switch else {}),
    )


def _all_options(command: Callable[..., None]) -> Callable[..., None]:
    """Every option of the tables; aliases and options without effect are hidden."""
    decorators = []
    for option in OPTIONS:
        if option.name != _VERBOSITY:
            decorators.append(_option(option, option.name, hidden=option.name in WITHOUT_EFFECT))
            decorators += [_option(option, alias, hidden=True) for alias in option.aliases]
    for name in (*IGNORED, *DEPRECATED_PORTS):
        switch = _SWITCH if name in SWITCHES else {}
        decorators.append(click.option(f"--{name}", hidden=True, **switch))
    for add in reversed(decorators):
        command = add(command)
    return command


def _action(name: str, text: str) -> Decorator:
    """A flag that does something else than serve; as in kube-proxy, =true may follow."""
    return click.option(
        f"--{name}",
        type=click.BOOL,
        default=False,
        metavar="",
        help=text,
        **_SWITCH,
    )


@click.command(
    # As in kube-proxy: --node_name is --node-name.
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    epilog="""\b
Each option can also be set in the environment (--node-name: EBPFLB_NODE_NAME) or in a YAML file
(node-name: ...). The command line overrides the environment, which overrides the file. A
KubeProxyConfiguration overrides both.

kube-proxy's other flags are accepted; a warning says why each has no effect.

\b
Examples:
  ebpflb run --manifests /etc/ebpflb/manifests
  ebpflb run --manifests services.yaml --host-devices eth0,eth1 --socket-lb host -v
  EBPFLB_MANIFESTS=/etc/ebpflb ebpflb run --log-format json
  ebpflb run --config /var/lib/kube-proxy/config.conf --hostname-override node1
""",
)
@click.option(
    "--config", metavar="FILE", help="YAML file with any of the options below, or kube-proxy's."
)
@_all_options
@click.option(
    "-v",
    "--v",
    "--verbose",
    type=_Level(),
    metavar="[N]",
    multiple=True,
    is_flag=False,
    flag_value="1",
    expose_value=False,
    callback=lambda ctx, param, levels: add_verbosity(ctx, param, sum(levels)),
    help="Log each sync.",
)
@click.option(
    "--write-config-to", metavar="FILE", help="Write the settings in force as YAML, then exit."
)
@_action("cleanup", "Do what `ebpflb cleanup` does, then exit.")
@_action("init-only", "Check that this machine has what the agent needs, then exit.")
@click.pass_context
def run(
    ctx: click.Context, /, write_config_to: str | None, cleanup: bool, init_only: bool, **given: Any
) -> None:
    """Run the agent, which serves this node's Services.

    It runs until SIGTERM or SIGINT. Stopping it breaks no connections: the loaded programs keep
    serving, and the next run takes over. `ebpflb cleanup` removes them. The agent also exits when
    the --config file changes, so that it is restarted.
    """
    settings = _load(ctx, given)
    if write_config_to:
        from ebpflb.config.settings import settings_text

        Path(write_config_to).write_text(settings_text(settings))
    elif cleanup:
        from ebpflb.cli.cleanup import cleanup as remove

        ctx.invoke(remove, bpffs_root=str(settings.bpffs_root))
    elif init_only:
        from ebpflb.agent.sources import require_manifests
        from ebpflb.dataplane.kernel.probe import Probe

        require_manifests(settings)
        Probe().require()
        _log.info("this machine has what the agent needs; nothing was changed")
    else:
        from ebpflb.agent.process import run as run_agent

        run_agent(settings)


def _load(ctx: click.Context, given: dict[str, Any]) -> Settings:
    """The settings. Options without effect are logged as warnings, in the configured log format."""
    flags = {
        name.replace("_", "-"): value for name, value in given.items() if value not in (None, ())
    }
    if ctx.meta.get(VERBOSITY):
        flags[_VERBOSITY] = ctx.meta[VERBOSITY]
    warnings: list[str] = []
    settings = load_settings(flags, os.environ, warnings.append)
    set_up(settings.log_format, settings.verbosity)
    for warning in warnings:
        _log.warning(warning)
    return settings
