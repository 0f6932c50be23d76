# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb ui: a page on this machine that shows who talks to which Service and which pod.

following, past -> edges -> traffic -> grouping -> view -> pages -> server -> static/ in a browser
Flows are untrusted: edges checks every value, and the page shows all of it as text.
"""
