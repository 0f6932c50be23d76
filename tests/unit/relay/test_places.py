# SPDX-License-Identifier: Apache-2.0
from contextlib import ExitStack
from http import HTTPStatus

import pytest

from ebpflb.relay.identity import Viewer
from ebpflb.relay.places import Places
from ebpflb.relay.requests import ApiError

JANE, JOHN = Viewer("jane"), Viewer("john")


def refused(places, viewer):
    with pytest.raises(ApiError) as caught, places.place_of(viewer):
        pass
    assert caught.value.status == HTTPStatus.TOO_MANY_REQUESTS
    return str(caught.value)


def test_one_viewer_leaves_places_to_others():
    places = Places(8, "requests")
    with ExitStack() as taken:
        for _ in range(2):
            taken.enter_context(places.place_of(JANE))
        assert refused(places, JANE) == "2 requests of yours are being answered: try again"
        assert "2 requests of yours" in refused(places, JANE._replace(groups=("admins",)))
        taken.enter_context(places.place_of(JOHN))
    for _ in range(3):
        with places.place_of(JANE):
            pass


def test_when_all_are_taken_nobody_gets_one():
    places = Places(4, "watches")
    with ExitStack() as taken:
        for number in range(4):
            taken.enter_context(places.place_of(Viewer(f"user-{number}")))
        assert refused(places, JANE) == "4 watches are being answered: try again"


def test_a_place_is_given_back_after_an_error():
    places = Places(4, "requests")
    for _ in range(3):
        with pytest.raises(ValueError, match="bug"), places.place_of(JANE):
            raise ValueError("bug")
    assert not places._taken
