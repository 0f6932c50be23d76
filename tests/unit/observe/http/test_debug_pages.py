# SPDX-License-Identifier: Apache-2.0
"""/configz, /flagz and /statusz."""

import asyncio
import json
import platform

import pytest

from ebpflb import __version__
from ebpflb.config.settings import load_settings, plain_settings
from ebpflb.observe.http.debug_pages import debug_routes
from ebpflb.observe.http.server import quick
from ebpflb.web.answers import Request

SETTINGS = {"node-name": "node-a", "masquerade-all": False, "host-devices": ["eth0", "eth1"]}


def lines(answer):
    first, title, warning, blank, *rest = answer.body.decode().split("\n")
    assert (first, blank, rest.pop()) == ("", "", "")
    assert warning.startswith("Warning: This endpoint is not meant to be machine parseable")
    assert answer.content_type.startswith("text/plain")
    return [title, *rest]


def test_configz_has_the_settings_in_force():
    answer = debug_routes(SETTINGS, ())["/configz"]()
    assert json.loads(answer.body) == {"ebpflb": SETTINGS}
    assert answer.content_type == "application/json"


def test_all_settings_fit_into_configz(tmp_path):
    given = {"manifests": str(tmp_path), "cgroup-root": "/cg", "sync-period": "90s"}
    pages = debug_routes(plain_settings(load_settings(given, {})), ())
    found = json.loads(pages["/configz"]().body)["ebpflb"]
    assert found["manifests"] == str(tmp_path)
    assert found["sync-period"] == "90s"
    assert "sync-period=90s" in lines(pages["/flagz"]())


def test_flagz_has_them_as_flags():
    assert lines(debug_routes(SETTINGS, ())["/flagz"]()) == [
        "ebpflb flagz",
        "node-name=node-a",
        "masquerade-all=false",
        "host-devices=eth0,eth1",
    ]


def test_statusz_says_how_old_the_agent_is_and_what_else_there_is():
    times = iter([1795255200.5, 1795255200.5 + 7384])
    routes = debug_routes({}, ["/metrics", "/healthz"], wall=lambda: next(times))
    assert lines(routes["/statusz"]()) == [
        "ebpflb statusz",
        "Started: Sat Nov 21 10:00:00 UTC 2026",
        "Up: 2 hr 03 min 04 sec",
        f"Python version: {platform.python_version()}",
        f"Binary version: {__version__}",
        "Paths: /configz /flagz /healthz /metrics /statusz",
    ]


FLAGZ = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz"
ALPHA = "application/json; as=Statusz; g=config.k8s.io; v=v1alpha1; q=0.9"


def asked(path, accept):
    times = iter([1795255200.5, 1795255200.5 + 7384])
    routes = debug_routes(SETTINGS, ["/metrics"], wall=lambda: next(times))

    async def ask():
        return await quick(routes)(Request("GET", path, accept=accept))

    return asyncio.run(ask())


def test_flagz_is_an_object_for_who_accepts_that():
    answer = asked("/flagz?a=b", f"application/yaml, {FLAGZ}, text/plain")
    assert answer.content_type == "application/json"
    assert json.loads(answer.body) == {
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "ebpflb"},
        "flags": {"node-name": "node-a", "masquerade-all": "false", "host-devices": "eth0,eth1"},
    }


def test_so_is_statusz():
    assert json.loads(asked("/statusz", ALPHA).body) == {
        "kind": "Statusz",
        "apiVersion": "config.k8s.io/v1alpha1",
        "metadata": {"name": "ebpflb"},
        "startTime": "2026-11-21T10:00:00Z",
        "uptimeSeconds": 7384,
        "binaryVersion": __version__,
        "paths": ["/configz", "/flagz", "/metrics", "/statusz"],
    }


@pytest.mark.parametrize("accept", ["", "*/*", "text/html, text/plain;q=0.5", "text/*"])
def test_text_is_the_usual_form(accept):
    assert lines(asked("/flagz", accept))[0] == "ebpflb flagz"


@pytest.mark.parametrize("accept", ["application/json", "application/cbor", ALPHA, ";;,"])
def test_other_forms_are_not_there(accept):
    assert asked("/flagz", accept).status == 406


def test_pages_with_one_form_do_not_mind_what_is_accepted():
    assert asked("/configz", "image/png").status == 200
    assert asked("/nowhere", "image/png").status == 404
