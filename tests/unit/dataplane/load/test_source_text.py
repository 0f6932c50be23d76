# SPDX-License-Identifier: Apache-2.0
"""The single source text that is compiled: its parts, and the origin of each line."""

import re
from pathlib import Path

from ebpflb.dataplane.load.source_text import PROGRAM_FILES, bpf_directory, source_hash, source_text

BPF = bpf_directory()


def origin_of_lines(text: str) -> list[tuple[str, int, str]]:
    """File, line number and text of each line that is behind a marker."""
    found: list[tuple[str, int, str]] = []
    name, number = "", 0
    for line in text.splitlines():
        if marker := re.match(r'#line (\d+) "(.*)"', line):
            name, number = marker[2], int(marker[1])
        else:
            found.append((name, number, line))
            number += 1
    return found


def test_every_line_says_truly_where_it_is_from():
    files = {path.name: path.read_text().splitlines() for path in BPF.glob("*.[ch]")}
    lines = origin_of_lines(source_text())
    ours = [(name, number, text) for name, number, text in lines if name in files]
    assert len(ours) > 1000
    for name, number, text in ours:
        assert files[name][number - 1] == text, f"{name}:{number}"


def test_every_file_is_in_it_once_and_nothing_is_left_out():
    lines = origin_of_lines(source_text())
    for path in BPF.glob("*.[ch]"):
        expected = [line for line in path.read_text().splitlines() if '#include "' not in line]
        assert [text for name, _, text in lines if name == path.name] == expected


def test_no_quoted_include_is_left():
    assert '#include "' not in source_text()


def test_kernel_headers_are_left_to_the_compiler():
    assert "#include <linux/tcp.h>" in source_text()


def test_layout_assertions_are_part_of_it():
    assert "_Static_assert(sizeof(struct lb_desc) ==" in source_text()


def test_includes_of_includes_are_expanded(tmp_path: Path):
    (tmp_path / "a.c").write_text('#include "b.h"\nint a;\n#include "c.h"\n')
    (tmp_path / "b.h").write_text('int b;\n  #include "c.h"\n')
    (tmp_path / "c.h").write_text("int c;\n#include <linux/ip.h>\n")
    lines = origin_of_lines(source_text(("a.c",), tmp_path))
    named = [line for line in lines if line[0] in ("a.c", "b.h", "c.h")]
    assert named == [
        ("b.h", 1, "int b;"),
        ("c.h", 1, "int c;"),
        ("c.h", 2, "#include <linux/ip.h>"),
        ("a.c", 2, "int a;"),
    ]


def test_the_hash_follows_text_and_settings():
    text = source_text()
    first = source_hash(text, {"A": "1", "B": "2"})
    assert first == source_hash(text, {"B": "2", "A": "1"})
    others = (
        source_hash(text + " ", {"A": "1", "B": "2"}),
        source_hash(text, {"A": "1"}),
        source_hash(text, {"A": "1", "B": "3"}),
        source_hash(text, {"A": "12", "B": ""}),
    )
    assert len({first, *others}) == 5
    assert len(first) == 32


def test_both_program_files_are_expanded_by_default():
    names = {name for name, _, _ in origin_of_lines(source_text())}
    assert set(PROGRAM_FILES) <= names
