"""What questions about gangs and networks must keep to."""

import json
import random
from collections import Counter
from typing import Any

from koordinator.api.resource_list import sum_of
from koordinator.scheduler.plugins.reservation import fit

Json = dict[str, Any]


def _network(asked: Json) -> Json | None:
    """Each node, member and candidate once; pods run on nodes that there are, and are not larger than these."""
    nodes = _by_name(asked["nodes"])
    if not _is_chain(asked.get("networkTopologySpec")) or not nodes:
        return None
    found = {**asked, "nodes": list(nodes.values())}
    if "existing" in asked:
        found["existing"] = [each for each in asked["existing"] if each["node"] in nodes]
    if "candidates" in asked:
        found["candidates"] = [name for name in dict.fromkeys(asked["candidates"]) if name in nodes]
    if "pods" in asked:
        found["pods"] = list(_by_name(asked["pods"]).values())
        if not found["pods"] or (
            "nodeSlots" not in asked and any("cpu" not in node for node in nodes.values())
        ):
            return None
    if "nodeSlots" in asked:
        slots = asked["nodeSlots"]
        found["nodeSlots"] = {name: min(max(slots.get(name, 0), 0), len(found["pods"])) for name in nodes}
    return found


def _is_chain(specs: list[Json] | None) -> bool:
    """Whether no layer is above itself, as one that is listed twice or its own parent."""
    if specs is None:
        return True
    layers = [spec["topologyLayer"] for spec in specs]
    parents = [spec.get("parentTopologyLayer") for spec in specs]
    return 0 < len(layers) == len(set(layers)) and len(set(parents)) == len(parents)


def _by_name(listed: list[Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for each in listed:
        found.setdefault(each["name"], each)
    return found


def _job(asked: Json) -> Json | None:
    """Pods have names of their own and nodes that there are; the one that triggers is a pending member of its gang, and
    fits nowhere, unless the case says so. As many members as were tried are there."""
    nodes = _by_name(asked["nodes"])
    existing = [each for each in asked.get("existing") or () if each["node"] in nodes]
    waiting = [each for each in asked.get("waiting") or () if each.get("node") in nodes]
    pending = list(_by_name(asked.get("pending") or []).values())
    names = [each["name"] for each in (*existing, *waiting, *pending)]
    trigger = asked["trigger"]
    if "gang" in asked:
        found = [each for each in pending if each["name"] == trigger["name"]]
        if pending and not found:
            return None
        trigger = found[0] if found else trigger
    elif pending or waiting or trigger["name"] in names:
        return None
    gang = asked.get("gang") or {}
    if len(set(names)) < len(names) or not nodes or not _is_chain(gang.get("networkTopologySpec")):
        return None
    used: Counter[str] = Counter()
    for each in (*existing, *waiting):
        used[each["node"]] += each.get("cpu", 0)
    free = {name: node["cpu"] - used[name] for name, node in nodes.items()}
    is_open = "nodeStatus" not in asked and max(free.values()) >= trigger.get("cpu", 0)
    if is_open or min(free.values()) < 0 or (gang.get("attempted", 1) > 1 and len(pending) < 2):
        return None
    return {
        **asked,
        "nodes": list(nodes.values()),
        "existing": existing,
        "waiting": waiting,
        "pending": pending,
        "trigger": trigger,
    }


def _phase(asked: Json) -> Json | None:
    """Each member once; the API server says when a PodGroup was made."""
    if "check" in asked:
        return asked if "creationTimestamp" in (asked["podGroup"].get("metadata") or {}) else None
    if "pods" not in asked:
        return None
    return {**asked, "pods": list(_by_name(asked["pods"]).values())}


def _match(asked: Json) -> Json | None:
    """A case names what it asks about."""
    if asked["op"] == "nominate":
        # They are kept in a map: which of equal ones comes first, only we say.
        rooms = _by_name(asked["reservations"])
        return {**asked, "reservations": [rooms[name] for name in sorted(rooms)]}
    if asked["op"] == "diagnose" and ": -" in json.dumps(asked):
        return None
    return asked


def _policy(asked: Json) -> Json | None:
    """This release ignores no resources. A pod that must have a reservation has one on the node, names are unique."""
    if (
        asked["op"] == "ignoredResource"
        or asked.get("ignoredResources")
        or asked.get("ignoredResourceGroups")
    ):
        return None
    found = dict(asked)
    if asked["op"] in ("filter", "restore"):
        found["reservations"] = [_room(each) for each in _by_name(asked.get("reservations") or []).values()]
        if asked.get("requiredFromReservation") and not found["reservations"]:
            return None
        if asked.get("reservationName") and not asked.get("requiredFromReservation"):
            return None
    if "candidates" in asked:
        found["candidates"] = list(_by_name(asked["candidates"]).values())
    if "reservation" in asked:
        found["reservation"] = _room(asked["reservation"])
    if asked["op"] == "nodeScores":
        scores = asked["scores"].items()
        found["scores"] = {node: score and min(max(score, 0), 100) for node, score in scores}
        found["orders"] = {node: order for node, order in (asked.get("orders") or {}).items() if order}
    if asked["op"] != "preAllocate" and '"-' in json.dumps(asked):
        return None
    if not all(
        _is_held(each, asked.get("preemptibleInReservations") or {})
        for each in asked.get("reservations") or ()
    ):
        return None
    if asked["op"] == "restore" and not all(_has_room(each) for each in found["reservations"]):
        return None
    return found


def _has_room(room: Json) -> bool:
    """Whether owners use no more than is reserved."""
    used = sum_of(fit.ints(each) for each in room.get("owners") or ())
    reserved = fit.ints(room.get("allocatable") or {})
    return all(amount <= reserved[name] for name, amount in used.items() if name in reserved)


def _is_held(room: Json, freed: Json) -> bool:
    """Whether victims in a reservation hold no more of it than its owners do, and these no more than there is."""
    reserved, held = fit.ints(room.get("allocatable") or {}), fit.ints(room.get("allocated") or {})
    gone = fit.ints(freed.get(room["name"]) or {})
    is_within = all(amount <= reserved.get(name, 0) for name, amount in held.items())
    return is_within and all(amount <= held.get(name, 0) for name, amount in gone.items() if name != "pods")


def _room(room: Json) -> Json:
    names = sorted(set(room.get("resourceNames") or ()))
    return {**room, "resourceNames": names} if "resourceNames" in room else room


def _life(asked: Json) -> Json | None:
    """Each name, and each type of condition, once and in order; an update is one of something, others of nothing."""
    if asked["op"] == "restrictedResources":
        return {**asked, "allocatable": sorted(set(asked["allocatable"]))}
    if asked["op"] == "route" and asked["event"] == "update" and not ("old" in asked and "new" in asked):
        return None
    if asked["op"] == "route" and asked["event"] != "update":
        one = asked.get("new") or asked["old"]
        return {
            "op": "route",
            "event": asked["event"],
            "new": one,
            "responsible": asked.get("responsible", False),
        }
    status = (asked.get("reservation") or {}).get("status") or {}
    types = [each["type"] for each in status.get("conditions") or ()]
    if len(set(types)) < len(types):
        return None
    if asked["op"] == "sync":
        return {**asked, "pods": list({each["uid"]: each for each in asked.get("pods") or ()}.values())}
    return asked


MEND = {
    "gang-preemption": _job,
    "podgroup-phase": _phase,
    "reservation-allocate-policy": _policy,
    "reservation-match": _match,
    "reservation-phase": _life,
    "topology-tree": _network,
    "topology-placement": _network,
    "topology-score": _network,
}


_NAMES = ("cpu", "memory", "ephemeral-storage", "example.com/gpu", "kubernetes.io/batch-cpu")


def _amounts(chance: random.Random, most: int, names: int = 3) -> dict[str, str]:
    chosen = chance.sample(_NAMES, chance.randint(0, names))
    return {name: f"{chance.randint(0, most)}{'Gi' if name == 'memory' else ''}" for name in chosen}


def _drawn_room(chance: random.Random, name: str) -> Json:
    allocatable = _amounts(chance, 8)
    if chance.random() < 0.2:
        allocatable["pods"] = str(chance.randint(0, 3))
    room: Json = {
        "name": name,
        "policy": chance.choice(("", "Aligned", "Restricted", "Restricted")),
        "allocatable": allocatable,
        "allocated": {n: text for n, text in _amounts(chance, 4).items() if n in allocatable},
        "resourceNames": sorted(chance.sample(sorted(allocatable), chance.randint(0, len(allocatable))))
        if chance.random() < 0.3
        else sorted(allocatable),
        "assignedPods": chance.randint(0, 2),
    }
    if chance.random() < 0.2:
        room["reserved"] = {n: text for n, text in _amounts(chance, 2).items() if n in allocatable}
    return room


def _drawn_policy(chance: random.Random) -> Json:
    op = chance.choice(
        ("filter", "filter", "filter", "preAllocate", "preAllocate", "reservationScore", "restore")
    )
    node = {name: f"{chance.randint(2, 16)}{'Gi' if name == 'memory' else ''}" for name in _NAMES}
    around: Json = {
        "op": op,
        "nodeAllocatable": {**node, "pods": str(chance.randint(1, 10))},
        "nodeRequested": _amounts(chance, 12, 4),
        "podsOnNode": chance.randint(0, 9),
    }
    rooms = [_drawn_room(chance, f"r{number}") for number in range(chance.randint(1, 3))]
    match op:
        case "filter":
            asked = {
                **around,
                "podRequests": _amounts(chance, 6),
                "matchedAllocated": _amounts(chance, 4),
                "reservations": rooms,
                "requiredFromReservation": chance.random() < 0.5,
                "skipFitsNode": chance.random() < 0.2,
            }
            if asked["requiredFromReservation"] and chance.random() < 0.4:
                asked["reservationName"] = "r1"
            if chance.random() < 0.2:
                asked["preemptibleOnNode"] = _amounts(chance, 4)
            return asked
        case "preAllocate":
            asked = _amounts(chance, 8)
            candidates = [
                {"name": f"c{n}", "requests": _amounts(chance, 5)} for n in range(chance.randint(0, 4))
            ]
            room = {"policy": "Restricted", "allocatable": asked, "resourceNames": sorted(asked)}
            flags = {name: chance.random() < 0.5 for name in ("multiple", "required", "preferNoPreAllocated")}
            return {
                **around,
                "reservationRequests": asked,
                "reservation": room,
                "candidates": candidates,
                **flags,
            }
        case "reservationScore":
            return {"op": op, "podRequests": _amounts(chance, 6), "reservation": rooms[0]}
    for room in rooms:
        for member in ("allocated", "resourceNames", "assignedPods", "reserved"):
            room.pop(member, None)
        room["matched"] = chance.random() < 0.5
        room["allocatable"] = {
            name: f"{chance.randint(6, 9)}{text[1:]}" for name, text in _amounts(chance, 1).items()
        }
        own = [_amounts(chance, 3, 5) for _ in range(chance.randint(0, 2))]
        room["owners"] = [
            {name: text for name, text in each.items() if name in room["allocatable"]} for each in own
        ]
    plain = [_amounts(chance, 4) for _ in range(chance.randint(0, 3))]
    return {"op": op, "plainPods": plain, "reservations": rooms}


def _drawn_reservation(chance: random.Random, number: int) -> Json:
    phase = chance.choice(("", "Pending", "Available", "Available", "Waiting", "Succeeded", "Failed"))
    status: Json = {"phase": phase, "allocatable": {"cpu": "10", "memory": "10Gi"}}
    if chance.random() < 0.6:
        status["nodeName"] = chance.choice(("n1", "n2"))
    if chance.random() < 0.4:
        reason = chance.choice(("Available", "Expired", "Succeeded", "other"))
        moment = f"2026-02-{chance.choice((20, 27, 28)):02}T12:00:00Z"
        state = chance.choice(("True", "False"))
        status["conditions"] = [
            {"type": chance.choice(("Ready", "Scheduled")), "status": state, "reason": reason}
            | {"lastTransitionTime": moment, "lastProbeTime": moment}
        ]
    spec: Json = {
        "template": {
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "10", "memory": "10Gi"}}}]
            }
        },
        "owners": [{"object": {"name": "p"}}],
    }
    if chance.random() < 0.8:
        spec["ttl"] = chance.choice(("0s", "1m0s", "1h0m0s", "30s"))
    if chance.random() < 0.3:
        spec["expires"] = f"2026-03-01T{chance.choice(('11:59:59', '12:00:05', '12:00:20', '13:00:00'))}Z"
    if chance.random() < 0.5:
        spec["allocateOnce"] = chance.random() < 0.5
    uid = chance.choice(("uid-r", "uid-r", "uid-r", f"uid-{number}"))
    made = f"2026-03-01T{chance.choice(('11:00:00', '11:59:30', '11:59:50', '12:00:00'))}Z"
    meta = {"name": "r", "uid": uid, "creationTimestamp": made, "resourceVersion": str(chance.randint(1, 3))}
    return {"metadata": meta, "spec": spec, "status": status}


def _drawn_life(chance: random.Random) -> Json:
    op = chance.choice(("sync", "sync", "sync", "gc", "route", "route", "states", "metrics"))
    asked: Json = {"op": op, "reservation": _drawn_reservation(chance, 0)}
    match op:
        case "route":
            mine = {name: chance.random() < 0.7 for name in ("oldResponsible", "newResponsible")}
            old, new = (_drawn_reservation(chance, number) for number in range(2))
            return {
                "op": op,
                "event": "update",
                "old": old,
                "new": new,
                "assumed": chance.random() < 0.2,
                **mine,
            }
        case "sync" | "gc":
            asked |= {"now": "2026-03-01T12:00:01Z", "nodeExists": chance.random() < 0.7}
    if op == "gc":
        asked["gcDurationSeconds"] = chance.choice((3600, 86400, 864000))
    if op == "sync":
        asked["pods"] = [
            {
                "uid": f"p{number}",
                "namespace": "default",
                "name": f"p{number}",
                "requests": _amounts(chance, 3),
                "allocatedUID": chance.choice((None, "uid-r", "uid-r", "uid-0")),
            }
            for number in chance.sample(range(5), chance.randint(0, 3))
        ]
        if asked["pods"] and chance.random() < 0.5:
            one = asked["pods"][0]
            asked["reservation"]["status"]["currentOwners"] = [
                {k: one[k] for k in ("namespace", "name", "uid")}
            ]
            asked["reservation"]["status"]["allocated"] = one["requests"]
    return asked


def _drawn_selector(chance: random.Random) -> Json:
    rule = {
        "key": chance.choice("ab"),
        "operator": chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Odd")),
    }
    if chance.random() < 0.6:
        rule["values"] = chance.sample(("1", "2", "x"), chance.randint(0, 2))
    return rule


def _drawn_match(chance: random.Random) -> Json:
    labels = {name: chance.choice("12x") for name in "ab" if chance.random() < 0.6}
    owners: list[Json] = []
    for _ in range(chance.randint(0, 2)):
        owner: Json = {}
        if chance.random() < 0.4:
            owner["object"] = {
                chance.choice(("name", "namespace", "uid", "kind")): chance.choice(("p", "default", "x"))
            }
        if chance.random() < 0.3:
            owner["controller"] = {
                key: chance.choice(values)
                for key, values in (
                    ("name", ("rs", "x")),
                    ("namespace", ("default", "x")),
                    ("controller", (True, False)),
                )
                if chance.random() < 0.5
            }
        if chance.random() < 0.5:
            owner["labelSelector"] = {"matchExpressions": [_drawn_selector(chance)]}
        owners.append(owner)
    meta: Json = {"name": "p", "namespace": "default", "uid": "p", "labels": labels, "annotations": {}}
    if chance.random() < 0.4:
        meta["ownerReferences"] = [{"kind": "ReplicaSet", "name": "rs", "uid": "rs"}]
        if chance.random() < 0.5:
            meta["ownerReferences"][0]["controller"] = chance.random() < 0.7
    if chance.random() < 0.4:
        return {"op": "owners", "pod": {"metadata": meta}, "owners": owners}
    affinity: Json = {}
    if chance.random() < 0.2:
        affinity["name"] = chance.choice(("r", "other"))
    if chance.random() < 0.4:
        affinity["reservationSelector"] = {chance.choice("ab"): chance.choice("12")}
    if chance.random() < 0.4:
        terms = [{"matchExpressions": [_drawn_selector(chance)]} for _ in range(chance.randint(0, 2))]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"reservationSelectorTerms": terms}
    if chance.random() < 0.4:
        toleration = {"operator": chance.choice(("Exists", "Equal")), "key": chance.choice(("a", "b", ""))}
        affinity["tolerations"] = [toleration | {"value": "1", "effect": chance.choice(("", "NoSchedule"))}]
    if chance.random() < 0.8:
        meta["annotations"]["scheduling.koordinator.sh/reservation-affinity"] = json.dumps(affinity)
    if chance.random() < 0.2:
        exact = json.dumps({"resourceNames": chance.sample(("cpu", "memory"), chance.randint(0, 2))})
        meta["annotations"]["scheduling.koordinator.sh/exact-match-reservation"] = exact
    spec: Json = {"owners": owners if chance.random() < 0.4 else [{}], "unschedulable": chance.random() < 0.2}
    if chance.random() < 0.3:
        spec["taints"] = [
            {"key": "a", "value": "1", "effect": chance.choice(("NoSchedule", "PreferNoSchedule"))}
        ]
    own = {name: chance.choice("12x") for name in "ab" if chance.random() < 0.5}
    room = {
        "metadata": {"name": "r", "labels": own},
        "spec": spec,
        "status": {"allocatable": _amounts(chance, 2)},
    }
    node = {name: chance.choice("12x") for name in "ab" if chance.random() < 0.5}
    asked = {
        "op": "outcome",
        "pod": {"metadata": meta},
        "reservation": room,
        "podRequests": _amounts(chance, 2),
    }
    return {**asked, "nodeLabels": node, "omitNodeLabels": chance.random() < 0.2}


DRAW = {
    "reservation-allocate-policy": _drawn_policy,
    "reservation-match": _drawn_match,
    "reservation-phase": _drawn_life,
}
"""Other questions than those that come out of the known cases."""

_NO_IGNORED = "Reservation's arguments have no ignored resources in this release"
OUTDATED = {
    "reservation-allocate-policy": {
        "filter: extended resource: ignored by name on node and reservation": _NO_IGNORED,
        "filter: extended resource: ignored by group": _NO_IGNORED,
        "filter: node only: cpu is always checked": _NO_IGNORED,
        "filter: reservation extended resource ignored by name": _NO_IGNORED,
        "filter: reservation extended resource ignored by group": _NO_IGNORED,
        "ignored: first segment is the group": _NO_IGNORED,
        "ignored: other names": _NO_IGNORED,
        "ignored: helper itself accepts native names": _NO_IGNORED,
        "ignored: leading slash": _NO_IGNORED,
    },
    "reservation-phase": {
        "sync: exactly at ttl is not expired": "the original's clock cannot be stopped",
    },
}
