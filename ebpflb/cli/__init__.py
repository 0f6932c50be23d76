# SPDX-License-Identifier: Apache-2.0
"""The command line. One file per command; a command's file is imported when it is used.

Every error is one line on stderr: exit status 1 for a failure, 2 for a usage error,
130 after Ctrl-C.
"""

import errno
import signal
from collections import UserDict
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from ebpflb import __version__
from ebpflb.errors import EbpflbError, SettingError

VERBOSITY = "ebpflb.verbosity"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of a program's group, which its commands inherit."""
INTERRUPTED = 128 + signal.SIGINT
"""The exit status after Ctrl-C, as of a shell's command."""


class Commands(UserDict[str, Any]):
    """Name -> command; the stored values are "module:attribute"."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = super().__getitem__(name).partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class _WrongSetting(click.ClickException):
    exit_code = 2


class _WrongCommandLine(_WrongSetting):
    def __init__(self, error: click.UsageError) -> None:
        path = error.ctx.command_path if error.ctx else "ebpflb"
        text = error.format_message().rstrip(".")
        super().__init__(f"{text} (see `{path} --help`)")


class CommandGroup(click.Group):
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the options before the command's name."""
        try:
            return super().make_context(*args, **extra)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise _WrongCommandLine(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; any error becomes one line."""
        # Only the main thread may.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, _interrupt)
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise _WrongCommandLine(error) from error
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort) as error:
            raise click.exceptions.Exit(INTERRUPTED) from error
        except EbpflbError as error:
            kind = _WrongSetting if isinstance(error, SettingError) else click.ClickException
            raise kind(str(error)) from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            raise click.ClickException(_explain(error, ctx.meta.get(VERBOSITY, 0))) from error


def _interrupt(*_: object) -> None:
    """The first Ctrl-C ends the command; another one does not disturb that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _explain(error: Exception, verbosity: int) -> str:
    if verbosity:
        import traceback

        return "".join(traceback.format_exception(error)).rstrip()
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        return f"{error.filename or 'input or output'}: {error.strerror or text}"
    return f"unexpected {type(error).__name__}: {text} (this is a bug; -v shows where)"


def add_verbosity(ctx: click.Context, _: click.Parameter, count: int) -> int:
    """Callback of -v, before or after the command's name."""
    ctx.meta[VERBOSITY] = ctx.meta.get(VERBOSITY, 0) + count
    return count


def verbose_option(text: str) -> Callable[[Any], Any]:
    """The -v option before the command's name. `text`: its help."""
    return click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=add_verbosity, help=text
    )


@click.group(
    cls=CommandGroup,
    commands=Commands(
        {
            "run": "ebpflb.cli.run:run",
            "status": "ebpflb.cli.status:status",
            "services": "ebpflb.cli.services:services",
            "connections": "ebpflb.cli.connections:connections",
            "maps": "ebpflb.cli.maps:maps",
            "top": "ebpflb.cli.top:top",
            "flows": "ebpflb.cli.flows:flows",
            "doctor": "ebpflb.cli.doctor:doctor",
            "explain": "ebpflb.cli.explain:explain",
            "cleanup": "ebpflb.cli.cleanup:cleanup",
            "relay": "ebpflb.relay.command:relay",
            "gateway": "ebpflb.gateway.command:gateway",
            "takeover": "ebpflb.cli.takeover:takeover",
            "lab": "ebpflb.cli.lab:lab",
            "completion": "ebpflb.cli:completion",
        }
    ),
    context_settings=CONTEXT,
    epilog="""\b
Examples:
  ebpflb run --manifests /etc/ebpflb/manifests
  ebpflb status
  ebpflb services -n shop
  ebpflb flows --follow --verdict refused,dropped
  ebpflb explain host default/web
  ebpflb COMMAND --help
""",
)
@click.version_option(__version__, prog_name="ebpflb")
@verbose_option("Log more; show where an unexpected error comes from.")
def main() -> None:
    """Kubernetes Services without kube-proxy, in the kernel with eBPF, beside the CNI."""


@click.command(
    epilog="""\b
Examples:
  source <(ebpflb completion bash)                                    # this shell
  ebpflb completion bash > /etc/bash_completion.d/ebpflb              # every shell
  ebpflb completion fish > ~/.config/fish/completions/ebpflb.fish
"""
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script for a shell."""
    from click.shell_completion import get_completion_class

    if script := get_completion_class(shell):
        click.echo(script(main, {}, "ebpflb", "_EBPFLB_COMPLETE").source())
