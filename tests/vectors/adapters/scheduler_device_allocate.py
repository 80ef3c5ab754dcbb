"""Areas `device-allocate`, `gpu-partition`, `joint-allocate` and `device-score`."""

from typing import Any

import msgspec
import numpy as np

from koordinator.api import pod_labels
from koordinator.api.annotations import device as annotation
from koordinator.api.annotations.device import DeviceAllocations
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.scheduler.plugin.framework import default_normalize
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.plugins.device_share import inventory, pick, request
from koordinator.scheduler.plugins.device_share.allocate import (
    AllocateOptions,
    DeviceDecision,
    PodDevices,
    check_shared_gpu,
    designated,
    node_score,
)
from koordinator.scheduler.plugins.device_share.exact import (
    Room,
    decide_within,
    designated_hints,
    numa_hints,
)
from koordinator.scheduler.plugins.device_share.inventory import (
    DeviceEntry,
    DeviceLimits,
    HeldDevice,
    NodeDevices,
    VisibleDevice,
)
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.plugins.device_share.pick import DeviceScoringStrategy, in_order
from koordinator.scheduler.plugins.device_share.reservations import ReservedDevices, within
from koordinator.scheduler.plugins.device_share.templates import NO_TEMPLATE, GPUTemplates
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of
from tests.vectors.adapters.scheduler_device_request import amounts_of, texts_of
from tests.vectors.compare import exact

Case = dict[str, Any]


def _node(case: Case) -> NodeDeviceRecord:
    wire = case["device"]
    wire = case["fixtures"]["device"][wire] if isinstance(wire, str) else wire
    device = from_builtins({"metadata": {}, **wire}, Device)
    record = NodeDeviceRecord()
    record.set_idle(inventory.node_devices(device, case.get("nodeLabels", {})))
    for number, allocations in enumerate(msgspec.convert(case.get("used", []), list[DeviceAllocations])):
        record.hold(f"pod-{number}", inventory.held_by(allocations))
    for uid, reservation in _reservations(case):
        record.hold(uid, inventory.held_by(_as_allocations(_amounts_by_minor(reservation["reserved"]))))
        owners = _as_allocations(_amounts_by_minor(reservation.get("usedByOwners", {})))
        record.hold(f"owners of {uid}", inventory.held_by(owners), uid)
    return record


def _reservations(case: Case) -> list[tuple[str, Case]]:
    """Reservations by name; one in a score has none."""
    flat = case.get("reservations", []) + ([case["reservation"]] if "reservation" in case else [])
    return [(each.get("name", "reserved"), each) for each in flat]


def _as_allocations(by_type: Any) -> DeviceAllocations:
    return {
        device_type: [
            annotation.DeviceAllocation(minor=minor, resources=dict(amounts))
            for minor, amounts in of_type.items()
        ]
        for device_type, of_type in by_type.items()
    }


def _amounts_by_minor(flat: Case) -> dict[str, dict[int, dict[str, int]]]:
    return {
        device_type: {int(minor): amounts_of(wire) for minor, wire in minors.items()}
        for device_type, minors in flat.items()
    }


def _reserved(case: Case, record: NodeDeviceRecord) -> list[ReservedDevices]:
    """Those that the pod may use; one that takes no notice of reservations, all."""
    found = []
    for uid, each in _reservations(case):
        if each.get("matched", True) or pod_labels.is_reservation_ignored(case["pod"].get("labels", {})):
            reserved = record.reserved_by(uid, is_restricted=each.get("policy", "") == "Restricted")
            assert reserved is not None
            found.append(reserved)
    return found


def _pod(case: Case) -> tuple[PodDevices, request.PodDeviceRequest]:
    parsed = request.parse(case["pod"]["requests"])
    annotations = case["pod"].get("annotations", {})
    pod = PodDevices(
        parsed.by_type,
        annotation.DEVICE_ALLOCATE_HINT.read(annotations) or {},
        annotation.DEVICE_JOINT_ALLOCATE.read(annotations),
        annotation.GPU_PARTITION_SPEC.read(annotations),
    )
    return pod, parsed


def _strategy(case: Case) -> DeviceScoringStrategy | None:
    if "scoring" not in case:
        return None
    weights = case["scoring"].get("weights", {})
    resources = [{"name": name, "weight": weight} for name, weight in weights.items()]
    return msgspec.convert(
        {"type": case["scoring"]["strategy"], "resources": resources}, DeviceScoringStrategy
    )


def _templates(case: Case) -> Any:
    if "templates" not in case:
        return None
    return GPUTemplates(
        {key: {name: amounts_of(wire) for name, wire in of.items()} for key, of in case["templates"].items()}
    )


def _limits(case: Case, node: NodeDevices) -> DeviceLimits:
    limits = DeviceLimits(case.get("numaNodes"), _amounts_by_minor(case.get("preemptible", {})))
    recorded = annotation.DEVICE_ALLOCATED.read(case["pod"].get("annotations", {}))
    return designated(limits, node, recorded) if case.get("deviceHint") and recorded else limits


def device_allocate(case: Case) -> Any:
    if case["op"] == "gate":
        return _gate(case)
    record = _node(case)
    booked, node = _reserved(case, record), record.devices
    pod, parsed = _pod(case)
    if not parsed.status.is_success:
        return _refused(parsed.status)
    limits, templates = _limits(case, node), _templates(case)
    gpus = pod.by_type.get(annotation.DeviceType.GPU)
    if templates is not None and gpus and templates.refuse(request.per_gpu(gpus)):
        return _refused(NO_TEMPLATE)  # no node is looked at then
    options = AllocateOptions(_strategy(case), templates, case.get("phase") == "Reserve")
    is_ignoring = pod_labels.is_reservation_ignored(case["pod"].get("labels", {}))
    must_use = case.get("requiredFromReservation", False)
    room = Room(reserved=booked, is_ignoring=is_ignoring, must_use=must_use)
    if case["op"] == "numaHints":
        return _hints(node, pod, limits, options, room)
    decision = decide_within(node, pod, room, limits, options)
    if not decision.status.is_success:
        return _refused(decision.status)
    source = decision.reservation or ("ignored" if is_ignoring else "node")
    return {
        "ok": True,
        "allocations": _allocations(decision),
        **({"from": source} if _reservations(case) else {}),
    }


def _refused(status: Status) -> Case:
    return {"ok": False, "code": status.code.word, "reason": status.message}


def _allocations(decision: DeviceDecision) -> Case:
    return {
        device_type: [_allocation(picked) for picked in of_type]
        for device_type, of_type in decision.by_type.items()
    }


def _allocation(picked: HeldDevice) -> Case:
    extension: Case = {}
    if picked.vfs:
        extension["vfs"] = [{"busID": vf.bus_id, "minor": vf.minor} for vf in picked.vfs]
    if picked.template:
        extension["gpuSharedResourceTemplate"] = picked.template
    flat = {"minor": picked.minor, "resources": texts_of(picked.amounts)}
    return {**flat, "extension": extension} if extension else flat


def _gate(case: Case) -> Any:
    pod, parsed = _pod(case)
    if not parsed.status.is_success:
        return _refused(parsed.status)
    unsupported = {
        vendor: frozenset(models) for vendor, models in case.get("gpuShareUnsupportedModels", {}).items()
    }
    status = check_shared_gpu(pod, case["pod"].get("labels", {}), case.get("nodeLabels", {}), unsupported)
    return {"ok": True} if status.is_success else _refused(status)


def _hints(
    node: NodeDevices, pod: PodDevices, limits: DeviceLimits, options: AllocateOptions, room: Room
) -> Any:
    # Nothing else requires devices here.
    is_chosen = bool(limits.required)
    decision = (
        designated_hints(node, pod, limits) if is_chosen else numa_hints(node, pod, limits, options, room)
    )
    if not decision.status.is_success:
        return _refused(decision.status)
    return {
        "ok": True,
        "hints": {
            device_type: [
                {"numaNodes": list(cpus_of(h.numa_nodes or 0)), "preferred": h.is_preferred, "score": h.score}
                for h in hints or ()
            ]
            for device_type, hints in decision.by_resource.items()
        },
    }


def device_score(case: Case) -> Any:
    strategy = _strategy(case) or DeviceScoringStrategy()
    if case["op"] == "normalise":
        points = default_normalize(np.array(list(case["scores"].values()), np.int64))
        return {"scores": dict(zip(case["scores"], points.tolist(), strict=True))}
    if case["op"] == "order":
        return {"order": _order(case)}
    if case["op"] == "device":
        total, free = amounts_of(case["total"]), amounts_of(case["free"])
        return {"score": pick.device_score(strategy, amounts_of(case["request"]), total, free)}
    record = _node(case)
    booked, node = _reserved(case, record), record.devices
    limits = DeviceLimits(given_back=_amounts_by_minor(case.get("preemptible", {})))
    limits = within(booked[0], limits) if booked else limits
    return {"ok": True, "score": node_score(node, _pod(case)[0], strategy, limits)}


def _order(case: Case) -> list[int]:
    points = {device["minor"]: device["score"] for device in case["devices"]}
    devices = [
        VisibleDevice(
            DeviceEntry(device["minor"], {}, has_topology="pcie" in device, pcie=device.get("pcie", "")),
            {},
            False,
        )
        for device in case["devices"]
    ]
    ordered = in_order(
        devices, case.get("preferred", []), case.get("preferredPCIes", []), lambda d: points[d.minor]
    )
    return [device.minor for device in ordered]


def _same(expected: Any, actual: Any) -> bool:
    """One of several reasons will do."""
    if "reasonAnyOf" not in expected:
        return exact(expected, actual)
    reason_fits = actual.get("reason") in expected["reasonAnyOf"]
    return reason_fits and all(actual.get(key) == expected[key] for key in ("ok", "code"))


ADAPTERS = {
    **dict.fromkeys(("device-allocate", "gpu-partition", "joint-allocate"), device_allocate),
    "device-score": device_score,
}
COMPARE = dict.fromkeys(("device-allocate", "gpu-partition", "joint-allocate"), _same)
