# SPDX-License-Identifier: Apache-2.0
"""Where API objects come from: the Kubernetes API or manifests, decoded into the model.

`kubernetes.KubernetesSource` and `directory.DirectorySource` send `interface.SourceEvent`s from
their own threads. Used by `agent`; the only package that imports the Kubernetes client.
Decisions: docs/development/decisions/sources.md.
"""
