# SPDX-License-Identifier: Apache-2.0
"""The policy: API objects in, desired frontends out. Pure: no clock, no I/O, no libraries.

`changes.Changes` holds the objects and plans Services; all layers above read its values.
Decisions: docs/development/decisions/endpoints.md.
"""
