# SPDX-License-Identifier: Apache-2.0
"""What the agent of this node answers on its ports."""

import http.client
import json
from typing import Any, NamedTuple

from ebpflb.config.settings import parse_bind_address

_ANSWER_SECONDS = 2.0
_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class Page(NamedTuple):
    """An answer: HTTP status and body."""

    status: int
    body: bytes


def fetch(bind_address: str, path: str) -> Page | None:
    """A page of the port that the agent was told to listen on; None when nobody answers there."""
    address = parse_bind_address(bind_address)
    if address is None:
        return None
    host = _ANY.get(address.host, address.host)
    connection = http.client.HTTPConnection(host, address.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Page(answer.status, answer.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def fetch_json(bind_address: str, path: str) -> dict[str, Any] | None:
    """An object; None when nobody, or something else, answers there."""
    page = fetch(bind_address, path)
    if page is None or page.status != http.HTTPStatus.OK:
        return None
    try:
        content = json.loads(page.body)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
