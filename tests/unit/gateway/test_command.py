# SPDX-License-Identifier: Apache-2.0
"""`ebpflb gateway` as a process."""

import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ebpflb.cli import main
from tests.unit.source.api_server import ApiServer


@pytest.mark.parametrize(
    ("number", "apis"),
    [(signal.SIGTERM, []), (signal.SIGINT, ["--api=gateway", "--api=multicluster"])],
)
def test_it_starts_and_ends(tmp_path, number, apis):
    path = tmp_path / "kubeconfig"
    server = ApiServer()
    server.close()
    path.write_text(
        f"""{{"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{{"name": "a", "context": {{"cluster": "a", "user": "a"}}}}],
        "clusters": [{{"name": "a", "cluster": {{"server": "{server.url}"}}}}],
        "users": [{{"name": "a", "user": {{}}}}]}}"""
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "ebpflb", "gateway", "--namespace=a", f"--kubeconfig={path}", *apis],
        env=os.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        line = process.stderr.readline()
        assert "started" in line
        assert server.url in line
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "Missing option '--namespace'"),
        (["--namespace", "a", "--address-range", "203.0.113"], "'203.0.113' is not a CIDR"),
        (["--namespace", "a", "--api", "ingress"], "'ingress' is not one of"),
        (["--namespace", "a", "--kubeconfig", "/none"], "kubeconfig /none"),
    ],
)
def test_what_is_wrong_is_one_line(options, text):
    ran = CliRunner().invoke(main, ["gateway", *options])
    assert ran.exit_code in (1, 2)
    assert text in ran.output
    assert len(ran.output.splitlines()) == 1
