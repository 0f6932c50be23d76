# SPDX-License-Identifier: Apache-2.0
"""The Services that the labels of pods matter to."""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.weights import Weights
from ebpflb.model.service import Service, ServiceName

Slices = Mapping[ServiceName, tuple[EndpointSlice, ...]]
Problems = Mapping[ServiceName, tuple[str, ...]]
_OF_PODS = Weights()


class LabelledPods:
    """Finds the Services that labels and weights of pods matter to.

    Those are the ones with weights, or whose endpoints one with weights may be lent, and of them
    those with a slice that names such a pod of their own namespace.
    """

    def __init__(
        self,
        slices: Slices,
        service: Callable[[ServiceName], Service | None],
        borrowers: Callable[[Collection[ServiceName]], AbstractSet[ServiceName]],
    ) -> None:
        """`slices`: of all Services, as they are when a method is called.

        borrowers: the Services whose backup is one of these.
        """
        self._slices = slices
        self._service = service
        self._borrowers = borrowers
        # Pods with a problem, by NAMESPACE/NAME.
        self._wrong: dict[str, str] = {}

    def changed(self, pods: Mapping[tuple[str, str], PodLabels | None]) -> AbstractSet[ServiceName]:
        """The Services to plan again. `pods`: by namespace and name; None for one that is gone."""
        for (namespace, name), pod in pods.items():
            self._wrong.pop(f"{namespace}/{name}", None)
            if pod and pod.problem:
                self._wrong[f"{namespace}/{name}"] = pod.problem
        return self._named({"/".join(key) for key in pods}).keys()

    def problems(self, others: Problems) -> Problems:
        """With a line about wrong weights of pods, for each Service that they matter to."""
        found = dict(others)
        for name, pods in self._named(self._wrong.keys()).items():
            service = self._service(name)
            if service and service.annotated.weights == _OF_PODS:
                found[name] = (*others.get(name, ()), self._line(pods))
        return found

    def _line(self, pods: Iterable[str]) -> str:
        first, *rest = sorted(pods)
        more = f" (and {len(rest)} more pods)" if rest else ""
        return f"Pod {first}: {self._wrong[first]}; it is ignored{more}"

    def _named(self, pods: AbstractSet[str]) -> dict[ServiceName, AbstractSet[str]]:
        """The Services, each with those of the pods that its slices name."""
        namespaces = {pod.partition("/")[0] for pod in pods}
        found = {}
        for name, slices in self._slices.items():
            users = {name, *self._borrowers({name})}
            if name.namespace not in namespaces or not any(map(self._is_weighted, users)):
                continue
            if named := pods & {pod for piece in slices for pod in piece.endpoints.pods}:
                found[name] = named
        return found

    def _is_weighted(self, name: ServiceName) -> bool:
        service = self._service(name)
        return service is not None and service.annotated.weights is not None
