"""What the reference answers about devices, worked out from what we answer."""

from typing import Any
from unittest import mock

from koordinator.api import resources
from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceType
from koordinator.scheduler.plugins.device_share import reservations
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


def with_all_devices_at_once(case: Case, ask: Ask) -> Any:
    """An owner of a reservation is not tried with reserved devices alone."""
    if not case.get("reservations"):
        return None
    all_seen = reservations._seen

    def at_once(*asked: Any) -> list[Any]:
        seen = list(all_seen(*asked))
        return [next((each for each in seen if each.preferred), seen[-1])]

    with mock.patch.object(reservations, "_seen", at_once):
        return ask(case)


def with_errors_of_lost_cards(case: Case, ask: Ask) -> Any:
    """A card that was chosen beforehand and is not healthy is an error, and of none but the scheduler's."""
    chosen = (
        (DEVICE_ALLOCATED.read(case["pod"].get("annotations", {})) or {}) if case.get("deviceHint") else {}
    )
    wire = case["device"]
    device = case["fixtures"]["device"][wire] if isinstance(wire, str) else wire
    healthy = {
        each["minor"]
        for each in device["spec"]["devices"]
        if each["type"] == DeviceType.GPU and each.get("health")
    }
    lost = [each.minor for each in chosen.get(DeviceType.GPU, ()) if each.minor not in healthy]
    if not lost:
        return None
    reason = f"fillGPUTotalMem failed: no healthy gpu device with minor {lost[0]} of allocation, node: node"
    return {"ok": False, "code": "Error", "reason": reason}
