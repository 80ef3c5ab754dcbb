"""Say why a pod is evicted, in words. Pure. Source: behaviour/descheduler 6.10."""

from collections.abc import Iterable, Mapping

from koordinator.descheduler.config.low_node_load import Thresholds
from koordinator.descheduler.plugins.low_node_load.usage import Nanos, unit


def text(used: Nanos, capacity: Mapping[str, int], high: Thresholds, over: Iterable[str], prod: bool) -> str:
    """`capacity`: milli-cores of cpu, whole units of all else; `high`: percent as configured."""
    who = "prod" if prod else "node"
    parts = [
        f"{who} {name} usage({_percent(name, used.get(name, 0), capacity.get(name, 0))}%)"
        f">threshold({high[name]:.2f}%)"
        for name in sorted(over)
        if name in high
    ]
    return f"node is overutilized, {', '.join(parts)}"


def _percent(name: str, nanos: int, capacity: int) -> str:
    if capacity <= 0:
        return "+Inf"
    milli = -(-nanos // 10**6)
    return f"{100 * milli / (capacity * (unit(name) // 10**6)):.2f}"
