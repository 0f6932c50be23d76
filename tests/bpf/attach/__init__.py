# SPDX-License-Identifier: Apache-2.0
"""Attaching: pins, links, devices, namespaces, probes and all of them together."""
