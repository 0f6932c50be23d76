# SPDX-License-Identifier: Apache-2.0
"""Which Services this proxy serves if another one, such as kube-proxy, serves the others."""

from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.config.label_selector import LabelSelector, parse_label_selector
from ebpflb.model.service import Labels, Service

# The API server adds it to every Namespace.
_NAME_LABEL = "kubernetes.io/metadata.name"
_ALL = parse_label_selector("")


class Selection(NamedTuple):
    """Selectors on the labels of a Service and of its Namespace: both must match."""

    services: LabelSelector = _ALL
    namespaces: LabelSelector = _ALL

    @property
    def is_limited(self) -> bool:
        """Whether some Services may be left out."""
        return bool(self.options)

    @property
    def options(self) -> Mapping[str, str]:
        """The selectors in use, by the names of their options."""
        both = {"service-selector": self.services, "namespace-selector": self.namespaces}
        return {name: each.text for name, each in both.items() if each.requirements}

    @property
    def label_keys(self) -> frozenset[str]:
        """The labels that the selectors use."""
        return self.services.keys | self.namespaces.keys

    def why_not(self, service: Service, namespace_labels: Labels) -> str:
        """Which selector excludes a Service; empty if it is to be served.

        namespace_labels: empty if the Namespace is not known; its name counts anyway.
        """
        namespace = {_NAME_LABEL: service.name.namespace, **dict(namespace_labels)}
        if not self.services.matches(dict(service.labels)):
            return f"not selected by --service-selector {self.services.text!r}"
        if not self.namespaces.matches(namespace):
            return f"not selected by --namespace-selector {self.namespaces.text!r}"
        return ""


EVERYTHING = Selection()
