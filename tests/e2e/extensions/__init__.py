# SPDX-License-Identifier: Apache-2.0
"""What Services have if an annotation asks for it."""
