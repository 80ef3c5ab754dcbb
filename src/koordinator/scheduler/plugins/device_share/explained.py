"""Say what nodes have of devices and who holds it, for people and in the reference's form.
Source: behaviour/devices 10."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from koordinator.api import resource_vector
from koordinator.api.resource_vector import add_in_place, texts
from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiRequest, Endpoint
from koordinator.scheduler.plugins.device_share.allocate import PodDevices
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    AmountsByMinor,
    Held,
    NodeDevices,
    VisibleDevice,
    visible_device,
)
from koordinator.scheduler.plugins.device_share.node_device_cache import NodeDeviceCache
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.table.nodes import NodeTable

Json = dict[str, Any]


def endpoints(table: NodeTable, cache: NodeDeviceCache) -> tuple[Endpoint, ...]:
    """Return the reference's endpoints of the plugin."""

    def summary_at(row: int) -> Json:
        return summary(cache.at(row), {uid: pod.key for uid, pod in table.pods_at(row).items()})

    def of_all(request: ApiRequest) -> ApiAnswer:
        rows = {table.name_of(row): row for row in cache.reported_rows()}
        return ApiAnswer({name: summary_at(row) for name, row in sorted(rows.items())})

    def of_one(request: ApiRequest) -> ApiAnswer:
        name = request.path["name"]
        row = table.row_of(name)
        if row is None or not cache.at(row).is_reported:
            return ApiAnswer({"message": f"node {name} has no Device"}, 404)
        return ApiAnswer(summary_at(row))

    return (Endpoint("nodeDeviceSummaries", of_all), Endpoint("nodeDeviceSummaries/{name}", of_one))


def facts(asked: PodDevices, record: NodeDeviceRecord, kept_by: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a pod asks for, and what each device of these types has left, one sentence per type; then what
    Reservations keep, whose names are given by uid."""
    if not record.is_reported:
        return ("the node has no Device object: its own device plugins choose devices",)
    left = [_facts_of(record.devices, device_type, amounts) for device_type, amounts in asked.by_type.items()]
    kept = [
        f"Reservation {name} keeps {'; '.join(found)}"
        for uid, name in sorted(kept_by.items(), key=lambda item: item[1])
        if (found := list(_kept(record.left_of(uid), asked)))
    ]
    return *left, *kept


def _kept(left: Held, asked: PodDevices) -> Iterator[str]:
    """Yield the devices of the types asked for of which something is left to a Reservation's owners."""
    for device_type in asked.by_type:
        for each in left.get(device_type, ()):
            if amounts := {name: amount for name, amount in each.amounts.items() if amount}:
                yield f"{device_type} {each.minor} {_words(amounts)}"


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
            minors = {str(each.minor): texts(each.amounts) for each in of_pod}
            held.setdefault(device_type, {})[pod_keys.get(uid, uid)] = minors
    answer: Json = {"allocateSet": held}
    for name, by_type_ in (("Total", total), ("Free", free), ("Used", devices.used)):
        answer[f"device{name}"] = texts(_sum(minors for minors in by_type_.values()))
        answer[f"device{name}Detail"] = {
            device_type: {str(minor): texts(amounts) for minor, amounts in minors.items()}
            for device_type, minors in by_type_.items()
        }
    return answer


def _sum(by_type: Iterable[AmountsByMinor]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for minors in by_type:
        for amounts in minors.values():
            add_in_place(summed, amounts)
    return summed
