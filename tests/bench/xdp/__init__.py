# SPDX-License-Identifier: Apache-2.0
"""The cost of a packet at XDP: compared with tc, on a wire, with many Services, with other
programs.
"""
