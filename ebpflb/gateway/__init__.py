# SPDX-License-Identifier: Apache-2.0
"""Gateway API and the MCS API: makes Services and EndpointSlices of Gateways and their routes, and
of ServiceImports, which agents serve as any others. Agents know nothing of it.
"""
