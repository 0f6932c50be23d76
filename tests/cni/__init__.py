# SPDX-License-Identifier: Apache-2.0
"""ebpflb with real CNIs, in a real Kubernetes cluster: the rows of docs/compatibility.md.

`make test-cni CNI=NAME` creates a cluster with one of them, installs the chart, runs every test of
test_paths.py, stores the results in `results` and writes the table from them (`python -m tests.cni`
alone does the last step).

A module in `networks` has a tuple ROWS of `Cni` (row.py): how the CNI is installed (a PodNetwork of
the cluster harness), which devices it creates, and what it lacks with any Service proxy. Programs
that are not in every cluster are built by `binaries.built(name, Recipe(...))`, preferably at the
beginning of `start`. Nothing needs to be torn down: processes, pods, namespaces and files end
together with the cluster.
"""
