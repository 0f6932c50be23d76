# SPDX-License-Identifier: Apache-2.0
"""What `ebpflb explain` asks the agent and the API server."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ebpflb.cli.agent_client import UnanswerableError, ask
from ebpflb.config.settings import setting
from ebpflb.config.values import near
from ebpflb.dataplane.explain.question import ExplainQuestion, Explanation
from ebpflb.errors import ConfigError, QueryError, SourceError
from ebpflb.model.service import ServiceName

Answer = TypeVar("Answer")


class _Names(msgspec.Struct):
    """Of /v1/names: addresses by NAMESPACE/NAME."""

    pods: dict[str, list[str]]


class AskedAgent:
    """This node's agent, through its query socket. If it fails once, it is not asked again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # Why it does not answer.
        self.failed = "" if path else "there is no query socket (--query-socket)"

    def pods(self) -> Mapping[str, list[str]]:
        """The addresses of every pod that it knows."""
        found = self._ask(_Names, "names", {})
        return found.pods if found else {}

    def explain(self, question: ExplainQuestion) -> Explanation | None:
        """UnanswerableError if nobody could answer that."""
        parameters = msgspec.to_builtins(question).items()
        return self._ask(Explanation, "explain", {name: str(value) for name, value in parameters})

    def _ask(self, kind: type[Answer], what: str, parameters: Mapping[str, str]) -> Answer | None:
        if self.failed or not self._path:
            return None
        try:
            return msgspec.convert(ask(self._path, what, **parameters), kind)
        except UnanswerableError:
            raise
        except QueryError as error:
            self.failed = str(error)
        except ValueError as error:
            self.failed = f"{self._path}: not an ebpflb agent ({error})"
        return None


def addresses_of(name: ServiceName, pods: Mapping[str, list[str]]) -> list[str]:
    """The addresses of a pod. `pods`: those that the agent knows. ConfigError."""
    return pods.get(str(name)) or _ask_api_server(name, pods)


def _ask_api_server(name: ServiceName, known: Iterable[str]) -> list[str]:
    """The addresses of a pod that is not an endpoint, from the API server."""
    from ebpflb.source.api import Api, ApiRequest, MissingError

    hint = near(str(name), known)
    problem = f"pod {name} is not an endpoint of a Service{hint}"
    try:
        api = Api(setting("kubeconfig", None, os.environ), setting("master", None, os.environ))
        path = f"/api/v1/namespaces/{name.namespace}/pods/{name.name}"
        pod: Any = api.get(ApiRequest(path, "pods", {}, verb="get"))
    except MissingError as error:
        raise ConfigError(f"no pod {name}{hint}") from error
    except (ConfigError, SourceError) as error:
        raise ConfigError(f"{problem}; give its address (API server: {error})") from error
    addresses = [str(each["ip"]) for each in pod.get("status", {}).get("podIPs", ())]
    if not addresses:
        raise ConfigError(f"pod {name} has no address yet")
    return addresses
