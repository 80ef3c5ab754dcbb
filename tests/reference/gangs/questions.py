"""What questions about gangs and networks must keep to."""

import json
from collections import Counter
from typing import Any

from koordinator.api.resource_list import sum_of
from koordinator.scheduler.plugins.reservation import fit
from tests.reference.gangs import drawn, plays

__all__ = ("DRAW", "MEND", "OUTDATED")

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


def _state(asked: Json) -> Json | None:
    """Steps follow from each other: such as are changed at random do not."""
    return None


DRAW = {**drawn.DRAW, "gang-state": plays.gang_state}
MEND = {
    "gang-state": _state,
    "gang-preemption": _job,
    "podgroup-phase": _phase,
    "reservation-allocate-policy": _policy,
    "reservation-match": _match,
    "reservation-phase": _life,
    "topology-tree": _network,
    "topology-placement": _network,
    "topology-score": _network,
}

_NO_IGNORED = "Reservation's arguments have no ignored resources in this release"
OUTDATED = {
    "gang-state": {
        "condition patch goes only to untried members, once": "conditions are written since a later commit"
    },
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
