# SPDX-License-Identifier: Apache-2.0
"""A copy of the program turned into a version with another map layout."""

import re
from pathlib import Path

from ebpflb.dataplane.layout.structs import LAYOUT_VERSION

NEWER_LAYOUT = LAYOUT_VERSION + 1


def change_layout(package: Path, bpf: Path) -> None:
    """Give frontends and backends one more field each. package: ebpflb/; bpf: the C programs."""
    structs, records = (
        package / "dataplane/layout/structs.py",
        package / "dataplane/layout/records.py",
    )
    _edit(bpf / "service_types.h", r"(struct lb_(desc|backend) \{[^}]*)\}", r"\1\t__u64 more;\n}")
    _edit(
        structs,
        r"(class (Desc|Backend)\(Struct\):.*?)\n    \]",
        r'\1\n        ("more", u64),\n    ]',
    )
    _edit(records, r'(_(DESC|BACKEND) = Struct\("[^"]*)"', r'\1 8x"')
    _edit(structs, r"(LAYOUT_VERSION = )\d+()", rf"\g<1>{NEWER_LAYOUT}", times=1)


def _edit(path: Path, pattern: str, replacement: str, times: int = 2) -> None:
    """Replace what the pattern finds so many times in a file."""
    text, count = re.subn(pattern, replacement, path.read_text(), flags=re.DOTALL)
    assert count == times, path
    path.write_text(text)
