"""What questions about labels, annotations and plain lists must keep to."""

import json
from collections.abc import Callable
from typing import Any

from koordinator.api import resource_list
from tests.reference.api import draws

Json = dict[str, Any]
Mend = Callable[[Json], Json | None]

_NODE, _POD, _ENCODE = "api-annotations-node", "api-annotations-pod", "api-annotation-encode"


def _ordering(asked: Json) -> Json | None:
    """Each pod once; each reason of a plugin once for nodes where preemption might help, once for the others."""
    if asked["op"] == "podsByIndex":
        return {**asked, "pods": list({pod["name"]: pod for pod in asked["pods"]}.values())}
    about = ("failedPlugin", "reason", "preemptMightHelp")
    details = {tuple(each[name] for name in about): each for each in asked["details"]}
    return {**asked, "details": list(details.values())}


_UNREAD = ("eviction-priority", "oom-score-adj")


def _read(asked: Json) -> Json | None:
    """No annotation that came later, no device that is null; ratios are plain numbers, and not too large ones."""
    texts = asked.get("annotations") or {}
    if asked["read"] in _UNREAD or (asked["read"] == "device-allocated" and "null" in str(texts)):
        return None
    if asked["read"] not in ("cpu-normalization-ratio", "reclaim-percent"):
        return asked
    for text in (*texts.values(), *(asked.get("labels") or {}).values()):
        try:
            if not 0 <= float(text) <= 10**6:
                return None
        except ValueError:
            continue
    return asked


def _encode(asked: Json) -> Json | None:
    """Ratios have the decimals that are written. What is known of CPUs is compared by what it says, not by its text."""
    if asked["op"] == "amplificationRatioSet":
        asked["ratio"] = max(round(asked["ratio"], 2), 0.01)
        return None if "-0" in str(asked["old"]) else asked
    if asked["op"] == "cpuBasicInfoSet" and asked["old"] is not None:
        try:
            old = json.dumps(json.loads(asked["old"]), separators=(",", ":"))
        except ValueError:
            return asked
        return {**asked, "old": old}
    return asked


def _resource_lists(asked: Json) -> Json | None:
    """No more is allocatable than there is."""
    if asked["op"] != "capAllocToZones":
        return asked
    for own in asked["a"].values():
        capacity, allocatable = (
            resource_list.of(own.get(name) or {}) for name in ("capacity", "allocatable")
        )
        if any(capacity.get(name, amount) < amount for name, amount in allocatable.items()):
            return None
    return asked


MEND: dict[str, Mend] = {
    _NODE: _read,
    _POD: _read,
    _ENCODE: _encode,
    "api-resource-lists": _resource_lists,
    "api-ordering": _ordering,
}
DRAW = {
    **{area: draws.Texts(area, MEND[area]) for area in (_NODE, _POD, _ENCODE)},
    "api-object-normalization": draws.normalisation,
    "api-resource-lists": draws.resource_lists,
}
_LATER = "the annotation is of a later commit"
OUTDATED = {
    _POD: dict.fromkeys(
        ("eprio-leading-zero-accepted", "eprio-word", "eprio-too-big", "oom-bad-pod-level"), _LATER
    )
}
