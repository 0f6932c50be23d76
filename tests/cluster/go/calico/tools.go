// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools names the programs of Calico that a node of the test cluster runs.
package tools

import (
	_ "github.com/projectcalico/calico/cni-plugin/cmd/calico"
	_ "github.com/projectcalico/calico/node/cmd/calico-node"
)
