// SPDX-License-Identifier: Apache-2.0

module ebpflb.invalid/tests/echo

go 1.26.0
