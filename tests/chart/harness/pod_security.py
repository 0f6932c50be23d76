# SPDX-License-Identifier: Apache-2.0
"""What of a pod the profile `restricted` of the Pod Security Standards refuses."""

from collections.abc import Iterator

from tests.chart.harness.rendering import Object

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_PROFILES = ("RuntimeDefault", "Localhost")


def refused(pod: Object) -> list[str]:
    """What has to change; empty if such a namespace admits the pod."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    for volume in pod.get("volumes", []):
        found += [kind for kind in set(volume) - {"name"} if kind not in _VOLUMES]
    for each in (*pod.get("initContainers", []), *pod["containers"]):
        context = {**pod.get("securityContext", {}), **each.get("securityContext", {})}
        found += _of_context(context)
        found += ["hostPort" for port in each.get("ports", []) if port.get("hostPort")]
    return sorted(set(found))


def _of_context(context: Object) -> Iterator[str]:
    capabilities = context.get("capabilities", {})
    profile = context.get("seccompProfile", {}).get("type")
    wrong = {
        "privileged": context.get("privileged", False),
        "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
        "runAsNonRoot": context.get("runAsNonRoot") is not True,
        "runAsUser": context.get("runAsUser") == 0,
        "drop": capabilities.get("drop") != ["ALL"],
        "add": bool(set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}),
        "seccompProfile": profile not in _PROFILES,
        "appArmorProfile": context.get("appArmorProfile", {}).get("type") == "Unconfined",
        "seLinuxOptions": context.get("seLinuxOptions", {}).get("type")
        not in (None, "container_t"),
    }
    yield from (name for name, is_wrong in wrong.items() if is_wrong)
