"""Area `gang-preemption`: only cpu counts for fitting."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.scheduler.plugins.coscheduling.preempt import (
    JobMember,
    JobPreemptor,
    Occupant,
    Placer,
    Placing,
    PreemptReason,
    fit_error,
    preempt,
)
from koordinator.scheduler.plugins.network_topology import placement
from koordinator.scheduler.plugins.network_topology.tree import build
from koordinator.scheduler.status import Code

Case = dict[str, Any]
SHORT = "Insufficient cpu"
PLAN_INVALID = "plan become invalid, wait for the next round"
UNTOUCHED = (
    PreemptReason.ATTEMPTED,
    PreemptReason.NO_MEMBERS,
    PreemptReason.NEVER,
    PreemptReason.TERMINATING,
)


class World:
    """The nodes of a case and the pods on them."""

    def __init__(self, case: Case) -> None:
        gang, trigger = case.get("gang") or {}, case["trigger"]
        self.gang = gang
        self.waiting = case.get("waiting") or []
        self.nodes = {node["name"]: node for node in case["nodes"]}
        pending = case.get("pending") or ([] if gang else [trigger])
        self.members = [_member(each) for each in pending]
        self.job = JobPreemptor(
            trigger=_member(trigger),
            priority=trigger.get("priority", 0),
            never=trigger.get("preemptionPolicy") == "Never",
            members=tuple(self.members),
            waiting_count=len(self.waiting),
            earlier=gang.get("preemptionMessage", ""),
        )
        existing = case.get("existing") or []
        pods = [_occupant(each) for each in existing]
        pods += [
            Occupant(key=_key(each), node=each["node"], priority=each.get("priority", 0), is_protected=True)
            for each in self.waiting
        ]
        asked = (*existing, *self.waiting, *pending, trigger)
        self.cpu = {_key(each): each.get("cpu", 0) for each in asked}
        self.occupants = {name: [each for each in pods if each.node == name] for name in self.nodes}
        self.codes = self._codes(case)

    def _codes(self, case: Case) -> dict[str, Code]:
        words = {code.word: code for code in Code}
        given = case.get("nodeStatus")
        codes = {}
        for name in self.nodes:
            if given is not None:
                codes[name] = words[given.get(name, "UnschedulableAndUnresolvable")]
                continue
            wanted = self.members if self._is_aware() else [self.job.trigger]
            is_refused = self._slots(name, self.occupants[name], wanted) < len(wanted)
            codes[name] = Code.UNSCHEDULABLE if is_refused else Code.SUCCESS
        return codes

    def _is_aware(self) -> bool:
        return "gatherStrategy" in self.gang

    def fit(self, node: str, pods: Sequence[Occupant], placed: Sequence[JobMember], member: JobMember) -> str:
        used = sum(self.cpu[each.key] for each in pods) + sum(self.cpu[each.key] for each in placed)
        return "" if used + self.cpu[member.key] <= self.nodes[node]["cpu"] else SHORT

    def _slots(self, node: str, pods: Sequence[Occupant], wanted: Sequence[JobMember]) -> int:
        placed: list[JobMember] = []
        for each in wanted:
            if self.fit(node, pods, placed, each):
                break
            placed.append(each)
        return len(placed)

    def placer(self) -> Placer | None:
        if not self._is_aware():
            return None
        if self.gang.get("attempted", 1) > 1:
            return lambda staying: Placing(failure=PLAN_INVALID)
        return self._place

    def _place(self, staying: Mapping[str, Sequence[Occupant]]) -> Placing:
        specs = msgspec.convert(self.gang["networkTopologySpec"], list[NetworkTopologySpec])
        tree = build(specs, [(name, node.get("labels") or {}) for name, node in self.nodes.items()])
        rules = msgspec.convert(self.gang["gatherStrategy"], list[GatherStrategy])
        slots = {name: self._slots(name, pods, self.members) for name, pods in staying.items()}
        keys = [each.key for each in self.members]
        found = placement.plan(
            tree, placement.demand_of(rules, tree.layers), keys, tree.by_leaf(slots), tree.by_leaf({})
        )
        reasons = {name: SHORT for name, count in slots.items() if count < len(keys)}
        return Placing(found.nodes, found.message(fit_error(len(self.nodes), reasons)))


def _key(pod: Case) -> str:
    return f"default/{pod['name']}"


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _member(pod: Case) -> JobMember:
    return JobMember(key=_key(pod), nominated=pod.get("nominatedNode", ""))


def _occupant(pod: Case) -> Occupant:
    terminating = pod.get("terminating")
    return Occupant(
        key=_key(pod),
        node=pod["node"],
        priority=pod.get("priority", 0),
        job=pod.get("job", ""),
        is_protected=bool(pod.get("disablePreemptible") or pod.get("quotaNonPreemptible")),
        is_terminating=bool(terminating),
        is_preempted=terminating == "byPreemption",
        is_waiting=bool(pod.get("waitingInPermit")),
    )


def preemption(case: Case) -> Any:
    world = World(case)
    job = world.job
    found = preempt(job, world.codes, world.occupants, world.fit, world.placer())
    is_success = found.reason is PreemptReason.SUCCESS
    answer: Case = {
        "outcome": "success" if is_success else "unschedulable",
        "message": found.message,
        "groupMessage": found.kept(job.trigger.key),
        "nominatedNode": "unchanged",
    }
    if found.reason in UNTOUCHED:
        return answer
    nodes = {_name(key): node for key, node in found.nominations.items()}
    kept = {each["name"]: each["node"] if is_success else "" for each in world.waiting}
    members = {_name(each.key): "" for each in job.members}
    trigger = _name(job.trigger.key)
    plugin = "JobPreemptionSuccessPlugin" if is_success else "JobPreemptionFailurePlugin"
    return {
        **answer,
        "nominatedNode": nodes.get(trigger, ""),
        "nominations": {**members, **nodes, **kept},
        "victims": sorted(_name(each.victim.key) for each in found.evictions),
        "victimActions": {_name(each.victim.key): each.action.value for each in found.evictions},
        "waitingRejectedBy": plugin,
    }


def same(expected: Any, actual: Any) -> bool:
    """What is not listed does not count; victims are a set."""
    wanted = dict(expected)
    if "victims" in wanted:
        wanted["victims"] = sorted(wanted["victims"])
    return all(actual.get(name) == value for name, value in wanted.items())


ADAPTERS = {"gang-preemption": preemption}
COMPARE = {"gang-preemption": same}
