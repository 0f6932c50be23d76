# SPDX-License-Identifier: Apache-2.0
"""Where API objects come from: the Kubernetes API or manifests, decoded into the model.

`kubernetes.KubernetesSource` and `directory.DirectorySource` send `interface.SourceEvent`s from
threads of their own. Called by `agent`; the only importer of the Kubernetes client.
"""
