"""Area `device-request-normalise`."""

from typing import Any

import msgspec

from koordinator.api.annotations.device import DeviceHint
from koordinator.api.resource_vector import amount
from koordinator.scheduler.plugins.device_share import request

Case = dict[str, Any]


def amounts_of(wire: Case) -> dict[str, int]:
    return {name: amount(name, raw) for name, raw in wire.items()}


def texts_of(amounts: dict[str, int]) -> Case:
    return {name: str(number) for name, number in amounts.items()}


def device_request(case: Case) -> Any:
    return {"normalise": _normalise, "instances": _instances, "fillMemory": _fill_memory}[case["op"]](case)


def _normalise(case: Case) -> Any:
    parsed = request.parse(case["requests"])
    if not parsed.status.is_success:
        is_unit = parsed.status.message.startswith("invalid resource unit")
        return {"ok": False, "errorKind": "unit" if is_unit else "combination"}
    result: Case = {"ok": True, "byType": {kind: texts_of(asked) for kind, asked in parsed.by_type.items()}}
    if "gpu" in parsed.by_type:
        each = request.per_gpu(parsed.by_type["gpu"])
        result["gpu"] = {
            "count": each.count,
            "shared": each.is_shared,
            "perInstance": texts_of(each.amounts),
        }
    return result


def _instances(case: Case) -> Any:
    hint = msgspec.convert(case["hint"], DeviceHint) if "hint" in case else DeviceHint()
    device_labels = [device.get("labels", {}) for device in case["devices"]]
    each = request.per_device(case["type"], amounts_of(case["request"]), device_labels, hint)
    if not each.status.is_success:
        return {"ok": False, "reason": each.status.message}
    return {"ok": True, "count": each.count, "perInstance": texts_of(each.amounts)}


def _fill_memory(case: Case) -> Any:
    completed = request.with_gpu_memory(amounts_of(case["allocation"]), amounts_of(case.get("total", {})))
    return {"ok": False} if completed is None else {"ok": True, "resources": texts_of(completed)}


ADAPTERS = {"device-request-normalise": device_request}
