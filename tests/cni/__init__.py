# SPDX-License-Identifier: Apache-2.0
"""ebpflb beside real CNIs, in a real Kubernetes: the rows of docs/compatibility.md.

`make test-cni CNI=NAME` makes a cluster with one of them, installs the chart, runs every test of
test_paths.py, keeps what became of them in `results` and writes the table from that
(`python -m tests.cni` alone does the last step).

A module in `networks` has a tuple ROWS of `Cni` (row.py): how the CNI is installed (a PodNetwork of
the cluster harness), which devices it makes, and what it lacks whoever serves Services. Programs
that are not in every cluster are built by `binaries.built(name, Recipe(...))`, best at the
beginning of `start`. Nothing has to be torn down: processes, pods, namespaces and files end
together with the cluster.
"""
