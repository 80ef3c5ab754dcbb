"""Tell people and tools what devices a node has, what is left of them, and who holds what."""

from collections.abc import Iterable, Mapping
from typing import Any

from koordinator.api import resource_vector
from koordinator.scheduler.plugins.device_share.allocate import PodDevices
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    AmountsByMinor,
    NodeDevices,
    VisibleDevice,
    add,
    visible_device,
)
from koordinator.scheduler.plugins.device_share.node_device_cache import NodeDeviceRecord

Json = dict[str, Any]


def facts(asked: PodDevices, record: NodeDeviceRecord) -> tuple[str, ...]:
    """Return what a pod asks for, and what each device of these types has left, one sentence per type."""
    if not record.is_reported:
        return ("the node has no Device object: its own device plugins choose devices",)
    return tuple(
        _facts_of(record.devices, device_type, amounts) for device_type, amounts in asked.by_type.items()
    )


def _facts_of(devices: NodeDevices, device_type: str, asked: Mapping[str, int]) -> str:
    wanted = _words(asked)
    of_type = [
        visible_device(devices, device_type, entry, NO_LIMITS)
        for entry in devices.devices.get(device_type, {}).values()
    ]
    if not of_type:
        return f"asks for {wanted}; the node has no {device_type}"
    return f"asks for {wanted}; left: {'; '.join(f'{device_type} {_left(each)}' for each in of_type)}"


def _left(device: VisibleDevice) -> str:
    if not device.is_healthy:
        return f"{device.minor} is not healthy"
    return f"{device.minor} {_words(device.free)}"


def _words(amounts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name.partition('/')[2]} {resource_vector.readable_amount(name, n)}" for name, n in amounts.items()
    )


def summary(record: NodeDeviceRecord, pod_keys: Mapping[str, str]) -> Json:
    """Return what the endpoint answers about a node, in the reference's form; `pod_keys` maps uids to
    namespace/name."""
    devices = record.devices
    total = {
        t: {minor: entry.total for minor, entry in of_type.items()} for t, of_type in devices.devices.items()
    }
    free = {
        t: {minor: visible_device(devices, t, entry, NO_LIMITS).free for minor, entry in of_type.items()}
        for t, of_type in devices.devices.items()
    }
    held: Json = {}
    for uid, by_type in record.held.items():
        for device_type, of_pod in by_type.items():
            minors = {str(each.minor): _texts(each.amounts) for each in of_pod}
            held.setdefault(device_type, {})[pod_keys.get(uid, uid)] = minors
    answer: Json = {"allocateSet": held}
    for name, by_type_ in (("Total", total), ("Free", free), ("Used", devices.used)):
        answer[f"device{name}"] = _texts(_sum(minors for minors in by_type_.values()))
        answer[f"device{name}Detail"] = {
            device_type: {str(minor): _texts(amounts) for minor, amounts in minors.items()}
            for device_type, minors in by_type_.items()
        }
    return answer


def _sum(by_type: Iterable[AmountsByMinor]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for minors in by_type:
        for amounts in minors.values():
            add(summed, amounts)
    return summed


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: resource_vector.amount_text(name, amount) for name, amount in amounts.items()}
