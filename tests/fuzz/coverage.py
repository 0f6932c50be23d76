# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz.coverage TARGET FLAGS...`: runs libFuzzer's inputs for a target.

The flags are libFuzzer's, and files or folders of inputs:
https://llvm.org/docs/LibFuzzer.html#options
"""

import logging
import sys

import atheris

from tests.fuzz.targets import target

COMMAND = "-m tests.fuzz.coverage"


def main() -> None:
    name, *flags = sys.argv[1:]
    with atheris.instrument_imports(include=["ebpflb"]):
        playing = target(name).playing
    logging.lastResort = None
    with playing() as play:
        # To merge, libFuzzer runs its command again, in a shell.
        atheris.Setup([f"{sys.executable} {COMMAND} {name}", *flags], play)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
