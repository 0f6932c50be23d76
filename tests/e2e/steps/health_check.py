# SPDX-License-Identifier: Apache-2.0
"""The reply of a health check node port."""

import http.client
from contextlib import closing
from typing import NamedTuple

from ebpflb.lab import Member

REQUEST_SECONDS = 20


class Answer(NamedTuple):
    """status: of HTTP, or the name of an error."""

    status: int | str
    weight: str | None = None
    body: str = ""


def ask(member: Member, address: str, port: int, method: str = "GET", path: str = "/") -> Answer:
    with member.entered():
        connection = http.client.HTTPConnection(address, port, timeout=REQUEST_SECONDS)
        with closing(connection):
            try:
                connection.request(method, path)
                found = connection.getresponse()
                weight = found.getheader("X-Load-Balancing-Endpoint-Weight")
                return Answer(found.status, weight, found.read().decode())
            except OSError as error:
                return Answer(type(error).__name__)
