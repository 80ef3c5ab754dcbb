"""Addresses to listen on."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether an address to bind is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
