# SPDX-License-Identifier: Apache-2.0
"""Turns a copy of ebpflb into a version with another map layout."""

import re
from pathlib import Path

from ebpflb.dataplane.layout.structs import LAYOUT_VERSION

NEWER_LAYOUT = LAYOUT_VERSION + 1


def change_layout(package: Path, bpf: Path) -> None:
    """Give frontends and backends one more field each. package: ebpflb/; bpf: the C programs."""
    structs = package / "dataplane/layout/structs.py"
    # The name must contain "pad", because the packing code omits only padding.
    fields = r"(struct lb_(desc|backend) \{[^}]*)\}", r"\1\t__u64 pad_more;\n}"
    _edit(bpf / "service_types.h", *fields)
    mirrors = r"(class Lb(Desc|Backend)\(\s*Struct[^)]*\):.*?)\n    \]"
    _edit(structs, mirrors, r'\1\n        ("pad_more", u64),\n    ]')
    _edit(structs, r"(LAYOUT_VERSION = )\d+()", rf"\g<1>{NEWER_LAYOUT}", times=1)


def _edit(path: Path, pattern: str, replacement: str, times: int = 2) -> None:
    """Replace this many occurrences of the pattern in a file."""
    text, count = re.subn(pattern, replacement, path.read_text(), flags=re.DOTALL)
    assert count == times, path
    path.write_text(text)
