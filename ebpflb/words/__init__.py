# SPDX-License-Identifier: Apache-2.0
"""Words that options, objects, maps, commands and documents share, each defined once."""
