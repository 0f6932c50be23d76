# SPDX-License-Identifier: Apache-2.0
"""Short answers: what should be the same on all nodes is printed as a digest.

`kubectl ebpflb` compares the digests of all nodes, and asks one node what each digest stands for.
"""

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import click

digest_option: Callable[[Any], Any] = click.option(
    "--digest",
    "digests",
    metavar="DIGEST",
    multiple=True,
    help="Only show what has this digest, as printed by --short; repeatable.",
)


def digest(*parts: object) -> str:
    """A digest of strings, numbers and lists of them; the same in every version of Python."""
    return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def print_short(answer: object) -> None:
    """Print it as JSON on one line, without spaces."""
    click.echo(json.dumps(answer, separators=(",", ":")))
