# SPDX-License-Identifier: Apache-2.0
"""What the programs cost the verifier and how large they are. Compared with nothing: no target."""

import os
from collections.abc import Iterator

from ebpflb.dataplane import libbpf
from ebpflb.dataplane.programs import PROGRAMS
from ebpflb.dataplane.sizes import Sizes
from tests.bench.generation import generation
from tests.bench.options import Options
from tests.bench.report import Row


def run(_options: Options) -> Iterator[Row]:
    """One row for each program."""
    with generation(Sizes()) as made:
        for name in PROGRAMS:
            fd = libbpf.obj_get(made.progs / name)
            try:
                facts = libbpf.prog_info(fd)
            finally:
                os.close(fd)
            yield Row(
                "programs",
                name,
                f"{facts.xlated_prog_len // 8:,} instructions, {facts.jited_prog_len:,} bytes",
                f"{facts.verified_insns:,} verified",
            )
