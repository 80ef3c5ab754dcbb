"""What the reference answers about devices, worked out from what we answer."""

from typing import Any

from koordinator.api import resources
from tests.vectors.adapters.scheduler_device_request import amounts_of
from tests.vectors.deviations.question import Ask, Case


def with_ratios_in_floating_point(case: Case, ask: Ask) -> Any:
    """A card's ratio is a hundred times the share, both in binary floating point, and then cut off."""
    if case["op"] != "fillMemory":
        return None
    allocated, total = amounts_of(case["allocation"]), amounts_of(case.get("total", {}))
    wanted, whole = allocated.get(resources.GPU_MEMORY), total.get(resources.GPU_MEMORY)
    answer = ask(case)
    if resources.GPU_MEMORY_RATIO in allocated or wanted is None or not whole or not answer["ok"]:
        return None
    ratio = {resources.GPU_MEMORY_RATIO: str(int(wanted / whole * 100))}
    return {**answer, "resources": {**answer["resources"], **ratio}}
