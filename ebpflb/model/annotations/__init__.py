# SPDX-License-Identifier: Apache-2.0
"""What Services ask for by annotations, beyond the rules of kube-proxy."""
