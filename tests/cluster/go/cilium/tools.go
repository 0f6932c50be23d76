// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools names the programs of Cilium that a node of the test cluster runs.
package tools

import (
	_ "github.com/cilium/cilium/daemon"
	_ "github.com/cilium/cilium/plugins/cilium-cni"
)
