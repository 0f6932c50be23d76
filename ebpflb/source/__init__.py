# SPDX-License-Identifier: Apache-2.0
"""Where API objects come from: manifests in a directory, decoded into the model."""
