# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.errors import ClusterError, ConfigError
from ebpflb.kubectl.access import Access, ForbiddenError
from tests.unit.kubectl.api_server import write_kubeconfig

NOBODY = "http://127.0.0.1:1"


def test_a_list_is_read_page_by_page(access, objects):
    objects.page = 2
    objects.lists["/api/v1/nodes"] = [{"metadata": {"name": str(each)}} for each in range(5)]
    assert [each["metadata"]["name"] for each in access.items("/api/v1/nodes")] == list("01234")


def test_a_list_without_an_end_is_not_read_for_ever(access, objects, monkeypatch):
    monkeypatch.setattr("ebpflb.kubectl.access._MOST_PAGES", 3)
    objects.texts["/api/v1/nodes"] = json.dumps({"metadata": {"continue": "x"}, "items": [{}]})
    with pytest.raises(ClusterError, match="the list at /api/v1/nodes does not end"):
        list(access.items("/api/v1/nodes"))


def test_an_answer_without_an_end_is_not_read_for_ever(access, objects, monkeypatch):
    monkeypatch.setattr("ebpflb.kubectl.access._MOST_BYTES", 10)
    objects.texts["/version"] = "0123456789"
    assert access.read("/version") == b"0123456789"
    objects.texts["/version"] = "0123456789x"
    with pytest.raises(ClusterError, match="the answer to /version does not end"):
        access.read("/version")


def test_the_namespace_is_that_of_the_context(tmp_path):
    path = write_kubeconfig(tmp_path / "one", "http://127.0.0.1:1", namespace="shop")
    assert Access(str(path)).namespace == "shop"
    assert Access(str(write_kubeconfig(tmp_path / "two", NOBODY))).namespace == "default"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No configuration found"),
        ("}{", "while parsing"),
        ("[]", "not a valid kubeconfig"),
        ("text", "not a valid kubeconfig"),
        ('{"contexts": []}', "kubeconfig"),
    ],
)
def test_a_kubeconfig_that_is_wrong_is_one_line(tmp_path, content, said):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)) as error:
        Access(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_context_is_named_with_those_that_exist(tmp_path):
    path = write_kubeconfig(tmp_path / "kubeconfig", NOBODY)
    with pytest.raises(ConfigError, match="no context 'prod', only main"):
        Access(str(path), "prod")


def test_an_api_server_that_is_down_is_one_line(tmp_path):
    path = write_kubeconfig(tmp_path / "kubeconfig", NOBODY)
    with pytest.raises(ClusterError, match=f"^cannot reach .* {NOBODY}: Connection refused$"):
        Access(str(path)).get("/version")


def test_what_rbac_forbids_is_reported_in_its_words(access, objects):
    objects.forbidden["/api/v1/nodes"] = 'nodes is forbidden: User "me" cannot list nodes'
    with pytest.raises(ForbiddenError, match='RBAC forbids it: User "me" cannot list nodes'):
        list(access.items("/api/v1/nodes"))


def test_something_else_that_answers_is_no_api_server(access, objects):
    for text in ("<html>", "[]", json.dumps("hello")):
        objects.texts["/version"] = text
        with pytest.raises(ClusterError, match="is no API server"):
            access.get("/version")
