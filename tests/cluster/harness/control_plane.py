# SPDX-License-Identifier: Apache-2.0
"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler in their own namespace.

A control plane alone starts in seconds and is enough for tests that only use the API.
"""

import http.client
import json
import os
import signal
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ebpflb.errors import EbpflbError
from ebpflb.lab import namespaces
from ebpflb.web.tls import CA, CERTIFICATE, KEY
from tests.cluster.harness import network, teardown
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.credentials import FRONT_PROXY, Credentials
from tests.cluster.harness.layout import API_PORT, SERVICES, SERVICES6, Layout
from tests.cluster.harness.place import Place
from tests.cluster.harness.state import State, reserve

_ETCD = "127.0.0.1:2379"
_STANDSTILL_SECONDS = 60
# Fields of a pod that show progress; a crashing pod changes ever more seldom.
_PODS = (
    "NAMESPACE:.metadata.namespace,NAME:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase,"
    "INIT:.status.initContainerStatuses[*].state,STATE:.status.containerStatuses[*].state,"
    "READY:.status.containerStatuses[*].ready,ENDS:.metadata.deletionTimestamp"
)
_LAST_EVENTS = 10
_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


@dataclass(slots=True)
class ControlPlane:
    """The API of one cluster. url is valid on the machine and on the nodes."""

    state: State
    place: Place
    credentials: Credentials

    @classmethod
    def up(cls, name: str | None = None, nodes: int = 0, *, owned: bool = True) -> Self:
        """Start one with the network of a cluster, and wait until the API is ready.

        owned: it ends together with the calling thread, which should therefore be the main one;
        otherwise it runs until somebody takes it down.
        ConfigError when the name is taken. After any failure, everything is removed.
        """
        for program in ("kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler"):
            binary(program)
        made = reserve(name or f"test-{os.getpid()}", nodes, owned=owned)
        try:
            control = cls._make(made, owned=owned)
            control.start_api()
            control._start_controllers()
        except BaseException:
            teardown.remove(made)
            raise
        return control

    @classmethod
    def attach(cls, known: State) -> Self:
        """The control plane of a cluster that another process has started."""
        layout = known.layout
        return cls(known, Place.of(layout, "control", owned=False), _credentials(layout))

    @classmethod
    def _make(cls, made: State, *, owned: bool) -> Self:
        layout = made.layout
        teardown.make_cgroups(layout)
        network.make(layout)
        control = cls(made, Place.of(layout, "control", owned=owned), _credentials(layout))
        control.credentials.make(layout.node_names())
        (control.credentials.folder / "audit-policy.yaml").write_text(_AUDIT_POLICY)
        control._start_etcd()
        return control

    @property
    def layout(self) -> Layout:
        """Names and addresses."""
        return self.state.layout

    @property
    def url(self) -> str:
        """https://ADDRESS:PORT."""
        return self.credentials.url

    @property
    def kubeconfig(self) -> Path:
        """With admin rights."""
        return self.credentials.kubeconfig("admin")

    @property
    def audit_log(self) -> Path:
        """One JSON event per request, level Metadata: user, verb, objectRef."""
        return self.place.folder / "audit.log"

    def audit_events(self) -> list[dict[str, Any]]:
        """The API requests so far."""
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """kubectl's output. EbpflbError with its error message if it fails."""
        return run_tool("kubectl", arguments, self.kubeconfig, input)

    def wait(self, *arguments: str, seconds: int = _STANDSTILL_SECONDS) -> None:
        """Run kubectl until it succeeds: `wait` or `rollout status`, as long as any pod changes.

        EbpflbError with the state of all pods if none has changed for `seconds`.
        """
        before = self._pods()
        while True:
            try:
                self.kubectl(*arguments, f"--timeout={seconds}s")
            except EbpflbError as error:
                now = self._pods()
                if now == before:
                    still = f"no pod has changed for {seconds} s:\n{now}{self._last_events()}"
                    raise EbpflbError(f"{error}\n{still}") from error
                before = now
            else:
                return

    def _pods(self) -> str:
        return self.kubectl("get", "pods", "--all-namespaces", f"--output=custom-columns={_PODS}")

    def _last_events(self) -> str:
        listed = self.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
        return "\n".join(listed.splitlines()[-_LAST_EVENTS:])

    def start_api(self) -> None:
        """Start kube-apiserver and wait until it is ready, 3 to 5 s."""
        server = self.place.start("kube-apiserver", [binary("kube-apiserver"), *self._api_flags()])
        server.wait_until(self._is_ready, "ready", 90)

    def start_peer(self, number: int) -> str:
        """Start another kube-apiserver with the first one's certificate; returns its URL."""
        ip = self.layout.address(f"peer{number}")
        self.place.exec(["ip", "address", "add", f"{ip}/24", "dev", "eth0"], check=True)
        flags = [*self._api_flags(), f"--advertise-address={ip}", f"--bind-address={ip}"]
        self.place.start(f"kube-apiserver-{number}", [binary("kube-apiserver"), *flags])
        return f"https://{ip}:{API_PORT}"

    def stop_peer(self, number: int) -> None:
        """Kill it."""
        self.place.daemon(f"kube-apiserver-{number}").stop(signal.SIGKILL)

    def stop_api(self) -> None:
        """Kill kube-apiserver: its clients see their connections break, and then refusals."""
        self.place.daemon("kube-apiserver").stop(signal.SIGKILL)

    def compact(self) -> int:
        """Discard the history before now and return the current revision.

        Continuing an earlier list fails with 410 Gone at once. An earlier watch does so once the
        API server's own event cache is empty too: after stop_api() and start_api().
        """
        revision = int(self._ask_etcd("kv/range", {"key": "AA=="})["header"]["revision"])
        self._ask_etcd("kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def down(self) -> None:
        """Remove everything."""
        teardown.remove(self.state)
        self.place.reap()

    def _start_etcd(self) -> None:
        self.place.start(
            "etcd",
            [
                "etcd",
                f"--data-dir={self.place.folder / 'etcd'}",
                f"--listen-client-urls=http://{_ETCD}",
                f"--advertise-client-urls=http://{_ETCD}",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--initial-advertise-peer-urls=http://127.0.0.1:2380",
                "--initial-cluster=default=http://127.0.0.1:2380",
            ],
        )

    def _api_flags(self) -> list[str]:
        own = self.credentials
        return [
            f"--etcd-servers=http://{_ETCD}",
            f"--cert-dir={own.ca.parent}",
            f"--advertise-address={self.place.ip}",
            f"--bind-address={self.place.ip}",
            f"--secure-port={API_PORT}",
            f"--service-cluster-ip-range={SERVICES},{SERVICES6}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={own.account_public_key}",
            f"--service-account-signing-key-file={own.account_key}",
            f"--token-auth-file={own.token_file}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            # No proxy serves ClusterIPs here.
            "--enable-aggregator-routing=true",
            f"--proxy-client-cert-file={own.front_proxy / CERTIFICATE}",
            f"--proxy-client-key-file={own.front_proxy / KEY}",
            f"--requestheader-client-ca-file={own.front_proxy / CA}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--audit-policy-file={own.folder / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
        ]

    def _start_controllers(self) -> None:
        own = self.credentials
        self.place.start(
            "kube-controller-manager",
            [
                binary("kube-controller-manager"),
                f"--kubeconfig={own.kubeconfig('system:kube-controller-manager')}",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={own.account_key}",
                f"--root-ca-file={own.ca}",
                "--leader-elect=false",
                "--allocate-node-cidrs=false",
                # By default the end of an API outage makes all nodes, and so all pods, not ready.
                "--node-monitor-grace-period=600s",
            ],
        )
        self.place.start(
            "kube-scheduler",
            [
                binary("kube-scheduler"),
                f"--kubeconfig={own.kubeconfig('system:kube-scheduler')}",
                "--leader-elect=false",
            ],
        )

    def _is_ready(self) -> bool:
        try:
            context = ssl.create_default_context(cafile=str(self.credentials.ca))
            asked = http.client.HTTPSConnection(self.place.ip, API_PORT, timeout=5, context=context)
            try:
                asked.request("GET", "/readyz")
                return asked.getresponse().status == http.HTTPStatus.OK
            finally:
                asked.close()
        except (OSError, http.client.HTTPException):
            return False

    def _ask_etcd(self, path: str, question: dict[str, object]) -> dict[str, Any]:
        with namespaces.entered(self.place.netns):
            asked = http.client.HTTPConnection(_ETCD, timeout=10)
            asked.connect()
        try:
            asked.request("POST", f"/v3/{path}", json.dumps(question))
            answer = asked.getresponse()
            text = answer.read().decode()
        finally:
            asked.close()
        if answer.status != http.HTTPStatus.OK:
            raise EbpflbError(f"etcd: {path}: {answer.status}: {text}")
        return dict(json.loads(text))


def run_tool(
    name: str,
    arguments: tuple[str, ...],
    kubeconfig: Path,
    text: str | None = None,
) -> str:
    """The output of kubectl or helm. EbpflbError with its error message if it fails."""
    ran = subprocess.run(
        [binary(name), *arguments],
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if ran.returncode:
        raise EbpflbError(f"{name} {' '.join(arguments)}: {ran.stderr.strip()}")
    return ran.stdout


def _credentials(layout: Layout) -> Credentials:
    folder = layout.folder / "credentials"
    ca = layout.folder / "control" / "certificates" / "apiserver.crt"
    return Credentials(folder, f"https://{layout.address('control')}:{API_PORT}", ca)
