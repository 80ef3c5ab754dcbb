"""Areas `gang-config-parse` and `gang-state`: events and cycles played on the state machine."""

import re
from typing import Any

import msgspec

from koordinator.api.annotations.placement import NetworkTopologySpec
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.gang_labels import GangMatchPolicy
from koordinator.api.sigs import PodGroup
from koordinator.scheduler.plugins.coscheduling.config import GangDefaults, GangSource
from koordinator.scheduler.plugins.coscheduling.events import Effect, Next, PermitReason
from koordinator.scheduler.plugins.coscheduling.rounds import GangRounds

Case = dict[str, Any]
SOURCES = {GangSource.POD: "pod", GangSource.POD_GROUP: "podGroup"}
BINDINGS = "bindings"
SPEC = "networkTopologySpec"


def rounds_of(args: Case, machine: type[GangRounds] = GangRounds) -> GangRounds:
    defaults = GangDefaults(
        float(args.get("defaultTimeoutSeconds", 600)),
        GangMatchPolicy(args.get("defaultMatchPolicy", "once-satisfied")),
    )
    patches_conditions = args.get("gangPendingPodsConditionPatch", True)
    return machine(defaults, patches_conditions=patches_conditions)


def feed(rounds: GangRounds, event: str, body: Case) -> Effect:
    if body["kind"] == "PodGroup":
        group = from_builtins(body, PodGroup)
        match event:
            case "add":
                return rounds.on_pod_group_add(group)
            case "update":
                return rounds.on_pod_group_update(group)
            case _:
                return rounds.on_pod_group_delete(group)
    pod = from_builtins(body, Pod)
    match event:
        case "add":
            return rounds.on_pod_add(pod)
        case "update":
            return rounds.on_pod_update(pod)
        case _:
            return rounds.on_pod_delete(pod)


def config(case: Case) -> Any:
    rounds = rounds_of(case.get("args") or {})
    for event in case["events"]:
        feed(rounds, event["event"], event["object"])
    gang = rounds.cache.get(case["gang"])
    if gang is None:
        return {"gang": None}
    found = gang.config
    return {
        "gang": {
            "initialised": found.is_initialised,
            "source": SOURCES.get(found.source),
            "minRequired": found.minimum,
            "total": found.total,
            "mode": found.mode.value,
            "matchPolicy": found.match_policy.value,
            "waitTimeSeconds": found.wait_s,
            "group": list(found.group),
            "groupId": found.group_id,
            SPEC: None if found.topology is None else _shown(found.topology),
        }
    }


def _shown(spec: NetworkTopologySpec) -> Case:
    return {"gatherStrategy": [msgspec.to_builtins(each) for each in spec.gather_strategy]}


def same_config(expected: Any, actual: Any) -> bool:
    """For a gang that nobody described only the listed fields count."""
    wanted, found = expected["gang"], actual["gang"]
    if wanted is None or found is None:
        return wanted is found
    is_whole = wanted.get("initialised")
    names = wanted.keys() | found.keys() if is_whole else wanted.keys()
    return all(wanted.get(name) == found.get(name) for name in names - {SPEC}) and (
        SPEC not in names or _rules(wanted.get(SPEC)) == _rules(found.get(SPEC))
    )


def _rules(spec: Case | None) -> list[Case] | None:
    """The rules of a topology request; empty members may be left out."""
    if spec is None:
        return None
    return [
        {name: value for name, value in rule.items() if value} for rule in spec.get("gatherStrategy") or ()
    ]


def state(case: Case) -> Any:
    return Play(case.get("args") or {}).run(case["steps"])


class Play:
    """Steps on a state machine; pods are found again by their key."""

    def __init__(self, args: Case, machine: type[GangRounds] = GangRounds) -> None:
        self.rounds = rounds_of(args, machine)
        self.pods: dict[str, Pod] = {}
        self.bindings: dict[str, str] = {}

    def run(self, steps: list[Case]) -> Any:
        seen: Case = {}
        for step in steps:
            answer = self.apply(step)
            if "id" in step:
                seen[step["id"]] = answer
        return {**seen, BINDINGS: self.bindings}

    def apply(self, step: Case) -> Any:
        op = step["op"]
        for prefix in ("podGroup", "pod"):
            event = op.removeprefix(prefix).lower()
            if op.startswith(prefix) and event in ("add", "update", "delete"):
                return self.event(prefix, event, step["object"])
        if op == "read":
            return {"gang": self.read(step["gang"])}
        if op == "readWaitingGauge":
            return {"value": self.rounds.cache.waiting_group_count}
        if op == "nextPod":
            found = self.rounds.next_pod()
            self.bindings[step.get("bind", "$")] = found.pod
            return {"pod": found.pod or None, **_end(found)}
        name: str = step["pod"]
        return self.cycle(op, self.pods[self.bindings.get(name, name)], step)

    def event(self, prefix: str, event: str, body: Case) -> Any:
        if prefix == "pod":
            pod = from_builtins(body, Pod)
            self.pods[pod.key] = pod
        effect = feed(self.rounds, event, body)
        # Others stand by for the first, in case something else holds it back: here nothing does.
        return {"activate": list(effect.activate), "activateOneOf": list(effect.one_of[:1])}

    def cycle(self, op: str, pod: Pod, step: Case) -> Any:
        rounds = self.rounds
        match op:
            case "preEnqueue":
                gate = rounds.pre_enqueue(pod)
                return {"allow": gate.is_open, "message": gate.message}
            case "beginCycle":
                begun = rounds.begin(pod, has_topology=step.get("networkTopologyAvailable", True))
                gate = begun.gate
                return {"ok": gate.is_open, "message": gate.message, "contextStarted": begun.has_started}
            case "filterFailed":
                failed = rounds.filter_failed(pod, step["reason"], is_root_cause=step["rootCause"])
                return {
                    "groupMessage": failed.group_message,
                    "message": failed.message,
                    "rejected": list(failed.rejected),
                    "patched": list(failed.condition_patches),
                }
            case "permit":
                return _permit(rounds, pod)
            case "unreserve":
                undone = rounds.unreserve(pod)
                return {"rejected": list(undone.rejected), "message": undone.message}
            case "preBind":
                group, count = rounds.binding_mark(pod)
                return {"group": group or None, "memberCount": str(count)}
            case "postBind":
                rounds.post_bind(pod)
                return None
        raise AssertionError(f"unknown step {op}")

    def read(self, gang_id: str) -> Any:
        gang = self.rounds.cache.get(gang_id)
        if gang is None:
            return None
        group = gang.group
        return {
            "children": sorted(gang.children),
            "pending": sorted(gang.pending),
            "waiting": sorted(gang.waiting),
            "bound": sorted(gang.bound),
            "onceSatisfied": group.once_satisfied,
            "waitingGangs": sorted(group.waiting_gangs),
            "representative": group.representative,
        }


def _end(found: Next) -> Case:
    if found.ended is None:
        return {}
    return {"cycleEnds": found.ended.value, "rejected": list(found.rejected)}


def _permit(rounds: GangRounds, pod: Pod) -> Case:
    answer = rounds.permit(pod)
    match answer.reason:
        case PermitReason.WAIT:
            return {"decision": "wait", "timeoutSeconds": answer.wait_s}
        case PermitReason.GANG_UNKNOWN:
            return {"decision": "unschedulable", "message": answer.reason.value}
    ended = answer.ended.ended
    cycle = {"cycleEnds": ended.value} if ended is not None else {}
    return {"decision": "success", "allowed": list(answer.allowed), **cycle}


def same_states(expected: Any, actual: Any) -> bool:
    """Step by step; lists of pods are sets, and `$x` is what an earlier answer was."""
    bound = actual[BINDINGS]

    def spoken(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\$\w+(\.name)?", lambda found: _word(found, bound), value)
        if isinstance(value, list):
            return [spoken(each) for each in value]
        return {name: spoken(each) for name, each in value.items()} if isinstance(value, dict) else value

    return all(_same_step(spoken(wanted), actual.get(step)) for step, wanted in expected.items())


def _word(found: re.Match[str], bound: dict[str, str]) -> str:
    name, _, part = found.group().partition(".")
    key = bound.get(name, name)
    return key.rpartition("/")[2] if part else key


def _same_step(wanted: Case, found: Any) -> bool:
    if found is None:
        return False
    for name, value in wanted.items():
        match name:
            case "activateOneOf":
                ok = set(found[name]) <= set(value) and bool(found[name]) == bool(value)
            case "podOneOf":
                ok = found["pod"] in value and found["pod"] not in wanted.get("butNot", ())
            case "butNot":
                ok = True
            case "conditionPatchedCount":
                ok = len(found["patched"]) == value
            case "conditionNotPatched":
                ok = not set(found["patched"]) & set(value)
            case _:
                ok = _same(value, found.get(name))
        if not ok:
            return False
    return "patched" not in found or "conditionPatchedCount" in wanted or not found["patched"]


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, list) and isinstance(found, list):
        return sorted(wanted) == sorted(found)
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_same(value, found.get(name)) for name, value in wanted.items())
    return bool(wanted == found)


ADAPTERS = {"gang-config-parse": config, "gang-state": state}
COMPARE = {"gang-config-parse": same_config, "gang-state": same_states}
