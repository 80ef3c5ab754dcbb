"""What questions about gangs and networks must keep to."""

from collections import Counter
from typing import Any

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


MEND = {
    "gang-preemption": _job,
    "podgroup-phase": _phase,
    "topology-tree": _network,
    "topology-placement": _network,
    "topology-score": _network,
}
