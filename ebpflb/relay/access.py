# SPDX-License-Identifier: Apache-2.0
"""The cluster as the relay sees it: its agents, nodes and pods, and who may ask what."""

import ssl
import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config

from ebpflb.errors import ClusterError, ConfigError
from ebpflb.kubectl.access import Access
from ebpflb.kubectl.agents import RemoteAgent, find_agents
from ebpflb.model.service import ServiceName
from ebpflb.relay.identity import FrontProxy, front_proxy
from ebpflb.relay.redaction import ClusterAddresses, cluster_addresses
from ebpflb.relay.rights import ViewerRights
from ebpflb.relay.shared import Shared

Value = TypeVar("Value")

_load: Callable[..., None] = load_incluster_config

_ANSWER_SECONDS = 10.0
_AGENTS_SECONDS, _NODES_SECONDS, _FRONT_PROXY_SECONDS = 5.0, 30.0, 60.0
_FRONT_PROXY = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
_ENDED = ("Succeeded", "Failed")
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class PodAccess(Access):
    """With the permissions of this pod's ServiceAccount, whose token is read again in time."""

    def __init__(self, seconds: float = _ANSWER_SECONDS) -> None:
        configuration = Configuration()
        try:
            _load(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise ConfigError(f"not in a pod with a ServiceAccount: {error}") from error
        configuration.retries = False
        self.namespace, self.context = "default", "in-cluster"
        self._use(configuration, seconds)


class Kept(Generic[Value]):
    """What `read` returns, read again after some seconds. Thread-safe.

    One thread reads; those that come meanwhile get what it gets, be it an error.
    """

    def __init__(self, seconds: float, read: Callable[[], Value]) -> None:
        self._seconds = seconds
        self._read = read
        self._lock = threading.Lock()
        self._reading = Shared[Value]()
        self._found: Value | None = None
        self._read_at = 0.0

    @property
    def last(self) -> Value | None:
        """What was last read, if anything was; reads nothing."""
        with self._lock:
            return self._found

    def get(self) -> Value:
        """Raises what `read` raises."""
        found = self._fresh()
        return self._reading.get("", self._renewed) if found is None else found

    def _renewed(self) -> Value:
        # Another thread may have read it since.
        if (found := self._fresh()) is None:
            began, found = time.monotonic(), self._read()
            with self._lock:
                self._found, self._read_at = found, began
        return found

    def _fresh(self) -> Value | None:
        with self._lock:
            is_old = time.monotonic() - self._read_at > self._seconds
            return None if is_old else self._found


class PodWithAddress(NamedTuple):
    """is_on_host: in the network of its node."""

    namespace: str
    is_on_host: bool


class ObservedCluster:
    """Thread-safe. What is read raises ClusterError."""

    def __init__(self, access: Access, agent_namespace: str) -> None:
        """`agent_namespace`: where the agents are; empty to look in all."""
        self.access = access
        self._agent_namespace = agent_namespace
        self.rights = ViewerRights(lambda review: access.create(_REVIEWS, review))
        self.agents = Kept(_AGENTS_SECONDS, self._agents)
        self.addresses = Kept(_NODES_SECONDS, self._addresses)
        self.front_proxy = Kept(_FRONT_PROXY_SECONDS, self._front_proxy)

    def addresses_of(self, pod: ServiceName) -> list[str]:
        """The addresses of a pod."""
        path = f"/api/v1/namespaces/{quote(pod.namespace)}/pods/{quote(pod.name)}"
        with self.access.reading():
            found = self.access.get(path).get("status", {}).get("podIPs") or ()
            addresses = [str(each["ip"]) for each in found]
        if not addresses:
            raise ClusterError(f"pod {pod} has no address yet")
        return addresses

    def pods_with(self, address: str) -> list[PodWithAddress]:
        """Pods that have this address first, without those that have ended, which keep theirs."""
        query = [("fieldSelector", f"status.podIP={address}")]
        with self.access.reading():
            return [
                PodWithAddress(
                    str(pod["metadata"]["namespace"]), bool(pod["spec"].get("hostNetwork"))
                )
                for pod in self.access.items("/api/v1/pods", query)
                if pod.get("status", {}).get("phase") not in _ENDED
            ]

    def _agents(self) -> list[RemoteAgent]:
        with self.access.reading():
            return find_agents(self.access, self._agent_namespace).agents

    def _addresses(self) -> ClusterAddresses:
        return cluster_addresses(self.access.items("/api/v1/nodes"))

    def _front_proxy(self) -> FrontProxy:
        with self.access.reading():
            found = front_proxy(self.access.get(_FRONT_PROXY)["data"])
        # ssl takes no other text, which may be between certificates.
        client_ca = found.client_ca.encode("ascii", "replace").decode()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=client_ca)
        except (ssl.SSLError, ValueError) as error:
            raise ClusterError("the API server's front proxy has no readable CA") from error
        return found._replace(client_ca=client_ca)
