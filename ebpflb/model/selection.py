# SPDX-License-Identifier: Apache-2.0
"""Which Services this proxy serves if another one, such as kube-proxy, serves the others."""

from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.config.label_selector import LabelSelector, parse_label_selector
from ebpflb.model.service import Labels, Service

# On a Service: the name of the proxy that serves it, instead of the cluster's usual one.
PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
# The API server adds it to every Namespace.
_NAME_LABEL = "kubernetes.io/metadata.name"
_ALL = parse_label_selector("")


class Selection(NamedTuple):
    """Selectors on the labels of a Service and of its Namespace: both must match.

    proxy_name: what PROXY_LABEL must have; empty: Services without the label.
    """

    services: LabelSelector = _ALL
    namespaces: LabelSelector = _ALL
    proxy_name: str = ""

    @property
    def is_limited(self) -> bool:
        """Whether some Services may be left out."""
        return bool(self.options)

    @property
    def is_shared(self) -> bool:
        """Whether another proxy serves what is selected as well."""
        return self.is_limited and not self.proxy_name

    @property
    def options(self) -> Mapping[str, str]:
        """The selectors in use, by the names of their options."""
        given = {
            "service-proxy-name": self.proxy_name,
            "service-selector": self.services.text,
            "namespace-selector": self.namespaces.text,
        }
        return {name: text for name, text in given.items() if text}

    @property
    def label_keys(self) -> frozenset[str]:
        """The labels that the selectors use."""
        keys = self.services.keys | self.namespaces.keys
        return keys | {PROXY_LABEL} if self.proxy_name else keys

    def why_not(self, service: Service, namespace_labels: Labels) -> str:
        """Which selector excludes a Service; empty if it is to be served.

        namespace_labels: empty if the Namespace is not known; its name counts anyway.
        """
        labels = dict(service.labels)
        if self.proxy_name and labels.get(PROXY_LABEL) != self.proxy_name:
            return f"not selected by --service-proxy-name {self.proxy_name!r}"
        namespace = {_NAME_LABEL: service.name.namespace, **dict(namespace_labels)}
        if not self.services.matches(labels):
            return f"not selected by --service-selector {self.services.text!r}"
        if not self.namespaces.matches(namespace):
            return f"not selected by --namespace-selector {self.namespaces.text!r}"
        return ""


EVERYTHING = Selection()
