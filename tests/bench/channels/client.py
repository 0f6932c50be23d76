# SPDX-License-Identifier: Apache-2.0
"""gRPC channels, each with a connection of its own and a call a minute; needs grpcio.

Prints "ready" when each has made a call, and at the end all calls as JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import cycle

import grpc

from tests.bench.channels.server import METHOD, SERVICE

_PATIENCE_SECONDS = 20
_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_RETRIED = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": _POLICY}]})

Ask = Callable[[], str]
"""A call: the pod that answers. grpc.RpcError."""


def main(arguments: list[str] | None = None) -> None:
    """Call until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place")
    parser.add_argument("--channels", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--period", type=float, required=True)
    parser.add_argument("--retry", action="store_true")
    chosen = parser.parse_args(arguments)
    asked = [_channel(chosen.place, is_retried=chosen.retry) for _ in range(chosen.channels)]
    calls = [(number, *_called(ask)) for number, ask in enumerate(asked)]
    print("ready", flush=True)
    end = time.monotonic() + chosen.seconds
    for number, ask in cycle(enumerate(asked)):
        time.sleep(chosen.period / chosen.channels)
        if time.monotonic() > end:
            break
        calls.append((number, *_called(ask)))
    print(json.dumps(calls))


def _called(ask: Ask) -> tuple[float, str, str]:
    """When it ended by the monotonic clock, the pod, and if it failed, the status and its text."""
    pod = error = ""
    try:
        pod = ask()
    except grpc.RpcError as failure:
        error = f"{failure.code().name}: {failure.details()}"
    return time.monotonic(), pod, error


def _channel(place: str, *, is_retried: bool) -> Ask:
    options: list[tuple[str, int | str]] = [("grpc.use_local_subchannel_pool", 1)]
    if is_retried:
        options.append(("grpc.service_config", _RETRIED))
    call = grpc.insecure_channel(place, options).unary_unary(f"/{SERVICE}/{METHOD}")
    return lambda: call(b"", timeout=_PATIENCE_SECONDS).decode()


if __name__ == "__main__":
    main()
