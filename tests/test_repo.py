# SPDX-License-Identifier: Apache-2.0
"""The repository's own rules: sizes, licences, names, and documents that keep up with the code."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import ebpflb

ROOT = Path(__file__).parent.parent
FOLDERS = ("bpf", "charts", "docs", "ebpflb", "tests", ".ci", ".github")
MADE = {"__pycache__", "_bpf", ".git"}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Words that say nothing, or that the field has a better word for.
VAGUE = re.compile(
    r"_(manager|processor|utils?|helpers?|common|misc|tmp|master|slave|whitelist|blacklist"
    r"|sticky|svc|retcode)_|^_(lb_)?(do|process|handle)_[a-z]"
)
# Vague too, but the words of bpf(2) itself, which only the dataplane speaks.
KERNEL_WORDS = re.compile(r"_(data|info)_")
# Names defined by other people's interfaces.
FOREIGN_NAMES = {"tmp_path", "tmp_path_factory", "do_GET", "do_HEAD", "do_POST", "do_PATCH"} | {
    "do_DELETE",
    "handle_error",
    "master",  # kube-proxy's flag
}


# Folders that may have more than 20 files.
LARGE_FOLDERS = {
    "bpf": "one program out of one text: headers include each other by their names alone",
}


def repository_files() -> Iterator[Path]:
    for top in sorted(ROOT.iterdir()):
        found = top.rglob("*") if top.name in FOLDERS else [top]
        yield from (path for path in sorted(found) if is_written(path) and path.is_file())


def is_written(path: Path) -> bool:
    """Whether a file belongs to the project, rather than to a tool's output or to copied texts."""
    parts = path.relative_to(ROOT).parts
    copied = parts[:3] == ("bpf", "uapi", "include") or "LICENSES" in parts
    return not copied and not MADE.intersection(parts) and parts[0] != ".coverage"


def matching(*patterns: str) -> list[Path]:
    return [path for path in repository_files() if any(path.match(item) for item in patterns)]


def where(path: Path, line: int = 0) -> str:
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


@cache
def python_trees() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple((path, ast.parse(path.read_text(), str(path))) for path in matching("*.py"))


def function_limit(path: Path, name: str) -> int:
    return 60 if path.is_relative_to(ROOT / "tests") and name.startswith("test") else 50


class CFunction(NamedTuple):
    name: str
    line: int
    length: int
    is_static: bool


def c_functions(path: Path) -> Iterator[CFunction]:
    """Yield the functions of a file in kernel style: braces of a body stand in the first column."""
    text = path.read_text()
    for found in re.finditer(r"^[a-z][^;{}#]*\)\n\{\n.*?^\}", text, re.MULTILINE | re.DOTALL):
        name = re.search(r"(\w+)\(", found[0])
        assert name
        line = text.count("\n", 0, found.start()) + 1
        length = found[0].count("\n") + 1
        yield CFunction(name[1], line, length, found[0].startswith("static"))


def is_vague(name: str, path: Path) -> bool:
    words = "_" + re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().lstrip("_") + "_"
    speaks_bpf = path.is_relative_to(ROOT / "ebpflb/dataplane")
    return bool(VAGUE.search(words) or (not speaks_bpf and KERNEL_WORDS.search(words)))


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno


def test_files_stay_small():
    kinds = {350: ("*.[ch]", "*.js", "*.css"), 500: ("*.py",)}
    limits = [(path, limit) for limit, names in kinds.items() for path in matching(*names)]
    too_long = [
        f"{where(path)}: {line_count(path)} lines, limit {limit}"
        for path, limit in limits
        if line_count(path) > limit
    ]
    assert not too_long


def test_folders_stay_small():
    counts = Counter(where(path.parent) for path in repository_files() if path.parent != ROOT)
    large = {name: count for name, count in counts.items() if count > 20}
    assert not [name for name in large if name not in LARGE_FOLDERS], large


def test_no_two_classes_of_the_package_have_one_name():
    counts = Counter(
        node.name
        for path, tree in python_trees()
        if path.is_relative_to(ROOT / "ebpflb")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in counts.items() if count > 1]


def test_python_functions_stay_small():
    too_long = [
        f"{where(path, node.lineno)}: {node.name}"
        for path, tree in python_trees()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
        and (node.end_lineno or 0) - node.lineno + 1 > function_limit(path, node.name)
    ]
    assert not too_long


def test_c_functions_stay_small():
    too_long = [
        f"{where(path, function.line)}: {function.name} has {function.length} lines"
        for path in matching("*.[ch]")
        for function in c_functions(path)
        if function.length > 60
    ]
    assert not too_long


def test_every_source_file_names_its_licence():
    kinds = ("*.py", "*.[ch]", "*.toml", "*.yml", "*.yaml", "Makefile", ".ci/*", ".clang-format")
    of_page = ("*.html", "*.js", "*.css")
    of_image_and_chart = ("Dockerfile", ".dockerignore", ".helmignore", "*.tpl", "NOTES.txt")
    for path in matching(*kinds, *of_page, *of_image_and_chart):
        in_bpf = path.is_relative_to(ROOT / "bpf")
        licence = "(GPL-2.0-only OR BSD-2-Clause)" if in_bpf else "Apache-2.0"
        top = path.read_text().splitlines()[:2]
        assert any(f"SPDX-License-Identifier: {licence}" in line for line in top), where(path)


def test_copied_headers_keep_their_licence():
    headers = sorted((ROOT / "bpf/uapi/include").rglob("*.h"))
    assert headers
    for path in headers:
        assert "SPDX-License-Identifier: " in path.read_text().splitlines()[0], where(path)


def test_names_say_what_they_mean():
    vague = [
        f"{where(path, line)}: {name}"
        for path, tree in python_trees()
        for name, line in defined_names(tree)
        if name not in FOREIGN_NAMES and is_vague(name, path)
    ]
    vague += [
        f"{where(path, function.line)}: {function.name}"
        for path in matching("*.[ch]")
        for function in c_functions(path)
        if is_vague(function.name, path)
    ]
    assert not vague


def test_file_names_say_what_they_mean():
    assert not [where(path) for path in repository_files() if is_vague(path.stem, path)]


def test_no_test_imports_another_one():
    """What several tests need is in a module of its own, next to them or in a harness."""
    imports = (
        (path, node)
        for path, tree in python_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
    )
    assert not [
        where(path, node.lineno)
        for path, node in imports
        if re.search(r"^tests\..*\btest_\w+$", node.module or "")
    ]


def test_maps_and_programs_have_names_that_the_kernel_shows_whole():
    maps = re.findall(r"LB_MAP\w*\((?:[^,()]+,){3}\s*(\w+),", (ROOT / "bpf/maps.h").read_text())
    functions = [each for path in ROOT.glob("bpf/*.c") for each in c_functions(path)]
    programs = [function.name for function in functions if not function.is_static]
    assert "lb_frontends" in maps
    assert "lb_connect4" in programs
    assert not [name for name in maps + programs if len(name) > 15]


def test_nothing_names_the_machine_it_was_written_on():
    private = re.compile(
        r"/work/|/root/|/home/\w|\bshared/|\b(design|semantics|style)\.md|\.library"
    )
    found = [
        f"{where(path, number)}: {line.strip()}"
        for path in repository_files()
        if path != Path(__file__) and path.suffix != ".png"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if private.search(line)
    ]
    assert not found


def test_the_readme_names_every_make_target():
    readme = (ROOT / "README.md").read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "demo" in targets
    assert not [target for target in targets if f"make {target}" not in readme]


def test_the_readme_names_every_command():
    from ebpflb.cli import main

    readme = (ROOT / "README.md").read_text()
    assert "run" in main.commands
    assert not [name for name in main.commands if f"ebpflb {name}" not in readme]


def test_make_help_explains_every_target():
    shown = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for target in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE):
        assert f"make {target} " in shown


def test_the_changelog_names_the_version():
    assert f"\n## [{ebpflb.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_rules_are_written_as_the_tests_prove_them():
    from tests.conformance.document import render
    from tests.conformance.rules import faults, read_groups

    groups = read_groups(ROOT)
    assert not faults(ROOT, groups)
    document = ROOT / "docs/development/conformance.md"
    assert document.read_text() == render(groups), "make conformance"
