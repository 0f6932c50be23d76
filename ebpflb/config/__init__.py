# SPDX-License-Identifier: Apache-2.0
"""The agent's settings: command line, environment, settings file, kube-proxy's own options.

`settings.load_settings()` merges and checks all of them once; the rest of the program reads the
frozen `Settings`. Every other package may import this one; it imports only `ebpflb.errors`.
"""
