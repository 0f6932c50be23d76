# SPDX-License-Identifier: Apache-2.0
"""What the agent's model knows, asked at its query socket. An agent may well not be there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebpflb.cli.agent_client import NothingThereError, ask
from ebpflb.errors import QueryError


class AgentModel:
    """The model of this node's agent. Each question is a connection of its own."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, *where: str) -> Mapping[str, Any] | None:
        """What is at a place behind /v1, None where nothing is. QueryError without an answer."""
        if self._path is None:
            raise QueryError("there is no query socket (--query-socket)")
        try:
            found = ask(self._path, *where)
        except NothingThereError:
            return None
        except ValueError as error:
            raise QueryError(f"{self._path}: what answers is no agent ({error})") from error
        if not isinstance(found, dict):
            raise QueryError(f"{self._path}: what answers is no agent")
        return found
