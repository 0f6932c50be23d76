# SPDX-License-Identifier: Apache-2.0
"""Label selectors, by the cases of apimachinery's selector_test.go."""

from contextlib import suppress
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.config.label_selector import LabelSelector, Requirement, parse_label_selector

# Accepted by labels.Parse, and with the operators > and < by it alone.
GOOD = [
    *("x=a,y=b,z=c", "", "x!=a,y=b", "x=", "x= ", "x=,z= ", "x= ,z= ", "!x"),
    *("x in (a)", "x in (a,b)", "x in (,a)", "x in (a,)", "x in (,)", "x notin (a,b)", "  !x ,y"),
    *("x==a", "example.org/x in ( a , b )", "x.y-z_0=A.b-c_1", "in", "in in (in,notin)", "!notin"),
]
BAD = {
    "x=a||y=b": "'a||y': want at most 63",
    "x==a==b": "want ',', found '=='",
    "!x=a": "want ',', found '='",
    "x<a": "'x<a': want at most 63",
    "x in ()": "want at least one value between ( and )",
    "x in a": "want '(', found 'a'",
    "x in (a": "want ')', found the end",
    "x in (a b)": "want ')', found 'b'",
    "x in (a=b)": "want ')', found '='",
    "x has a": "want one of =, ==, !=, in, notin after x, found 'has'",
    "x(a)": "want one of =, ==, !=, in, notin after x, found '('",
    "x,": "want a label, found the end",
    ",x": "want a label, found ','",
    "x,,y": "want a label, found ','",
    "!": "want a label, found the end",
    "x=(": "want a value, found '('",
    "x=-a": "'-a': want at most 63",
    f"x={'a' * 64}": "want at most 63",
    f"{'a' * 64}=x": "want at most 63",
    "a_b/x=y": "'a_b/x': want a DNS name before the /",
    "/x=y": "want a DNS name before the /",
    "a/b/x": "want a DNS name before the /",
    "example.org/": "'example.org/': want at most 63",
}
MATCHING = [
    ("", {"x": "y"}),
    ("x=y", {"x": "y"}),
    ("x=y,z=w", {"x": "y", "z": "w"}),
    ("x!=y,z!=w", {"x": "z", "z": "a"}),
    ("notin=in", {"notin": "in"}),
    ("x", {"x": "z"}),
    ("!x", {"y": "z"}),
    ("x in (a,b)", {"x": "b"}),
    ("x in (,a)", {"x": ""}),
    ("x=", {"x": ""}),
    ("x notin (a,b)", {"x": "c"}),
    ("x notin (a,b)", {"y": "a"}),
    ("x!=y", {}),
]
OTHER = [
    ("x=z", {}),
    ("x=y", {"x": "z"}),
    ("x=y,z=w", {"x": "w", "z": "w"}),
    ("x!=y,z!=w", {"x": "z", "z": "w"}),
    ("x", {"y": "z"}),
    ("!x", {"x": "z"}),
    ("x in (a,b)", {"x": "c"}),
    ("x in (a,b)", {}),
    ("x=", {}),
    ("x notin (a,b)", {"x": "a"}),
]


@pytest.mark.parametrize("text", GOOD)
def test_what_kubernetes_accepts_is_accepted(text: str):
    assert str(parse_label_selector(text)) == text.strip()


@pytest.mark.parametrize(("text", "error"), BAD.items())
def test_what_is_wrong_gives_one_line(text: str, error: str):
    with pytest.raises(ValueError, match="want") as raised:
        parse_label_selector(text)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("text", "labels"), MATCHING)
def test_labels_that_match(text: str, labels: dict[str, str]):
    assert parse_label_selector(text).matches(labels)


@pytest.mark.parametrize(("text", "labels"), OTHER)
def test_labels_that_do_not_match(text: str, labels: dict[str, str]):
    assert not parse_label_selector(text).matches(labels)


def test_the_labels_that_decide_are_known():
    assert parse_label_selector("a=b,!c,d in (e)").keys == {"a", "c", "d"}


ENDS = st.sampled_from(ascii_letters + digits)
WORDS = ENDS | st.tuples(ENDS, st.text(ascii_letters + digits + "-_.", max_size=9), ENDS).map(
    "".join
)
VALUES = st.just("") | WORDS
REQUIREMENTS = st.builds(
    Requirement, WORDS, st.none() | st.frozensets(VALUES, min_size=1), st.booleans()
)
SPACE = st.sampled_from(["", " ", "\t "])


def written(each: Requirement, space: str) -> str:
    if each.values is None:
        return f"{space}{each.key}" if each.wanted else f"!{space}{each.key}"
    if len(each.values) == 1 and (space or "" in each.values):
        return f"{each.key}{space}{'==' if each.wanted else '!='}{space}{min(each.values)}"
    operator = "in" if each.wanted else "notin"
    return f"{each.key} {operator}{space}({space}{f'{space},'.join(sorted(each.values))}{space})"


@given(st.lists(st.tuples(REQUIREMENTS, SPACE), max_size=4))
def test_what_was_written_is_read(some: list[tuple[Requirement, str]]):
    found = parse_label_selector(",".join(written(*each) for each in some))
    assert found.requirements == tuple(each for each, _ in some)


@given(st.text(alphabet="ab=!(),in /\n", max_size=12))
def test_any_text_is_read_or_refused(text: str):
    with suppress(ValueError):
        found = parse_label_selector(text)
        assert found == LabelSelector(text.strip(), found.requirements)
        assert parse_label_selector(str(found)) == found
