# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.errors import ClusterError
from ebpflb.relay.identity import Viewer, front_proxy, viewer_of

PUBLISHED = {
    "requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----\n",
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}
PROXY = front_proxy(PUBLISHED)


def asked(*headers, name="front-proxy-client", **lists):
    """Who asks with these headers; `lists`: of the ConfigMap."""
    more = {f"requestheader-{key.replace('_', '-')}": json.dumps(lists[key]) for key in lists}
    return viewer_of(name, headers, front_proxy(PUBLISHED | more))


def test_how_the_api_server_names_users():
    assert PROXY.client_ca == PUBLISHED["requestheader-client-ca-file"]
    assert PROXY.allowed_names == ("front-proxy-client",)
    assert PROXY.username_headers == ("x-remote-user",)
    assert PROXY.group_headers == ("x-remote-group",)
    assert PROXY.extra_prefixes == ("x-remote-extra-",)


def test_a_user_with_groups_and_more():
    found = asked(
        ("X-Remote-User", "jane"),
        ("X-Remote-Group", "system:authenticated"),
        ("x-remote-GROUP", "shop"),
        ("X-Remote-Group", ""),
        ("X-Remote-Extra-Scopes", "write"),
        ("X-Remote-Extra-Acme.com%2FProject", "some-project"),
        ("x-remote-extra-scopes", "read"),
        ("X-Other", "jack"),
    )
    assert found == Viewer(
        "jane",
        ("system:authenticated", "shop"),
        extra=(("acme.com/project", ("some-project",)), ("scopes", ("write", "read"))),
    )
    assert hash(found)


@pytest.mark.parametrize("name", ["", "another", "Front-Proxy-Client", "front-proxy-client "])
def test_only_the_front_proxy_names_users(name):
    assert asked(("X-Remote-User", "jane"), name=name) is None


def test_without_allowed_names_any_verified_certificate_counts():
    assert asked(("X-Remote-User", "jane"), name="any", allowed_names=[]) == Viewer("jane")
    assert asked(("X-Remote-User", "jane"), name="", allowed_names=[]) is None
    assert asked(("X-Remote-User", "jane"), name="", allowed_names=[""]) is None


@pytest.mark.parametrize("headers", [[], [("X-Remote-User", "")], [("X-Remote-Users", "jane")]])
def test_nobody_asks_without_a_user(headers):
    assert asked(*headers) is None


def test_the_first_header_with_a_value_names_the_user():
    lists = {"username_headers": ["X-First", "X-Second"], "group_headers": ["X-B", "X-A"]}
    headers = [("X-Second", "jane"), ("X-Second", "jack"), ("X-A", "a"), ("X-B", "b")]
    assert asked(*headers, **lists) == Viewer("jane", ("b", "a"))
    assert asked(*headers, ("X-First", ""), **lists) == Viewer("jane", ("b", "a"))
    assert asked(*headers, ("X-First", "joe"), **lists) == Viewer("joe", ("b", "a"))
    # As in Go: of one header only the first value counts.
    assert asked(("X-Remote-User", ""), ("X-Remote-User", "jack")) is None


def test_the_uid_counts_if_the_api_server_says_in_which_header_it_is():
    """Older ones pass on a X-Remote-Uid that the user has sent."""
    headers = ("X-Remote-User", "jane"), ("X-Remote-Uid", "12")
    assert asked(*headers) == Viewer("jane")
    assert asked(*headers, uid_headers=["X-Remote-Uid"]) == Viewer("jane", uid="12")
    assert asked(*headers[:1], uid_headers=["X-Remote-Uid"]) == Viewer("jane")


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Dog%2fCat", "dog/cat"),
        ("%C3%BC", "ü"),
        ("%FF", "�"),
        ("%41", "A"),
        ("100%", "100%"),
        ("%zz%41", "%zz%41"),
        ("a+b", "a+b"),
        ("", ""),
    ],
)
def test_keys_are_decoded_as_in_go(header, key):
    found = asked(("X-Remote-User", "jane"), (f"X-Remote-Extra-{header}", "value"))
    assert found == Viewer("jane", extra=((key, ("value",)),))


def test_every_prefix_gives_extras():
    prefixes = {"extra_headers_prefix": ["X-B-", "X-A-"]}
    headers = ("X-A-Key", "1"), ("X-B-KEY", "2"), ("X-C-Key", "3")
    found = asked(("X-Remote-User", "jane"), *headers, **prefixes)
    assert found == Viewer("jane", extra=(("key", ("2", "1")),))


@pytest.mark.parametrize("published", [{}, {"requestheader-client-ca-file": " \n"}])
def test_without_a_ca_there_is_no_front_proxy(published):
    with pytest.raises(ClusterError, match=r"no front proxy: .* --requestheader-client-ca-file$"):
        front_proxy(published)


@pytest.mark.parametrize("key", sorted(PUBLISHED.keys() - {"requestheader-client-ca-file"}))
@pytest.mark.parametrize("value", [None, "", "null", "{}", '"x"', "[1]", "[null]", "[", "x\ny"])
def test_anything_but_lists_is_refused_in_one_line(key, value):
    rest = {each: PUBLISHED[each] for each in PUBLISHED if each != key}
    with pytest.raises(
        ClusterError, match=rf"^the API server has no front proxy: {key} .+$"
    ) as found:
        front_proxy(rest if value is None else {**rest, key: value})
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("username-headers", "[]"),
        ("username-headers", '[" "]'),
        ("extra-headers-prefix", '[""]'),
        ("uid-headers", '["X-Remote-Uid", ""]'),
    ],
)
def test_headers_have_names(key, value):
    with pytest.raises(ClusterError, match=f"--requestheader-{key} is empty"):
        front_proxy({**PUBLISHED, f"requestheader-{key}": value})


def test_a_uid_header_must_be_a_list_if_there_is_one():
    with pytest.raises(ClusterError, match="requestheader-uid-headers"):
        front_proxy({**PUBLISHED, "requestheader-uid-headers": "X-Remote-Uid"})
