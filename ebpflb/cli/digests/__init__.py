# SPDX-License-Identifier: Apache-2.0
"""Short answers: what all nodes should have the same is printed as a digest.

`kubectl ebpflb` compares the digests of all nodes, and asks one node what a digest stands for.
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
    help="Only what has this digest, as --short prints it; may be given again.",
)


def digest(*parts: object) -> str:
    """Of strings, numbers, and lists of them: equal for equal parts, in every version of Python."""
    return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def print_short(answer: object) -> None:
    """On one line, without spaces."""
    click.echo(json.dumps(answer, separators=(",", ":")))
