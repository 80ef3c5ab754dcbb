"""All QoS strategies."""

from koordinator.koordlet.parts import Shared, Strategy


def strategies(shared: Shared) -> list[Strategy]:
    """One of each, in the order in which they are started; intervals are those of the configuration."""
    return []
