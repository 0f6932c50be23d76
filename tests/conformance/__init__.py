# SPDX-License-Identifier: Apache-2.0
"""Every rule of kube-proxy, and the tests that prove it.

rules/ becomes docs/development/conformance.md.
"""
