// SPDX-License-Identifier: Apache-2.0

module ebpflb.invalid/tests/multicluster

go 1.26.0

require sigs.k8s.io/mcs-api v0.5.2
