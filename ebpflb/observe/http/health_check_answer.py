# SPDX-License-Identifier: Apache-2.0
"""What a load balancer reads from a health check node port: kube-proxy's answer, to any path."""

import json
from email.utils import formatdate
from http import HTTPStatus

from ebpflb.model.service import ServiceName

_HEAD_ENDS = (b"\r\n\r\n", b"\n\n")
# Method, target and version.
_WORDS = 3


def is_whole(received: bytearray) -> bool:
    """Whether this has the end of a request's headers; its body does not matter."""
    return any(end in received for end in _HEAD_ENDS)


def answer(received: bytearray, service: ServiceName, local_ready: int, *, healthy: bool) -> bytes:
    """The response to a whole request: 200 for traffic to this node, 503 for none.

    `healthy`: whether the proxy is alive, as /livez says. What is no HTTP/1 request is told so.
    """
    words = received.split(b"\n", 1)[0].split()
    if len(words) != _WORDS or not words[2].startswith(b"HTTP/1."):
        return bad_request()
    good = healthy and local_ready > 0
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    headers = {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": str(local_ready),
    }
    shown = {
        "service": {"namespace": service.namespace, "name": service.name},
        "localEndpoints": local_ready,
        "serviceProxyHealthy": healthy,
    }
    body = json.dumps(shown, indent="\t").encode()
    return _response(status, headers, body, has_body=words[0] != b"HEAD")


def bad_request() -> bytes:
    """The response to what is no request."""
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    return _response(HTTPStatus.BAD_REQUEST, headers, b"400 Bad Request", has_body=True)


def _response(status: HTTPStatus, headers: dict[str, str], body: bytes, *, has_body: bool) -> bytes:
    always = {
        "Date": formatdate(usegmt=True),
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = [f"{name}: {value}" for name, value in (headers | always).items()]
    head = "\r\n".join([f"HTTP/1.1 {status.value} {status.phrase}", *lines, "", ""])
    return head.encode() + (body if has_body else b"")
