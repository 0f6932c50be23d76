# SPDX-License-Identifier: Apache-2.0
"""Compiling and loading: no warnings, and error messages that name the cause."""

import shutil
from pathlib import Path

import pytest

from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.compile import STRICT, compile_and_pin
from ebpflb.dataplane.load.source_text import bpf_directory, source_text
from ebpflb.errors import CompileError, LoadError, ProbeError
from tests.bpf.harness.loading import ALONE, Loaded, load

HEADERS = sorted(path.name for path in bpf_directory().glob("*.h"))
REFUSED = """
int lb_pod_ingress(struct __sk_buff *skb)
{
	return *(int *)(long)skb->data;
}
"""
TOO_DEEP = """
int lb_pod_ingress(struct __sk_buff *skb)
{
	char large[600];

	bpf_skb_load_bytes(skb, 0, large, sizeof(large));
	bpf_skb_store_bytes(skb, 0, large, sizeof(large), 0);
	return 0;
}
"""


def test_all_programs_load_without_a_warning(programs: Loaded):
    assert "-Werror" in STRICT
    assert set(programs.programs) == set(PROGRAMS)


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_compiles_alone(tmp_path: Path, header: str):
    assert load(tmp_path, source_text((header, "types.h")), names=(), flags=ALONE).programs == {}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A copy of bpf/ that a test breaks."""
    return shutil.copytree(bpf_directory(), tmp_path / "bpf")


def test_a_syntax_error_is_found_at_its_file_and_line(broken: Path, tmp_path: Path):
    header = broken / "addr.h"
    lines = header.read_text().splitlines()
    at = next(number for number, line in enumerate(lines, 1) if "word[0] = 0;" in line)
    lines[at - 1] = lines[at - 1].replace(";", "")
    header.write_text("\n".join(lines))
    with pytest.raises(CompileError) as caught:
        compile_and_pin(source_text(("addr.h",), broken), {}, tmp_path)
    assert f"addr.h:{at}:" in str(caught.value)
    assert "expected ';'" in str(caught.value)


def test_a_long_list_of_errors_is_cut(tmp_path: Path):
    text = "\n".join(f"wrong{i} x{i};" for i in range(100))
    with pytest.raises(CompileError) as caught:
        compile_and_pin(text, {}, tmp_path)
    assert len(str(caught.value).splitlines()) <= 30


def test_what_the_verifier_says_last_is_shown(tmp_path: Path):
    text = source_text(("types.h",)) + REFUSED
    with pytest.raises(LoadError) as caught:
        compile_and_pin(text, {}, tmp_path, names=["lb_pod_ingress"])
    assert "R1 invalid mem access" in str(caught.value) or "invalid access" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 30


def test_a_program_that_clang_cannot_translate_is_refused(tmp_path: Path):
    text = source_text(("types.h",)) + TOO_DEEP
    with pytest.raises((CompileError, LoadError), match="stack"):
        compile_and_pin(text, {}, tmp_path, names=["lb_pod_ingress"])


def test_a_place_that_is_no_bpffs_is_an_error(tmp_path: Path):
    text = source_text(("types.h",)) + "int lb_pod_ingress(struct __sk_buff *s) { return 0; }"
    with pytest.raises(LoadError, match=str(tmp_path)):
        compile_and_pin(text, {}, tmp_path, names=["lb_pod_ingress"])


def test_without_bcc_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "bcc.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ProbeError, match="python3-bpfcc"):
        compile_and_pin("", {}, tmp_path)


def test_settings_reach_the_compiler(tmp_path: Path):
    text = '_Static_assert(LB_ANSWER == 42, "LB_ANSWER");\n'
    compile_and_pin(text, {"LB_ANSWER": "42"}, tmp_path, names=())
    with pytest.raises(CompileError, match="LB_ANSWER"):
        compile_and_pin(text, {"LB_ANSWER": "43"}, tmp_path, names=())


def test_the_compiler_stays_out_of_this_process(tmp_path: Path):
    compile_and_pin(source_text(("types.h",)), {}, tmp_path, names=())
    mapped = Path("/proc/self/maps").read_text()
    assert "libbcc" not in mapped
    assert "libLLVM" not in mapped
