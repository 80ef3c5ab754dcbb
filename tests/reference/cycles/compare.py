"""Where our answers to a question differ from the original's."""

import json
import time
from collections.abc import Iterator
from typing import Any

from koordinator.api import labels
from tests.go_programs import Ask
from tests.reference.cycles import cases, ours
from tests.reference.original import answer_of

Json = dict[str, Any]

AREA, PROGRAM = "scheduling-cycles", "cycles/program"


def differences(ask: Ask, name: str, seed: int) -> list[str]:
    """One line each, up to the first pod about which they differ."""
    now_s = float(int(time.time()))
    question = cases.question_of(name, seed, now_s)
    theirs, used = answer_of(ask, AREA, question), _Used(question)
    for pod, one, other in zip(question["pods"], theirs, ours.answer(question, now_s), strict=True):
        if _scores_devices_on_purpose(pod, question):
            for answer in (one, other):
                for scores in answer["scores"].values():
                    scores.pop("DeviceShare", None)
            if one["node"] != other["node"]:
                break
        if lines := list(_unlike(one, other)):
            if used.are_alike(pod, one, other):
                break
            return [f"{pod['metadata']['name']}: {line}" for line in lines]
        if used.are_exceeded_by(pod, one):
            break
    return []


def _scores_devices_on_purpose(pod: Json, question: Json) -> bool:
    """DeviceShare of the original scores a node by what the nominated reservation holds, 0 where that is nothing, and
    under a NUMA policy by the devices of the NUMA nodes that were chosen."""
    policies = [
        labels.NODE_NUMA_TOPOLOGY_POLICY in each["metadata"].get("labels", {}) for each in question["objects"]
    ]
    if any(policies) or labels.NUMA_TOPOLOGY_SPEC in pod["metadata"]["annotations"]:
        return _asks_devices(pod)
    owners = [
        each["spec"]["owners"][0]["labelSelector"]["matchLabels"]["app"]
        for each in question["objects"]
        if each["kind"] == "Reservation"
    ]
    return _asks_devices(pod) and pod["metadata"]["labels"]["app"] in owners


def _asks_devices(pod: Json) -> bool:
    names = pod["spec"]["containers"][0]["resources"]["requests"]
    return any("gpu" in name or "rdma" in name for name in names)


class _Used:
    """What owners use of reservations.

    Where it is more than is reserved, the original makes the node look emptier than it is; of equal reservations it
    takes any (docs/deliberate-differences.md). From there on pods go their own ways.
    """

    def __init__(self, question: Json) -> None:
        self._of_node = {
            each["metadata"]["uid"]: each["status"]["nodeName"]
            for each in question["objects"]
            if each["kind"] == "Reservation"
        }
        self._whole = {
            each["metadata"]["uid"]: {
                name: _number(text) for name, text in each["status"]["allocatable"].items()
            }
            for each in question["objects"]
            if each["kind"] == "Reservation"
        }
        self._left = {uid: dict(amounts) for uid, amounts in self._whole.items()}

    def are_alike(self, pod: Json, theirs: Json, ours: Json) -> bool:
        """Whether the answers only name different reservations, which the pod makes as full."""
        one, other = _taken(theirs), _taken(ours)
        return (
            bool(one and other and one != other)
            and self._of_node[one] == self._of_node[other]
            and self._fullness(pod, one) == self._fullness(pod, other)
            and not list(_unlike(theirs | {"annotations": None}, ours | {"annotations": None}))
        )

    def _fullness(self, pod: Json, uid: str) -> int:
        """What the original gives points for, 0 to 100 (behaviour/reservations, section 8)."""
        requests, points = pod["spec"]["containers"][0]["resources"]["requests"], []
        for name, whole in self._whole[uid].items():
            used = whole - self._left[uid][name] + _number(requests.get(name, "0"))
            points.append(100 * used // whole if used <= whole else 0)
        return sum(points) // len(points)

    def are_exceeded_by(self, pod: Json, answer: Json) -> bool:
        left = self._left.get(_taken(answer), {})
        for name, text in pod["spec"]["containers"][0]["resources"]["requests"].items():
            if name in left:
                left[name] -= _number(text)
        return any(amount < 0 for amount in left.values()) or bool(left and _asks_devices(pod))


def _number(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _taken(answer: Json) -> str:
    """The uid of the reservation that the pod uses; empty for none."""
    text = (answer["annotations"] or {}).get(labels.RESERVATION_ALLOCATED, "{}")
    return str(json.loads(text).get("uid", ""))


def _unlike(theirs: Json, ours: Json) -> Iterator[str]:
    one, other = _comparable(theirs), _comparable(ours)
    for field in one.keys() | other.keys():
        yield from _parts(field, one.get(field), other.get(field))


def _parts(path: str, theirs: Any, ours: Any) -> Iterator[str]:
    if theirs == ours:
        return
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            yield from _parts(f"{path}.{key}", theirs.get(key), ours.get(key))
    else:
        yield f"{path}: theirs {theirs}, ours {ours}"


def _comparable(answer: Json) -> Json:
    found = dict(answer)
    found["scores"] = {
        node: {plugin: score for plugin, score in scores.items() if score}
        for node, scores in answer["scores"].items()
    }
    found["nodes"] = {
        # NodeResourcesFit names extended resources in the order of a map.
        node: {**verdict, "reasons": sorted(verdict["reasons"])}
        for node, verdict in answer["nodes"].items()
    }
    for path in ("annotations", "labels"):
        values = {key: _read(value) for key, value in (answer[path] or {}).items()}
        # The original writes a `resource-status` that says nothing.
        found[path] = {key: value for key, value in values.items() if value != {}}
    return found


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
