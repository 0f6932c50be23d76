# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, rendered by the real helm and read as YAML; no cluster is needed."""
