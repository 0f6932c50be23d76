# SPDX-License-Identifier: Apache-2.0
"""`make test-kernels`, or `python -m tests.kernels [VERSION...]`: tests on other kernels."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import click

from ebpflb.errors import EbpflbError
from tests.kernels import machine, packages, userland
from tests.kernels.architecture import AMD64, ARCHITECTURES, Architecture
from tests.kernels.compiler import Compiler
from tests.kernels.errors import KernelError
from tests.kernels.selection import LONG, PARTS

_QUICK_SECONDS, _LONG_SECONDS = 1200, 3600
_TEST_TIMEOUT_SECONDS = 900

_VERSIONS = click.Choice(list(packages.RELEASES))
_PARTS = click.Choice(list(PARTS))
_NAMES = click.Choice(list(ARCHITECTURES))


@click.command()
@click.argument("versions", nargs=-1, type=_VERSIONS, metavar="[VERSION]...")
@click.option("--arch", type=_NAMES, default=AMD64.name, show_default=True)
@click.option("--long", "is_long", is_flag=True, help="All parts but the lab: many minutes.")
@click.option("--only", multiple=True, type=_PARTS, help="One part.")
@click.option("-k", "expression", default="", help="As pytest's -k.")
def main(
    versions: Sequence[str], arch: str, is_long: bool, only: Sequence[str], expression: str
) -> None:
    """Boot kernels in qemu and run the tests there that depend on the kernel.

    VERSION is 5.10, 6.1, 6.12, or what sid or backports to trixie have; none means all. Without
    options a quick selection runs. arm64 has a bcc of its own inside, whose clang makes other
    bytecode; it takes minutes.
    """
    if os.geteuid() != 0:
        raise click.ClickException("needs root: inside, everybody is who he is outside")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parts = only or (LONG if is_long else ["quick"])
    tests = list(dict.fromkeys(path for name in parts for path in PARTS[name]))
    timeout = _LONG_SECONDS if is_long or only else _QUICK_SECONDS
    compiler = Compiler()
    told = []
    failed = False
    for version in versions or packages.RELEASES:
        try:
            status, summary = _run(
                version, ARCHITECTURES[arch], [*tests, "-k", expression], compiler, timeout
            )
        except EbpflbError as error:
            status, summary = 1, str(error)
        failed = failed or bool(status)
        told.append(summary)
    click.echo("\n".join(told))
    sys.exit(failed)


def _run(
    version: str,
    architecture: Architecture,
    tests: Sequence[str],
    compiler: Compiler,
    timeout: float,
) -> tuple[int, str]:
    began = time.monotonic()
    image = packages.fetch(version, architecture)
    booted = machine.Machine(architecture, image, userland.fetch(architecture))
    report = machine.RESULTS / "junit.xml"
    options = [
        *("-q", "--color=no", "--durations=5", "-p", "no:cacheprovider"),
        *("-p", "tests.kernels.patience", f"--timeout={_TEST_TIMEOUT_SECONDS}"),
        *(f"--junit-xml={report}", "-o", "junit_family=xunit1"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "pytest", *options, *tests]
        status = machine.run(booted, command, Path(folder), compiler, timeout)
        counts = _counts(Path(folder) / "results/junit.xml")
    seconds = time.monotonic() - began
    return status, f"Linux {image.release}: {counts}, in {seconds:.0f} s"


def _counts(report: Path) -> str:
    if not report.exists():
        raise KernelError("the tests did not start; the reason is above")
    (suite,) = ElementTree.parse(report).getroot()  # noqa: S314  our own pytest wrote it
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    skipped = int(suite.attrib["skipped"])
    passed = int(suite.attrib["tests"]) - failed - skipped
    return f"{passed} tests passed, {failed} failed, {skipped} for what the kernel lacks"


if __name__ == "__main__":
    main()
