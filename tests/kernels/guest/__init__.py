# SPDX-License-Identifier: Apache-2.0
"""What Python finds before anything else in a booted kernel."""
