# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: the commands' output on a terminal, with real traffic in a lab, as SVG."""

import fcntl
import io
import os
import re
import signal
import struct
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from ebpflb.lab import Lab, LabConfig
from ebpflb.lab.member import running_agents
from tests.e2e.harness.command import stop_between_looks
from tests.leftovers import begin_run

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
NAME = "pictures"
INTERVAL = 4
TOP = ("top", "--once", "--interval", str(INTERVAL), "--sort", "failures")
PORT, NODE_PORT, LOCAL_NODE_PORT = 80, 30080, 30081
# A backend that receives packets and cannot reply.
_DEAD_POD = "pod-2-2"
_NO_WAY_BACK = ("blackhole", "10.0.0.0/8")


class Picture(NamedTuple):
    """One command on a node. lines: how many of its output are shown; status: its exit status."""

    name: str
    node: str
    command: Sequence[str]
    width: int = 110
    lines: int = 24
    status: int = 0


def pictures(lab: Lab) -> tuple[Picture, ...]:
    """All but top's, which has to run during the traffic."""
    where = f"{lab.node('node2').ipv4}:{LOCAL_NODE_PORT}"
    return (
        Picture(
            "maps-dump",
            "node1",
            ("maps", "dump", "--service", "default/echo"),
            width=120,
            lines=12,
        ),
        Picture("explain", "node2", ("explain", lab.client.ipv4, where), status=1),
        Picture("flows", "node2", ("flows",), width=185, lines=14),
    )


def main() -> None:
    """Make them all again."""
    begin_run(print)
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as logs,
        Lab.up(LabConfig(name=NAME, pods=2)) as lab,
        running_agents(lab.nodes, Path(logs)),
        dead(lab),
    ):
        render(lab, Picture("top", "node1", TOP), traffic=True)
        for picture in pictures(lab):
            render(lab, picture)


@contextmanager
def dead(lab: Lab) -> Iterator[None]:
    """A pod without a route back."""
    pod = lab.pod(_DEAD_POD)
    pod.exec(["ip", "route", "add", *_NO_WAY_BACK])
    try:
        yield
    finally:
        pod.exec(["ip", "route", "del", *_NO_WAY_BACK])


def send(lab: Lab) -> None:
    """Connections from a pod and from outside, some of which fail."""
    pod, client, outside = lab.pod("pod-1-1"), lab.client, lab.node("node1").ipv4
    pod.load(lab.cluster_ip(1, 4), PORT, count=60, workers=30, timeout=0.5)
    client.load(outside, NODE_PORT, count=100, workers=50, timeout=0.5)
    lab.pod("pod-2-1").load(lab.cluster_ip(1, 4), PORT, count=8, workers=1, timeout=0.3)
    client.load(lab.node("node2").ipv4, LOCAL_NODE_PORT, count=3, timeout=0.3)


def render(lab: Lab, picture: Picture, *, traffic: bool = False) -> None:
    """Run it on its own terminal, and draw the final screen."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 60, picture.width, 0, 0))
    command = [sys.executable, "-m", "ebpflb", *picture.command]
    environment = os.environ | {"TERM": "xterm-256color"}
    running = lab.node(picture.node).popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    if traffic:
        if not stop_between_looks(running):
            raise SystemExit(f"{picture.name}: this machine is too slow for {INTERVAL} s")
        send(lab)
        running.send_signal(signal.SIGCONT)
    printed = everything(ours)
    if running.wait() != picture.status:
        raise SystemExit(f"{' '.join(picture.command)}: exit status {running.returncode}")
    draw(picture, printed)


def everything(terminal: int) -> str:
    """All output until the terminal has no writer any more, which is EIO."""
    printed = b""
    with os.fdopen(terminal, "rb", buffering=0) as screen, suppress(OSError):
        while True:
            printed += screen.read(65536)
    return printed.decode().replace("\r\n", "\n")


def draw(picture: Picture, printed: str) -> None:
    """Without the web font that rich refers to: reading a page loads nothing from elsewhere."""
    console = Console(record=True, width=picture.width, file=io.StringIO(), force_terminal=True)
    lines = printed.rstrip().split("\n")[: picture.lines]
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    title = f"{picture.node}: ebpflb {' '.join(picture.command)}"
    made = console.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id=picture.name)
    made = re.sub(r"\s*@font-face \{.*?\}", "", made, flags=re.DOTALL)
    (FOLDER / f"{picture.name}.svg").write_text(made)


if __name__ == "__main__":
    main()
