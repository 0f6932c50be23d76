// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package multicluster names the definitions of the MCS API.
package multicluster

import _ "sigs.k8s.io/mcs-api/config/crd"
