# SPDX-License-Identifier: Apache-2.0
"""The file named by --config: settings by option name, or a KubeProxyConfiguration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ebpflb.config.file_version import FileVersion, digest
from ebpflb.config.kube_proxy_config import DECIDED, KIND, read_kube_proxy_config
from ebpflb.config.kube_proxy_flags import Warn
from ebpflb.config.option import Given, by_option
from ebpflb.config.options import OPTIONS
from ebpflb.config.values import nearest
from ebpflb.errors import SettingError

# Flags and variables override these fields of a KubeProxyConfiguration, as with kube-proxy.
# So does --scheduler, which kube-proxy does not have.
_NEVER_DECIDED = frozenset(("node-name", "log-format", "verbosity", "scheduler"))


class SettingsFile(NamedTuple):
    """What a file sets, by option name; `decides`: the options that only the file may set."""

    version: FileVersion | None
    given: Mapping[str, Given]
    decides: frozenset[str]


NO_FILE = SettingsFile(None, {}, frozenset())


def read_settings_file(path: Path, warn: Warn) -> SettingsFile:
    """Raises SettingError, which names the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingError(f"settings file {path}: {error.strerror}") from error
    version = FileVersion(path, digest(content))
    documents = _parse(path, content)
    if any(_is_of_kubernetes(document) for document in documents):
        document = _kube_proxy_document(path, documents, warn)
        given = read_kube_proxy_config(str(path), document, warn)
        return SettingsFile(version, given, DECIDED - _NEVER_DECIDED)
    if len(documents) > 1:
        raise SettingError(f"settings file {path}: want one document, found {len(documents)}")
    return SettingsFile(version, _own(path, documents[0] if documents else {}), frozenset())


def _parse(path: Path, content: bytes) -> list[Mapping[object, object]]:
    """The non-empty documents."""
    import yaml

    try:
        documents = [each for each in yaml.safe_load_all(content.decode()) if each is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"settings file {path}: {' '.join(str(error).split())}") from error
    if not all(isinstance(document, dict) for document in documents):
        raise SettingError(f"settings file {path}: want a mapping of option names to values")
    return documents


def _is_of_kubernetes(document: Mapping[object, object]) -> bool:
    return "kind" in document or "apiVersion" in document


def _kube_proxy_document(
    path: Path, documents: Sequence[Mapping[object, object]], warn: Warn
) -> Mapping[object, object]:
    """The one KubeProxyConfiguration of a file that may hold more documents, for kubeadm."""
    found = [document for document in documents if document.get("kind") == KIND]
    kinds = [document.get("kind") for document in documents if document.get("kind") != KIND]
    if not found and kinds == ["ConfigMap"]:
        raise SettingError(f"{path}: kind: 'ConfigMap': want the text of its key config.conf alone")
    if len(found) != 1:
        raise SettingError(f"{path}: want one {KIND}, found {len(found)} (kinds: {kinds})")
    for kind in kinds:
        warn(f"{path}: a document of kind {kind} is ignored: it is not a {KIND}")
    return found[0]


def _own(path: Path, content: Mapping[object, object]) -> dict[str, Given]:
    names = {name for option in OPTIONS for name in option.names}
    for key in content:
        if key not in names:
            raise SettingError(f"{path}: unknown key {key!r}{nearest(str(key), names)}")
    return by_option(
        OPTIONS, {str(key): Given(value, f"{path}: {key}") for key, value in content.items()}
    )
