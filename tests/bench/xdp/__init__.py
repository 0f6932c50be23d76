# SPDX-License-Identifier: Apache-2.0
"""What a packet costs at XDP: beside tc, on a wire, with many Services, beside other programs."""
