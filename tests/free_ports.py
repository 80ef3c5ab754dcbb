"""Ports for processes that tests start."""

import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that the kernel gives to connections: one of those could take it before the process does."""


def free_port() -> int:
    """Return a port that nobody listens on; drawn anew each time, so that tests beside each other get others."""
    for _ in range(1_000):
        port = random.SystemRandom().randrange(FIRST, LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no port from {FIRST} to {LAST} is free")
