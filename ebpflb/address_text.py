# SPDX-License-Identifier: Apache-2.0
"""IP addresses and ports as texts."""


def socket_address(address: str, port: int) -> str:
    """As in 10.0.0.1:80 or [fd00::1]:80."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_ip(text: str) -> bool:
    """Not a host name."""
    from ipaddress import ip_address

    try:
        ip_address(text)
    except ValueError:
        return False
    return True
