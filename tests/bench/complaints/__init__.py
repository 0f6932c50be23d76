# SPDX-License-Identifier: Apache-2.0
"""What an annotation changes for clients: a slow or distant endpoint, a noisy neighbour."""
