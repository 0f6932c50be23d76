# SPDX-License-Identifier: Apache-2.0
"""Backup and spill-over: when a Service port has the endpoints of another Service."""
