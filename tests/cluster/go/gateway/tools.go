// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package gateway names the program that the backends of Gateway API's conformance tests run.
package gateway

import _ "sigs.k8s.io/gateway-api/conformance/echo-basic"
