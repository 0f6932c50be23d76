# SPDX-License-Identifier: Apache-2.0
"""Maps and programs for a bench, on a temporary bpffs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.load.loader import Build, Loader
from ebpflb.dataplane.load.pins import Generation, Pins


@contextmanager
def generation(sizes: Sizes) -> Iterator[Generation]:
    """Compile and load; everything is removed afterwards. No hook runs the programs."""
    with TemporaryDirectory(prefix="ebpflb-bench-") as directory:
        pins = Pins(Path(directory) / "pins")
        try:
            loader = Loader(pins, Build(has_set_retval=True))
            made = loader.load(sizes)
            loader.finish(made)
            yield made
        finally:
            pins.remove_all()
