# SPDX-License-Identifier: Apache-2.0
"""The release with another map layout, which upgrade tests run, can be made from this checkout."""

import shutil
from pathlib import Path

import ebpflb
from ebpflb.dataplane.load.source_text import bpf_directory
from tests.e2e.harness.newer_layout import NEWER_LAYOUT, change_layout


def test_the_newer_layout_can_be_made(tmp_path: Path) -> None:
    package, bpf = tmp_path / "ebpflb", tmp_path / "bpf"
    shutil.copytree(Path(ebpflb.__file__).parent / "dataplane", package / "dataplane")
    shutil.copytree(bpf_directory(), bpf)
    change_layout(package, bpf)
    text = (package / "dataplane/layout/structs.py").read_text()
    assert (text.count("pad_more"), f"LAYOUT_VERSION = {NEWER_LAYOUT}\n" in text) == (2, True)
    assert (bpf / "service_types.h").read_text().count("pad_more") == 2
