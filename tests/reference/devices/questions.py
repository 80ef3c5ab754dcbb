"""What questions about devices must keep to."""

import json
import random
import re
from typing import Any

Json = dict[str, Any]
_DEBT = re.compile(r'"-\d')
_RESOURCE = {"rdma": "koordinator.sh/rdma", "fpga": "koordinator.sh/fpga"}


def _request(asked: Json) -> Json | None:
    """Amounts are above 0; of one type, and by hundreds above 100."""
    if _DEBT.search(json.dumps(asked)):
        return None
    if asked["op"] == "fillMemory":
        amounts = [*asked["allocation"].values(), *asked.get("total", {}).values()]
        names = {"koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"}
        return asked if "0" not in amounts and names & asked["allocation"].keys() else None
    if asked["op"] != "instances":
        return asked
    name = _RESOURCE.get(asked["type"])
    amount = asked["request"].get(name, "0")
    if list(asked["request"]) != [name] or not amount.isdigit() or int(amount) == 0:
        return None
    return asked if int(amount) <= 100 or int(amount) % 100 == 0 else None


def _situation(asked: Json) -> Json | None:
    """Nobody owes anything, devices are there once, pods hold devices that there are and want some."""
    if _DEBT.search(json.dumps(asked)):
        return None
    if min(asked.get("scoring", {}).get("weights", {}).values(), default=1) < 1:
        return None
    if min(asked.get("numaNodes") or (0,)) < 0 or asked.get("numaNodes") == []:
        return None
    if "pod" not in asked:
        minors = [each["minor"] for each in asked.get("devices", ())]
        return asked if len(set(minors)) == len(minors) else None
    if all(text in ("0", "0Gi", "0Mi") for text in asked["pod"]["requests"].values()):
        return None
    if asked["op"] == "numaHints":  # devices score alike then
        asked = {name: value for name, value in asked.items() if name != "scoring"}
    wire = asked["device"]
    device = asked["fixtures"]["device"][wire] if isinstance(wire, str) else wire
    listed = {(each["type"], each.get("minor")): each for each in device["spec"]["devices"]}
    if len(listed) < len(device["spec"]["devices"]) or any(minor is None for _, minor in listed):
        return None
    if not all(map(_is_card, device["spec"]["devices"])):
        return None
    if any(
        each.get("extension")
        for allocations in asked.get("used", ())
        for held in allocations.values()
        for each in held
    ):
        vfs = {
            (key, vf["busID"])
            for key, each in listed.items()
            for group in each.get("vfGroups", ())
            for vf in group["vfs"]
        }
        held_vfs = [
            ((kind, each["minor"]), vf["busID"])
            for allocations in asked["used"]
            for kind, held in allocations.items()
            for each in held
            for vf in each.get("extension", {}).get("vfs", ())
        ]
        if not vfs.issuperset(held_vfs):
            return None
    kinds = {kind for kind, _ in listed}
    used = [
        {kind: held for kind, held in allocations.items() if kind in kinds}
        for allocations in asked.get("used", ())
    ]
    for allocations in used:
        for kind, held in allocations.items():
            if any(
                each["resources"].keys() - listed[kind, each["minor"]]["resources"].keys()
                for each in held
                if (kind, each["minor"]) in listed
            ):
                return None  # an amount that the device does not have
    reservations = [
        *asked.get("reservations", ()),
        *([asked["reservation"]] if "reservation" in asked else []),
    ]
    if asked["op"] == "numaHints" and sum(each.get("matched", True) for each in reservations) > 1:
        return None  # which of several serves an owner is another one here, and so is the place that is preferred
    names = [each.get("name") for each in reservations]
    if len(set(names)) < len(names) or (reservations and asked.get("deviceHint")):
        return None
    for each in reservations:
        if each.get("policy", "") not in ("", "Aligned", "Restricted"):
            return None
        reserved, owned = each["reserved"], each.get("usedByOwners", {})
        if any((kind, int(minor)) not in listed for kind, held in reserved.items() for minor in held):
            return None
        if any(held.keys() - reserved.get(kind, {}).keys() for kind, held in owned.items()):
            return None
    return {**asked, "used": [{kind: held for kind, held in each.items() if held} for each in used]}


def _is_card(device: Json) -> bool:
    """Whether a card has memory and tells it in percent, too, where it is one."""
    resources = device.get("resources", {})
    memory = resources.get("koordinator.sh/gpu-memory", "0")
    return device["type"] != "gpu" or (memory[0] != "0" and "koordinator.sh/gpu-memory-ratio" in resources)


_CARD = {
    "koordinator.sh/gpu-core": 100,
    "koordinator.sh/gpu-memory-ratio": 100,
    "koordinator.sh/gpu-memory": 8 << 30,
}
_HINT = "scheduling.koordinator.sh/device-allocate-hint"
_JOINT = "scheduling.koordinator.sh/device-joint-allocate"
_PARTITIONS = "scheduling.koordinator.sh/gpu-partition-spec"


def _part(percent: int) -> Json:
    return {name: str(amount * percent // 100) for name, amount in _CARD.items()}


def _drawn_devices(chance: random.Random) -> list[Json]:
    """Cards, NICs with and without VFs, and FPGAs, behind switches of one or two NUMA nodes."""
    numa_count = chance.choice((1, 2, 2))
    switches = chance.choice((1, 2, 4, 8))
    has_topology = chance.random() < 0.85

    def device(kind: str, minor: int, place: int, resources: Json) -> Json:
        found = {"type": kind, "minor": minor, "health": chance.random() < 0.93, "resources": resources}
        if has_topology:
            numa = place * numa_count // switches
            found["topology"] = {
                "socketID": numa,
                "nodeID": numa,
                "pcieID": str(place),
                "busID": f"0000:{minor:02x}:00.0",
            }
        return found

    devices = []
    cards = chance.choice((0, 1, 2, 4, 8, 8))
    for minor in range(cards):
        devices.append(device("gpu", minor, minor * switches // cards, _part(100)))
    nics = chance.choice((0, 1, 2, 4))
    for number in range(nics):
        nic = device("rdma", number + 1, number * switches // nics, {"koordinator.sh/rdma": "100"})
        nic["labels"] = {"net": chance.choice("ab")}
        if chance.random() < 0.7:
            nic["vfGroups"] = [
                {
                    "labels": {"kind": kind},
                    "vfs": [
                        {"minor": vf, "busID": f"0000:{number:02x}:0{group}.{vf}"}
                        for vf in range(chance.randint(1, 3))
                    ],
                }
                for group, kind in enumerate(("fast", "slow"))
            ]
        devices.append(nic)
    for minor in range(chance.choice((0, 0, 1, 2))):
        devices.append(device("fpga", minor, chance.randrange(switches), {"koordinator.sh/fpga": "100"}))
    chance.shuffle(devices)
    return devices


def _drawn_used(chance: random.Random, devices: list[Json]) -> list[Json]:
    pods = []
    for device in devices:
        if chance.random() < 0.5:
            continue
        percent = chance.choice((25, 50, 100, 100))
        held: Json = {"minor": device["minor"], "resources": _part(percent)}
        if device["type"] != "gpu":
            held["resources"] = {f"koordinator.sh/{device['type']}": str(percent)}
        vfs = [vf for group in device.get("vfGroups", ()) for vf in group["vfs"]]
        if vfs:
            held["resources"] = {"koordinator.sh/rdma": "1"}
            held["extension"] = {"vfs": chance.sample(vfs, chance.randint(1, len(vfs)))}
        pods.append({device["type"]: [held]})
    return pods


def _drawn_pod(chance: random.Random) -> Json:
    count = chance.randint(1, 4)
    cards: Json = chance.choice(
        (
            {"nvidia.com/gpu": str(count)},
            {"nvidia.com/gpu": str(count)},
            {"koordinator.sh/gpu": str(chance.choice((25, 50, 100, 200)))},
            {
                "koordinator.sh/gpu-core": "50",
                "koordinator.sh/gpu-memory-ratio": str(chance.choice((25, 50))),
            },
            {"koordinator.sh/gpu-memory": str(chance.choice((1, 2, 4)) << 30)},
            {
                "koordinator.sh/gpu.shared": str(count),
                "koordinator.sh/gpu-core": str(20 * count),
                "koordinator.sh/gpu-memory": str((1 << 30) * count),
            },
        )
    )
    nics = {"koordinator.sh/rdma": str(chance.choice((1, 2, 50, 100, 200)))}
    boards = {"koordinator.sh/fpga": str(chance.choice((50, 100, 200)))}
    wanted = chance.choice(
        (
            *((cards,), (cards,), (cards, nics), (cards, nics), (nics,), (cards, boards), (boards,)),
            *((nics, boards), (cards, nics, boards)),
        )
    )
    annotations: Json = {}
    hint: Json = {}
    if nics in wanted and chance.random() < 0.7:
        options: Json = {
            "selector": {"matchLabels": {"net": "a"}},
            "vfSelector": chance.choice(({}, {"matchLabels": {"kind": "fast"}})),
            "allocateStrategy": chance.choice(("ApplyForAll", "RequestsAsCount")),
            "exclusivePolicy": chance.choice(("DeviceLevel", "PCIeLevel")),
        }
        hint["rdma"] = {name: value for name, value in options.items() if chance.random() < 0.4}
    if cards in wanted and chance.random() < 0.3:
        hint["gpu"] = {"requiredTopologyScope": chance.choice(("Device", "PCIe", "NUMANode", "Node"))}
    if hint:
        annotations[_HINT] = json.dumps(hint)
    if len(wanted) > 1 and nics in wanted and chance.random() < 0.7:
        joint: Json = {"deviceTypes": chance.choice((["gpu", "rdma"], ["gpu", "rdma"], ["rdma", "gpu"]))}
        if chance.random() < 0.3:
            joint["requiredScope"] = "SamePCIe"
        annotations[_JOINT] = json.dumps(joint)
    if chance.random() < 0.1:
        annotations[_PARTITIONS] = json.dumps({"allocatePolicy": chance.choice(("Restricted", "BestEffort"))})
    requests = {name: text for each in wanted for name, text in each.items()}
    return {"requests": requests, "annotations": annotations}


def _drawn_reservations(chance: random.Random, devices: list[Json]) -> list[Json]:
    """Some hold cards that are not all used by their owners."""
    cards = [each["minor"] for each in devices if each["type"] == "gpu"]
    chance.shuffle(cards)
    found = []
    for number in range(min(len(cards), chance.randint(0, 3))):
        held, percent = cards[number::3][:2], chance.choice((50, 100))
        reservation: Json = {
            "name": f"r{number}",
            "policy": chance.choice(("", "Aligned", "Restricted")),
            "matched": chance.random() < 0.75,
            "reserved": {"gpu": {str(minor): _part(percent) for minor in held}},
        }
        if chance.random() < 0.4:
            reservation["usedByOwners"] = {"gpu": {str(held[0]): _part(chance.choice((25, 50)))}}
        found.append(reservation)
    return found


def _draw_situation(chance: random.Random) -> Json:
    devices, pod = _drawn_devices(chance), _drawn_pod(chance)
    asked: Json = {
        "op": chance.choice(("allocate", "allocate", "numaHints")),
        "device": {"spec": {"devices": devices}},
        "pod": pod,
    }
    reservations = _drawn_reservations(chance, devices) if chance.random() < 0.3 else []
    if reservations:
        held = {minor for each in reservations for minor in each["reserved"]["gpu"]}
        devices = [each for each in devices if each["type"] != "gpu" or str(each["minor"]) not in held]
        asked["reservations"] = reservations
        asked["requiredFromReservation"] = chance.random() < 0.3
    asked["used"] = _drawn_used(chance, devices)
    if chance.random() < 0.5:
        asked["scoring"] = {
            "strategy": chance.choice(("LeastAllocated", "MostAllocated")),
            "weights": {
                "koordinator.sh/gpu-memory-ratio": 1,
                "koordinator.sh/gpu-memory": 1,
                "koordinator.sh/rdma": 2,
            },
        }
    if chance.random() < 0.15 and asked["op"] == "allocate":
        asked["numaNodes"] = chance.choice(([0], [1], [0, 1]))
    if chance.random() < 0.1:
        asked["nodeLabels"] = {
            "node.koordinator.sh/gpu-model": chance.choice(("H800", "H20", "A100")),
            "node.koordinator.sh/gpu-partition-policy": chance.choice(("Honor", "Prefer")),
        }
    return _situation(asked) or _draw_situation(chance)


DRAW = {"device-allocate": _draw_situation}
MEND = {
    "device-request-normalise": _request,
    **dict.fromkeys(("device-allocate", "joint-allocate", "gpu-partition", "device-score"), _situation),
}
