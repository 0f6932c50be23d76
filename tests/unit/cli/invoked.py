# SPDX-License-Identifier: Apache-2.0
"""The command line, as a test calls it."""

from collections.abc import Mapping

from click.testing import CliRunner

from ebpflb.cli import main


def output_of(*arguments: str, status: int = 0, env: Mapping[str, str] | None = None) -> str:
    """What `ebpflb` prints; `status`: the one it must exit with."""
    done = CliRunner().invoke(main, arguments, env=env)
    assert done.exit_code == status, done.output
    return done.output
