# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus inside a member of a lab, unreachable from outside the lab."""

import http.client
import json
import math
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import yaml

from ebpflb.lab import Member
from tests.e2e.harness.waiting import wait_until

_PORT = 9090
_SECONDS = 60

Series = list[dict[str, Any]]


class Scrapes(NamedTuple):
    """What to scrape: `targets` as in static_configs. rules: files. Every three seconds.

    That is also the scrape timeout, because a busy machine needs more than a second.
    """

    job: str
    targets: list[dict[str, Any]]
    honor_labels: bool
    rules: list[Path]

    def config(self) -> str:
        """The text of prometheus.yml."""
        scraped = {
            "job_name": self.job,
            "honor_labels": self.honor_labels,
            "static_configs": self.targets,
        }
        every = {"scrape_interval": "3s", "evaluation_interval": "1s"}
        rules = [str(path) for path in self.rules]
        return yaml.safe_dump({"global": every, "rule_files": rules, "scrape_configs": [scraped]})


class Prometheus:
    """A running Prometheus."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            return self._get("/-/ready")[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def query(self, expression: str) -> Series:
        """The series of an expression, without those that are NaN."""
        parameters = urlencode({"query": expression})
        status, text = self._get(f"/api/v1/query?{parameters}")
        assert status == http.HTTPStatus.OK, (expression, text)
        found = json.loads(text)["data"]
        assert found["resultType"] == "vector", expression
        return [each for each in found["result"] if not math.isnan(float(each["value"][1]))]

    def label_values(self, selector: str, label: str) -> list[str]:
        """As Grafana's function of the same name."""
        found = self.query(f"group by ({label}) ({selector})")
        return sorted(each["metric"][label] for each in found if label in each["metric"])

    def exemplars(self, metric: str) -> list[Mapping[str, str]]:
        """The labels of a metric's exemplars since 1970, with those of their series."""
        parameters = urlencode({"query": metric, "start": 0, "end": 1 << 32})
        found = json.loads(self._get(f"/api/v1/query_exemplars?{parameters}")[1])["data"]
        return [
            {**each["seriesLabels"], **exemplar["labels"]}
            for each in found
            for exemplar in each["exemplars"]
        ]

    def alerts(self) -> Series:
        """The alerts that are pending or firing."""
        found: Series = json.loads(self._get("/api/v1/alerts")[1])["data"]["alerts"]
        return found

    def _get(self, path: str) -> tuple[int, str]:
        with self._member.entered():
            connection = http.client.HTTPConnection("127.0.0.1", _PORT, timeout=_SECONDS)
            with closing(connection):
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()


@contextmanager
def prometheus(member: Member, folder: Path, scrapes: Scrapes) -> Iterator[Prometheus]:
    """Run one that stores its data in the folder."""
    (folder / "prometheus.yml").write_text(scrapes.config())
    with (folder / "log").open("w") as log:
        process = member.popen([*_command(folder)], stdout=log, stderr=log)
        try:
            found = Prometheus(member)
            wait_until(found.is_ready, f"Prometheus is ready ({folder}/log)")
            yield found
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _command(folder: Path) -> Iterable[str]:
    yield "prometheus"
    yield f"--config.file={folder}/prometheus.yml"
    yield f"--storage.tsdb.path={folder}/tsdb"
    yield f"--web.listen-address=127.0.0.1:{_PORT}"
    yield "--enable-feature=exemplar-storage"
    yield "--log.level=warn"
