# SPDX-License-Identifier: Apache-2.0
"""Answers as compressed lines, and rows whose forms are known from other nodes."""

from typing import NamedTuple

import msgspec
import pytest

from ebpflb.model.compact import by_form, compact, from_compact, packed
from ebpflb.model.compact.frontends import (
    FrontendForm,
    FrontendName,
    FrontendRow,
    FrontendSettings,
    form_decoder,
    rows_decoder,
)

NAME = FrontendName("shop", "web", "http", "ClusterIP", "TCP", "10.96.0.1", 80)
FORM = FrontendForm(
    NAME, FrontendSettings("Cluster", "Local", 0, "random", False, ("192.0.2.0/24",)), ("a:1",)
)
ROW = FrontendRow(msgspec.Raw(msgspec.json.encode(FORM)), (1, 2, 3, 4), ("b:1",), "served")


class Row(NamedTuple):
    form: msgspec.Raw
    number: int


def test_an_answer_is_one_line_that_can_be_read_again():
    line = compact({"ü": [1, None]})
    assert line.isascii()
    assert line.isprintable()
    assert from_compact(f"\n {line} \n") == '{"ü":[1,null]}'.encode()


@pytest.mark.parametrize(
    "text", ["", "no base64", "ü", packed(b"x" * 100)[:-8], packed(b"") + "=", "AAAA"]
)
def test_what_is_no_answer_is_an_error(text):
    with pytest.raises(ValueError, match=r"."):
        from_compact(text)


def test_an_answer_that_would_be_unreasonably_long_is_an_error(monkeypatch):
    monkeypatch.setattr("ebpflb.model.compact._MOST_BYTES", 1000)
    assert from_compact(packed(bytes(1000))) == bytes(1000)
    with pytest.raises(ValueError, match="too long"):
        from_compact(packed(bytes(1001)))


def test_what_is_kept_of_a_form_is_made_once_for_all_nodes():
    known: dict[bytes, bytes] = {}
    made = []

    def keep(form: bytes) -> bytes:
        made.append(form)
        return form.upper()

    one, other, same = (
        Row(msgspec.Raw(b"a"), 1),
        Row(msgspec.Raw(b"b"), 2),
        Row(msgspec.Raw(b"b"), 3),
    )
    assert by_form([one, other], known, keep) == [(b"A", one), (b"B", other)]
    assert by_form([same], known, keep) == [(b"B", same)]
    assert by_form([other, same], known, keep) == [(b"B", same)]
    assert sorted(made) == [b"a", b"b"]


def test_frontends_are_read_as_they_were_written():
    (row,) = rows_decoder.decode(msgspec.json.encode([ROW]))
    assert row == ROW
    assert form_decoder.decode(row.form) == FORM
    least = FrontendRow(ROW.form, ROW.counts)
    assert rows_decoder.decode(msgspec.json.encode([least[:2]])) == [least]


@pytest.mark.parametrize("counts", [(), (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 3, -1), (1 << 63,) * 4])
def test_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(msgspec.ValidationError):
        rows_decoder.decode(msgspec.json.encode([ROW._replace(counts=counts)]))


@pytest.mark.parametrize(("port", "shown"), [("http", "shop/web:http"), ("", "shop/web")])
def test_a_service_port_is_shown_with_its_name_if_it_has_one(port, shown):
    assert NAME._replace(port_name=port).service_port == shown
