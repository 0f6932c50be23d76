# SPDX-License-Identifier: Apache-2.0
"""What a row of a Service port has besides its form."""

import msgspec
import pytest

from ebpflb.model.compact.rates import (
    BackendForm,
    BackendRow,
    BackendState,
    PortName,
    PortRow,
    form_decoder,
    port_row,
    rates_decoder,
)
from ebpflb.model.ejection import EjectionState
from tests.unit.model.compact.rates import backend, rows, service


def test_what_carries_nothing_and_is_in_no_trouble_is_a_form_alone():
    (idle,) = rows(service(backend(), backend("fd00::1")))
    assert idle == PortRow(idle.form)


def test_the_form_is_that_of_any_other_node():
    here = service(backend(local=True), backend("10.1.0.2", connections=1.0))
    draining = backend("10.1.0.3", offered=False, active=2)
    there = service(backend("10.1.0.2"), backend(), draining)
    one, other, third = (bytes(row.form) for row in rows(here, there, service(backend())))
    assert one == other != third


def test_a_form_has_the_ordinary_backends_in_order():
    here = service(
        *(backend("10.1.0.2", terminating=True), backend("10.1.0.1", ejection="watched")),
        *(backend("10.1.0.3", ejection="ejected"), backend("10.1.0.4", offered=False)),
    )
    (row,) = rows(here)
    assert form_decoder.decode(row.form) == (
        PortName("default", "web", "http", "TCP"),
        (
            BackendForm(("10.1.0.1", 8080), False, EjectionState.WATCHED),
            BackendForm(("10.1.0.2", 8080), True, EjectionState.UNWATCHED),
        ),
    )
    assert [each.place[0] for each in row.more] == ["10.1.0.3", "10.1.0.4"]


def test_rates_are_whole_thousandths():
    (row,) = rows(service(backend(failed=0.0004), connections=1.2346, reply_bytes=2.0, active=3))
    assert row.numbers == (1235, 3000, 0, 0, 0, 0, 0, 2000)
    assert row.backends is None


def test_backends_of_the_form_have_their_numbers_in_its_order():
    (row,) = rows(
        service(
            backend("10.1.0.2", connections=2.0),
            backend("10.1.0.1", connections=1.0, active=1),
            backend("10.1.0.3", connections=3.0, local=True),
        )
    )
    assert row.backends == (*(1000, 1000, 0, 0, 0), *(2000, 0, 0, 0, 0), *(0,) * 5)


def test_a_backend_with_a_state_of_its_own_has_a_row():
    own = {"local": True, "trouble": "starved", "pod": "default/web-0", "connections": 0.5}
    (row,) = rows(service(backend(**own), backend("10.1.0.2", removed=True)))
    assert row.more == (
        BackendRow(
            ("10.1.0.1", 8080),
            (500, 0, 0, 0, 0),
            BackendState(local=True, trouble="starved", pod="default/web-0"),
        ),
        BackendRow(("10.1.0.2", 8080), (0,) * 5, BackendState(removed=True)),
    )


@pytest.mark.parametrize(("has_names", "names"), [(True, ["default/web-0"]), (False, [])])
def test_a_backend_of_another_node_has_a_row_for_its_name_if_that_is_wanted(has_names, names):
    named = backend(pod="default/web-0", connections=2.0)
    row = port_row(service(named, backend("10.1.0.2")), has_names=has_names)
    assert [each.state.pod for each in row.more] == names


def test_of_troubles_those_of_all_nodes_together_are_left_out():
    troubles = ("starved", "3 of 4 connections on removed pods")
    (row,) = rows(service(backend(), troubles=troubles, cross_node_share=0.25))
    assert (row.troubles, row.far) == (("starved",), 0.25)


def test_rows_are_read_as_they_were_written():
    given = rows(service(backend(local=True, active=1), connections=1.0), service())
    assert rates_decoder.decode(msgspec.json.encode(given)) == given


@pytest.mark.parametrize(
    "nonsense",
    [{"numbers": (1,)}, {"numbers": (-1,) * 8}, {"far": 1.5}, {"backends": (-1,)}],
)
def test_a_row_that_cannot_be_is_refused(nonsense):
    odd = PortRow(msgspec.Raw(b"{}"))._replace(**nonsense)
    with pytest.raises(msgspec.ValidationError):
        rates_decoder.decode(msgspec.json.encode([odd]))
