# SPDX-License-Identifier: Apache-2.0
"""Gateway API: makes Services and EndpointSlices of Gateways and their routes, which agents serve
as any others. Agents know nothing of it.
"""
