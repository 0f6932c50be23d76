# SPDX-License-Identifier: Apache-2.0
import threading

import pytest

from ebpflb.errors import ClusterError
from ebpflb.relay.identity import Viewer
from ebpflb.relay.rights import MOST_ANSWERS, SECONDS, Attributes, ViewerRights

JANE = Viewer("jane", ("shop",), "12", (("scopes", ("read", "write")),))
PODS = Attributes("list", "", "pods", "shop")


class Reviews:
    """Takes the place of the API server, and of the clock."""

    def __init__(self, answer=True):
        self.answer = answer
        self.asked = []
        self.now = 0.0
        self.rights = ViewerRights(self, lambda: self.now)

    def __call__(self, body):
        self.asked.append(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"status": {"allowed": self.answer}}


def test_what_is_asked_of_the_api_server():
    reviews = Reviews()
    assert reviews.rights.may(JANE, PODS)
    assert reviews.asked == [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": "jane",
                "groups": ["shop"],
                "uid": "12",
                "extra": {"scopes": ["read", "write"]},
                "resourceAttributes": {
                    "verb": "list",
                    "group": "",
                    "resource": "pods",
                    "namespace": "shop",
                },
            },
        }
    ]


@pytest.mark.parametrize("answer", [True, False])
def test_an_answer_holds_for_a_while(answer):
    reviews = Reviews(answer)
    assert reviews.rights.may(JANE, PODS) is answer
    reviews.answer = not answer
    reviews.now = SECONDS - 0.1
    assert reviews.rights.may(JANE, PODS) is answer
    reviews.now = SECONDS
    assert reviews.rights.may(JANE, PODS) is not answer
    assert len(reviews.asked) == 2


def test_an_answer_is_as_old_as_its_question():
    reviews = Reviews()

    def slow(body):
        reviews.now += SECONDS
        return reviews(body)

    rights = ViewerRights(slow, lambda: reviews.now)
    assert rights.may(JANE, PODS)
    reviews.answer = False
    assert not rights.may(JANE, PODS)


@pytest.mark.parametrize(
    ("viewer", "what"),
    [
        (JANE._replace(name="jack"), PODS),
        (JANE._replace(groups=()), PODS),
        (JANE._replace(uid=""), PODS),
        (JANE._replace(extra=()), PODS),
        (JANE, PODS._replace(verb="get")),
        (JANE, PODS._replace(group="ebpflb.io")),
        (JANE, PODS._replace(resource="nodes")),
        (JANE, PODS._replace(namespace="")),
        (JANE, PODS._replace(namespace="shop-test")),
    ],
)
def test_an_answer_holds_for_nothing_else(viewer, what):
    reviews = Reviews()
    assert reviews.rights.may(JANE, PODS)
    reviews.answer = False
    assert not reviews.rights.may(viewer, what)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"status": None},
        {"status": []},
        {"status": {}},
        {"status": {"allowed": 1}},
        {"status": {"allowed": "true"}},
        {"status": {"allowed": None}},
        {"status": {"allowed": True, "denied": True}},
        {"allowed": True},
    ],
)
def test_an_odd_answer_allows_nothing(answer):
    assert not ViewerRights(lambda _: answer).may(JANE, PODS)


def test_an_error_is_passed_on_and_not_kept():
    reviews = Reviews(ClusterError("cannot reach the API server"))
    with pytest.raises(ClusterError, match="cannot reach"):
        reviews.rights.may(JANE, PODS)
    reviews.answer = True
    assert reviews.rights.may(JANE, PODS)


def test_an_error_does_not_prolong_an_answer():
    reviews = Reviews()
    reviews.rights.may(JANE, PODS)
    reviews.now, reviews.answer = SECONDS, ClusterError("cannot reach the API server")
    with pytest.raises(ClusterError):
        reviews.rights.may(JANE, PODS)


def test_the_oldest_answers_are_forgotten():
    reviews = Reviews()
    for number in range(MOST_ANSWERS):
        reviews.rights.may(Viewer(str(number)), PODS)
    # What is asked again is new.
    reviews.now = SECONDS
    reviews.rights.may(Viewer("0"), PODS)
    reviews.rights.may(JANE, PODS)
    before = len(reviews.asked)
    reviews.now = SECONDS - 0.1
    reviews.rights.may(Viewer("0"), PODS)
    reviews.rights.may(Viewer("2"), PODS)
    assert len(reviews.asked) == before
    reviews.rights.may(Viewer("1"), PODS)
    assert len(reviews.asked) == before + 1


def test_threads_share_the_answers():
    reviews = Reviews()
    found: list[bool] = []

    def ask():
        found.extend(reviews.rights.may(Viewer(str(each % 50)), PODS) for each in range(500))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 2000
    assert len(reviews.asked) <= 200
