"""Where our answers to a question differ from the original's."""

import json
import time
from collections.abc import Iterator
from typing import Any

from koordinator.api import labels
from tests.go_programs import Ask
from tests.reference.cycles import cases, ours
from tests.reference.original import Refused, answer_of

Json = dict[str, Any]

AREA, PROGRAM = "scheduling-cycles", "cycles/program"


def differences(ask: Ask, name: str, seed: int) -> list[str]:
    """One line each, up to the first pod about which they differ."""
    now_s = float(int(time.time()))
    question = cases.question_of(name, seed, now_s)
    pods = list(question["pods"])
    try:
        theirs, used = answer_of(ask, AREA, question), _Used(question)
    except Refused as refused:
        # A plugin ends its cycle by an error: then there is nothing to compare.
        assert "failed with" in str(refused), refused
        return []
    for body, one, other in zip(pods, theirs, ours.answer(question, now_s), strict=True):
        pod = _pod_of(body)
        if _is_chosen_otherwise(pod, one, question):
            break
        for node in _searched_on_purpose(pod, question):
            for answer in (one, other):
                (answer["victims"] or {}).pop(node, None)
        for plugin in _scored_on_purpose(pod, question):
            for answer in (one, other):
                for scores in answer["scores"].values():
                    scores.pop(plugin, None)
            if one["node"] != other["node"]:
                return []
        if labels.RESERVATION_AFFINITY in pod["metadata"]["annotations"]:
            _leave_out(one, other)
        if lines := list(_unlike(one, other)):
            if used.are_alike(pod, one, other):
                break
            return [f"{pod['metadata']['name']}: {line}" for line in lines]
        if body["kind"] == "Reservation":
            used.add(body, one["node"])
        elif used.are_exceeded_by(pod, one):
            break
    return []


def _leave_out(theirs: Json, ours: Json) -> None:
    """Take for equal that a node without a reservation for a pod that requires one is refused by Filter, and not left
    out by PreFilter: any refusal of ours will do there."""
    if (theirs["preFilter"] or {}).get("plugin") == "Reservation":
        theirs["preFilter"], theirs["nodes"] = None, dict.fromkeys(ours["nodes"], _LEFT_OUT)
    for name, verdict in theirs["nodes"].items():
        if verdict["reasons"] == _LEFT_OUT["reasons"] and ours["nodes"][name]["code"] != "Success":
            theirs["nodes"][name] = ours["nodes"][name]


_LEFT_OUT = {"code": "", "reasons": ["node(s) didn't satisfy plugin(s) [Reservation]"], "plugin": ""}


def _own_reservations(pod: Json, question: Json) -> list[Json]:
    app = pod["metadata"]["labels"]["app"]
    return [
        each
        for each in question["objects"]
        if each["kind"] == "Reservation"
        and each["spec"]["owners"][0]["labelSelector"]["matchLabels"]["app"] == app
    ]


def _is_chosen_otherwise(pod: Json, theirs: Json, question: Json) -> bool:
    """Whether pods go their own ways from here on, by what docs/deliberate-differences.md says.

    In the original a pod takes reserved devices without using the reservation, or others although it uses it, unless it
    is Restricted; and for a pod that wants NUMA nodes for itself, CPUs of a reservation that it may use are somebody
    else's.
    """
    own = _own_reservations(pod, question)
    wants_numa_nodes = labels.NUMA_TOPOLOGY_SPEC in pod["metadata"]["annotations"]
    is_restricted = bool(own and _taken(theirs)) and all(
        each["spec"].get("allocatePolicy") == "Restricted" for each in own
    )
    has_devices = any(labels.DEVICE_ALLOCATED in each["metadata"]["annotations"] for each in own)
    has_cpus = any(labels.RESOURCE_STATUS in each["metadata"]["annotations"] for each in own)
    return (has_devices and _asks_devices(pod) and not is_restricted) or (has_cpus and wants_numa_nodes)


def _searched_on_purpose(pod: Json, question: Json) -> Iterator[str]:
    """Nodes whose victims may be others.

    The original sticks to the NUMA nodes that it chose with all of them gone, takes no notice of NUMA nodes that they
    leave to the pod alone, nor of the amplified CPU that they free.
    """
    for each in question["objects"]:
        if each["kind"] == "Node":
            meta = each["metadata"]
            if (
                labels.NUMA_TOPOLOGY_SPEC in pod["metadata"]["annotations"]
                or labels.NODE_NUMA_TOPOLOGY_POLICY in meta["labels"]
                or labels.NODE_RESOURCE_AMPLIFICATION_RATIO in meta["annotations"]
            ):
                yield meta["name"]


def _scored_on_purpose(pod: Json, question: Json) -> Iterator[str]:
    """Plugins whose scores differ by what docs/deliberate-differences.md says.

    DeviceShare of the original scores a node by what the nominated reservation holds, 0 where that is nothing, and
    under a NUMA policy by the devices of the NUMA nodes that were chosen. NodeNUMAResource counts CPUs that a pod would
    get of its reservation twice.
    """
    own = _own_reservations(pod, question)
    if any(labels.RESOURCE_STATUS in each["metadata"]["annotations"] for each in own):
        yield "NodeNUMAResource"
    has_policy = labels.NUMA_TOPOLOGY_SPEC in pod["metadata"]["annotations"] or any(
        labels.NODE_NUMA_TOPOLOGY_POLICY in each["metadata"].get("labels", {}) for each in question["objects"]
    )
    if _asks_devices(pod) and (own or has_policy):
        yield "DeviceShare"


def _asks_devices(pod: Json) -> bool:
    names = pod["spec"]["containers"][0]["resources"]["requests"]
    return any("gpu" in name or "rdma" in name for name in names)


def _pod_of(body: Json) -> Json:
    """The pod itself, or one like that of a Reservation, which is nobody's owner."""
    if body["kind"] == "Pod":
        return body
    return {"metadata": {**body["metadata"], "labels": {"app": ""}}, "spec": body["spec"]["template"]["spec"]}


class _Used:
    """What owners use of reservations.

    Where it is more than is reserved, the original makes the node look emptier than it is; of equal reservations it
    takes any (docs/deliberate-differences.md). From there on pods go their own ways.
    """

    def __init__(self, question: Json) -> None:
        self._of_node: dict[str, str] = {}
        self._whole: dict[str, dict[str, int]] = {}
        self._left: dict[str, dict[str, int]] = {}
        for each in question["objects"]:
            if each["kind"] == "Reservation":
                self.add(each, each["status"]["nodeName"])

    def add(self, reservation: Json, node: str) -> None:
        """Note a Reservation on a node."""
        uid = reservation["metadata"]["uid"]
        requests = reservation["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
        self._of_node[uid] = node
        self._whole[uid] = {name: _number(text) for name, text in requests.items()}
        self._left[uid] = dict(self._whole[uid])

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
    found["victims"] = answer["victims"] or {}
    found["scores"] = {
        node: {plugin: score for plugin, score in scores.items() if score}
        for node, scores in answer["scores"].items()
    }
    found["nodes"] = {
        # NodeResourcesFit names extended resources in the order of a map; for a pod that has reservations, the plugin
        # Reservation tells what NodeNUMAResource says.
        node: {
            **verdict,
            "reasons": sorted(verdict["reasons"]),
            "plugin": verdict["plugin"].replace("Reservation", "NodeNUMAResource"),
        }
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
