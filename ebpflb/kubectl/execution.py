# SPDX-License-Identifier: Apache-2.0
"""Commands in the agents' pods, through pods/exec of the API server."""

import time
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import quote

import websocket

from ebpflb.errors import ClusterError
from ebpflb.from_json import from_json
from ebpflb.kubectl.access import Access, ForbiddenError
from ebpflb.kubectl.agents import CONTAINER, RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT, AgentAnswer, AgentQuestion, Answering, last_line

_STDOUT, _STDERR, _ERROR = 1, 2, 3
_STREAMS = ("stdin", "stdout", "stderr")
_MOST_BYTES = 256 << 20
_LONGEST_LINE = 64 << 10
# How long a silent stream may keep its reader waiting; how often it pings the other end.
_LOOK_SECONDS, _PING_SECONDS = 1.0, 30.0
# Ends the command when the connection is gone, which only shows on standard input. Also reaps all
# its children: the agent, process 1 of the container, does not do that.
_WATCHED = """
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
(read -r _ <&3; kill $child) 2>/dev/null &
wait $child
status=$?
exec 2>/dev/null
kill $!
wait $!
exit $status
"""


# The option for programs, if it is not JSON; options with another name there.
_FORMS = {
    "services": "--compact",
    "top": "--compact",
    "flows": "--output=jsonl",
    "connections": "--output=jsonl",
}
_FLAGS = {"limit": "last"}


class Executor(Answering, Protocol):
    """Runs commands where agents run. Thread-safe."""

    def run(self, agent: RemoteAgent, argv: Sequence[str]) -> AgentAnswer:
        """Run a command until it ends or its time is up."""
        ...

    def stream(self, agent: RemoteAgent, argv: Sequence[str]) -> Generator[str, None, None]:
        """The lines that a command prints, as they arrive. ClusterError if it fails or breaks off.

        Closing the generator ends the command. While nothing arrives it yields an empty line now
        and then, to give the reader a chance to close it.
        """
        ...


def argv_of(question: AgentQuestion) -> list[str]:
    """The command that answers it."""
    command, options, arguments = question
    given = ((_FLAGS.get(name, name), value) for name, value in options.items() if value)
    flags = (f"--{name}" if value is True else f"--{name}={value}" for name, value in given)
    form = _FORMS.get(command, "--output=json")
    return ["ebpflb", command, form, *flags, *(("--", *arguments) if arguments else ())]


class PodExecutor:
    """Executes in the agents' containers."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def answer(self, agent: RemoteAgent, question: AgentQuestion) -> AgentAnswer:
        return self.run(agent, argv_of(question))

    def run(self, agent: RemoteAgent, argv: Sequence[str]) -> AgentAnswer:
        output = {_STDOUT: bytearray(), _STDERR: bytearray(), _ERROR: bytearray()}
        deadline = time.monotonic() + self._access.seconds
        try:
            with _Execution(self._access, agent, argv) as connection:
                for frame in connection.frames(deadline):
                    output.get(frame.channel, bytearray()).extend(frame.content)
                    if sum(map(len, output.values())) > _MOST_BYTES:
                        raise ClusterError(f"answers with more than {_MOST_BYTES >> 20} MiB")  # noqa: TRY301
            status = exit_status(bytes(output[_ERROR]))
        except ClusterError as error:
            return AgentAnswer(agent, None, error=str(error))
        stdout, stderr = _text(output[_STDOUT]), _text(output[_STDERR])
        return AgentAnswer(agent, status, stdout, stderr)

    def stream(self, agent: RemoteAgent, argv: Sequence[str]) -> Generator[str, None, None]:
        complaint, rest, result = bytearray(), bytearray(), bytearray()
        with _Execution(self._access, agent, argv) as connection:
            for channel, content in connection.frames(None):
                if channel == _STDOUT:
                    *lines, rest = (rest + content).split(b"\n")
                    yield from map(_text, lines)
                elif channel == _STDERR:
                    complaint = (complaint + content)[-_LONGEST_LINE:]
                elif channel == _ERROR:
                    result = (result + content)[-_LONGEST_LINE:]
                else:
                    yield ""
                if len(rest) > _LONGEST_LINE:
                    raise ClusterError(f"sends a line of more than {_LONGEST_LINE >> 10} KiB")
        status = exit_status(bytes(result))
        if status:
            raise ClusterError(last_line(_text(complaint)) or f"exits with status {status}")


def exit_status(result: bytes) -> int:
    """From the Status object that ends an execution. ClusterError if the command did not run."""
    try:
        found = from_json(result)
        if found["status"] == "Success":
            return 0
        if found.get("reason") == "NonZeroExitCode":
            return int(found["details"]["causes"][0]["message"])
        text = " ".join(str(found["message"]).split())
    except (ValueError, LookupError, TypeError) as error:
        raise ClusterError("the connection to the agent's pod was lost") from error
    raise ClusterError(text)


class _Frame(NamedTuple):
    """channel: 0 if nothing arrived for a while."""

    channel: int
    content: bytes


class _Execution:
    """One execution. Leaving the context ends the command."""

    def __init__(self, access: Access, agent: RemoteAgent, argv: Sequence[str]) -> None:
        if not agent.pod:
            raise ClusterError(NO_AGENT)
        pod = f"/api/v1/namespaces/{quote(agent.namespace)}/pods/{quote(agent.pod)}"
        flags = [
            ("container", CONTAINER),
            ("stdin", "true"),
            ("stdout", "true"),
            ("stderr", "true"),
        ]
        command = [("command", each) for each in ("sh", "-c", _WATCHED, "sh", *argv)]
        try:
            self._socket = access.websocket(f"{pod}/exec", [*flags, *command])
        except ForbiddenError as error:
            raise ForbiddenError(f"{error} (needs get and create of pods/exec)") from error
        self._seconds = access.seconds

    def __enter__(self) -> "_Execution":
        return self

    def __exit__(self, *_: object) -> None:
        # Not close(), which would wait for the peer.
        self._socket.shutdown()  # type: ignore[no-untyped-call]

    def frames(self, deadline: float | None) -> Iterator[_Frame]:
        """Frames until the stream ends. ClusterError, also at the deadline (of a monotonic clock).

        Without a deadline, yields empty frames while nothing arrives, and notices a dead peer by
        its missing pong.
        """
        heard = asked = time.monotonic()
        while True:
            now = time.monotonic()
            if now > deadline if deadline else now - heard > 2 * _PING_SECONDS:
                raise ClusterError(f"did not answer within {self._seconds:g} s")
            if now - max(heard, asked) > _PING_SECONDS:
                asked = now
                self._socket.ping()
            try:
                frame = self._next(_LOOK_SECONDS)
            except websocket.WebSocketTimeoutException:
                yield _Frame(0, b"")
            except (websocket.WebSocketException, OSError):
                # The last frame on the error channel tells whether this is the end.
                return
            else:
                heard = time.monotonic()
                if frame is None:
                    return
                yield frame

    def _next(self, seconds: float) -> _Frame | None:
        self._socket.settimeout(seconds)
        opcode, frame = self._socket.recv_data_frame(control_frame=True)
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            return None
        if opcode in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT) and frame.data:
            return _Frame(frame.data[0], frame.data[1:])
        return _Frame(0, b"")


def _text(raw: bytes | bytearray) -> str:
    return raw.decode(errors="replace")
