# SPDX-License-Identifier: Apache-2.0
"""A complete run checks the document and fails on an unproved rule; a partial run does not."""

import pytest

from tests.conformance.plugin import DOCUMENT, RENEW
from tests.conformance.rules import RULES

pytest_plugins = ["pytester"]

RULE = """\
title: Which Services
rules:
- id: 1-1
  rule: A pod reaches a Service | and a Service a pod.
  tests: [test_paths.py::test_a_pod_is_reached, test_paths.py::test_each_way]
- id: 1-2
  rule: SCTP is served.
  missing: It is not built.
- id: 1-3
  rule: Who is refused hears of it.
  tests: [test_paths.py::test_a_pod_is_reached]
  differs: At once.
"""
TESTS = """\
import pytest

def test_a_pod_is_reached():
    pass

@pytest.mark.parametrize("way", range(3))
def test_each_way(way):
    pass

def test_another():
    pass
"""


@pytest.fixture
def run(pytester):
    """Run the tests of a small checkout, once its document is true."""

    def pytest_with(*arguments: str) -> pytest.RunResult:
        plugin = ["-p", "tests.conformance.plugin", "-p", "no:cacheprovider"]
        result: pytest.RunResult = pytester.runpytest_inprocess(*plugin, *arguments)
        return result

    (pytester.path / RULES).mkdir(parents=True)
    write(pytester, RULE, TESTS)
    assert pytest_with(RENEW).ret == pytest.ExitCode.OK
    return pytest_with


def write(pytester: pytest.Pytester, rules: str, tests: str) -> None:
    (pytester.path / RULES / "1-services.yaml").write_text(rules)
    (pytester.path / "test_paths.py").write_text(tests)


def told(result: pytest.RunResult) -> list[str]:
    """The lines that the plugin prints in a failed run."""
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = [line for line in result.outlines if line.startswith("conformance: ")]
    return [line.removeprefix("conformance: ") for line in found]


def test_the_document_has_a_table_with_proofs_and_remarks(pytester, run):
    lines = (pytester.path / DOCUMENT).read_text().splitlines()
    assert "| hold as in kube-proxy | 1 | |" in lines
    assert "| hold with a difference | 1 | 1-3 |" in lines
    assert "| do not hold | 1 | 1-2 |" in lines
    proof = "[test_paths.py](../../test_paths.py): "
    assert lines[lines.index("## Which Services") + 2 :] == [
        "| | rule | proof | remark |",
        "|---|---|---|---|",
        "| 1-1 | A pod reaches a Service \\| and a Service a pod."
        f" | {proof}a pod is reached; each way | |",
        "| 1-2 | SCTP is served. | | **Missing**: It is not built. |",
        f"| 1-3 | Who is refused hears of it. | {proof}a pod is reached | **Differs**: At once. |",
    ]


def test_a_document_that_is_true_passes(run):
    assert run().ret == pytest.ExitCode.OK


def test_a_stale_document_fails_until_it_is_renewed(pytester, run):
    write(pytester, RULE.replace("SCTP", "It"), TESTS)
    assert told(run()) == [f"{DOCUMENT} is stale: make conformance renews it"]
    assert run(RENEW).ret == pytest.ExitCode.OK
    assert run().ret == pytest.ExitCode.OK


def test_a_document_that_is_not_there_is_stale(pytester, run):
    (pytester.path / DOCUMENT).unlink()
    assert told(run()) == [f"{DOCUMENT} is stale: make conformance renews it"]


def test_a_run_of_some_of_the_tests_does_nothing(pytester, run):
    write(pytester, RULE.replace("SCTP", "It"), TESTS)
    assert run("-k", "each_way").ret == pytest.ExitCode.OK
    assert run(RENEW, "-k", "each_way").ret == pytest.ExitCode.OK
    assert "SCTP" in (pytester.path / DOCUMENT).read_text()


def test_a_run_that_only_collects_does_nothing(pytester, run):
    write(pytester, RULE.replace("SCTP", "It"), TESTS)
    assert run("--collect-only").ret == pytest.ExitCode.OK


def test_a_rule_that_names_no_test_of_ours_fails(pytester, run):
    write(pytester, RULE, TESTS.replace("test_each_way", "test_every_way"))
    assert told(run(RENEW)) == ["1-1: there is no test test_paths.py::test_each_way"]


@pytest.mark.parametrize("case", [0, 2])
def test_one_failed_case_of_a_test_leaves_its_rule_unproved(pytester, run, case):
    write(pytester, RULE, TESTS.replace("(way):\n    pass", f"(way):\n    assert way != {case}"))
    assert told(run(RENEW)) == ["1-1: test_paths.py::test_each_way has not passed"]


def test_a_failed_set_up_or_tear_down_leaves_a_rule_unproved(pytester, run):
    for before, after in (("assert 0", "pass"), ("pass", "assert 0")):
        fixture = f"@pytest.fixture\ndef way():\n    {before}\n    yield\n    {after}\n"
        once = TESTS.replace('@pytest.mark.parametrize("way", range(3))\n', fixture)
        write(pytester, RULE, once)
        assert told(run())[0].startswith("1-1: test_paths.py::test_each_way ")


@pytest.mark.parametrize("kind", ["skip", "xfail"])
def test_a_skipped_test_proves_nothing(pytester, run, kind):
    write(pytester, RULE, TESTS.replace("(way):\n    pass", f"(way):\n    pytest.{kind}('later')"))
    assert told(run()) == ["1-1: test_paths.py::test_each_way has not passed"]


def test_what_the_kernel_lacks_needs_no_proof(pytester, run):
    lacking = "from tests.skips import kernel_lacks\n" + TESTS.replace(
        "(way):\n    pass", "(way):\n    kernel_lacks('tcx', 'EINVAL')"
    )
    write(pytester, RULE, lacking)
    assert run().ret == pytest.ExitCode.OK


def test_a_test_that_did_not_run_proves_nothing(pytester, run):
    stopped = TESTS.replace("is_reached():\n    pass", "is_reached():\n    pytest.exit('enough')")
    write(pytester, RULE, stopped)
    found = run()
    assert found.ret == pytest.ExitCode.INTERRUPTED
    assert "conformance: 1-1: test_paths.py::test_each_way did not run" in found.outlines


def test_a_rule_without_proof_fails(pytester, run):
    write(pytester, RULE.replace("  missing: It is not built.\n", ""), TESTS)
    assert told(run(RENEW)) == ["1-2: no test proves it"]


def test_a_rule_that_is_missing_and_proved_contradicts_itself(pytester, run):
    write(pytester, RULE.replace("differs", "missing"), TESTS)
    assert told(run()) == ["1-3: is said to be missing, and has tests"]


def test_an_id_is_given_once(pytester, run):
    write(pytester, RULE.replace("1-3", "1-1"), TESTS)
    assert told(run()) == ["1-1: there are two rules of this id"]


def test_a_misspelt_field_is_reported(pytester, run):
    write(pytester, RULE.replace("differs", "differ"), TESTS)
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: conformance: *1-services.yaml: rule 1-3: unknown: differ"])
