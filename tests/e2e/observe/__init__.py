# SPDX-License-Identifier: Apache-2.0
"""What metrics, commands and the troubleshooting guide say of real traffic."""
