# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes cluster on one machine, for tests and for people: docs/cluster.md."""
