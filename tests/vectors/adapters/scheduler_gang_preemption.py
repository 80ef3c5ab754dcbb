"""Area `gang-preemption`: only cpu counts for fitting."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.scheduler.plugin.diagnosis import fit_error
from koordinator.scheduler.plugin.status import Code
from koordinator.scheduler.plugin.topology_tree import build
from koordinator.scheduler.plugins.coscheduling.costs import EmptyingCosts
from koordinator.scheduler.plugins.coscheduling.preempt import (
    NO_VICTIMS,
    NOT_HELPFUL,
    Ground,
    JobMember,
    JobPreemptor,
    Occupant,
    Placer,
    Placing,
    PreemptReason,
    preempt,
)
from koordinator.scheduler.plugins.network_topology import placement

Case = dict[str, Any]
SHORT = "Insufficient cpu"
PLAN_INVALID = "plan become invalid, wait for the next round"
UNTOUCHED = (
    PreemptReason.ATTEMPTED,
    PreemptReason.NO_MEMBERS,
    PreemptReason.NEVER,
    PreemptReason.TERMINATING,
)

Fit = Callable[[str, Sequence[str]], str]
"""Why a node does not hold pods (keys), empty when it does."""


class SmallGround:
    """A cluster whose nodes and pods are listed; `may_evict` tells which of them the job may evict."""

    def __init__(
        self,
        codes: Mapping[str, Code],
        occupants: Mapping[str, Sequence[Occupant]],
        priority: int,
        fit: Fit,
    ) -> None:
        self._codes, self._fit = codes, fit
        self._candidates = sorted(node for node, code in codes.items() if code is Code.UNSCHEDULABLE)
        self._pods = {node: [each.key for each in occupants.get(node, ())] for node in codes}
        self._all = occupants

        def evictable(node: str) -> list[Occupant]:
            return [p for p in occupants.get(node, ()) if p.priority < priority and not p.is_protected]

        self._evictable = {node: evictable(node) for node in codes}
        self._cleared: list[str] = []
        self.members: dict[str, list[str]] = {node: [] for node in codes}
        self._costs = self._emptying_costs()
        self._reasons: dict[str, str] = {}

    def _emptying_costs(self) -> EmptyingCosts:
        pods = [(index, pod) for index, node in enumerate(self._candidates) for pod in self._evictable[node]]
        jobs: dict[str, int] = {}
        for _, pod in pods:
            jobs.setdefault(pod.job or f"pod {pod.key}", len(jobs))
        return EmptyingCosts(
            np.array([index for index, _ in pods], np.int64),
            np.array([pod.priority for _, pod in pods], np.int64),
            np.array([jobs[p.job or f"pod {p.key}"] for _, p in pods], np.int64),
            len(self._candidates),
        )

    def code_of(self, node: str) -> Code:
        return self._codes[node]

    def is_vacating(self, node: str) -> bool:
        return any(pod.is_preempted for pod in self._evictable[node])

    @property
    def has_victims(self) -> bool:
        return any(self._evictable[node] for node in self._candidates)

    def clear(self, members: Sequence[JobMember]) -> Sequence[str]:
        """One node at a time."""
        left = [index for index, node in enumerate(self._candidates) if node not in self._cleared]
        if not left:
            return ()
        rows = np.array(left, np.intp)
        index = left[self._costs.cheapest(rows, np.arange(len(self._candidates)))]
        self._costs.hit(index)
        node = self._candidates[index]
        self._cleared.append(node)
        self.take(self._evictable[node])
        return (node,)

    def place(self, node: str, member: JobMember) -> bool:
        reason = self._fit(node, [*self._pods[node], *self.members[node], member.key])
        if reason:
            self._reasons.setdefault(node, reason)
            return False
        self.members[node].append(member.key)
        return True

    def cleared(self) -> Mapping[str, Sequence[Occupant]]:
        return {node: self._evictable[node] for node in self._cleared}

    def may_hold(self, pods: Sequence[Occupant]) -> bool:
        return True

    def put_back(self, pods: Sequence[Occupant]) -> None:
        for pod in pods:
            self._pods[pod.node].append(pod.key)

    def take(self, pods: Sequence[Occupant]) -> None:
        for pod in pods:
            self._pods[pod.node].remove(pod.key)

    def holds(self, nodes: Collection[str]) -> bool:
        return not any(
            self._fit(node, [*self._pods[node], *self.members[node]]) for node in nodes if self.members[node]
        )

    def failure(self, members: Sequence[JobMember]) -> str:
        hopeless = [code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE for code in self._codes.values()]
        if not members:
            reasons = [NO_VICTIMS] * len(self._candidates) + [NOT_HELPFUL] * sum(hopeless)
        else:
            reasons = [
                reason
                for node in self._candidates
                if (reason := self._fit(node, [*self._pods[node], *self.members[node], members[0].key]))
            ]
        return fit_error(len(self._codes), Counter(reasons))


class World:
    """The nodes of a case and the pods on them."""

    def __init__(self, case: Case) -> None:
        gang, trigger = case.get("gang") or {}, case["trigger"]
        self.gang = gang
        self.waiting = case.get("waiting") or []
        self.nodes = {node["name"]: node for node in case["nodes"]}
        pending = case.get("pending") or ([] if gang else [trigger])
        self.members = [_member(each) for each in pending]
        self.priority = trigger.get("priority", 0)
        self.job = JobPreemptor(
            trigger=_member(trigger),
            never=trigger.get("preemptionPolicy") == "Never",
            members=tuple(self.members),
            waiting=tuple(JobMember(key=_key(each)) for each in self.waiting),
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
            there = [each.key for each in self.occupants[name]]
            is_refused = self._slots(name, there, wanted) < len(wanted)
            codes[name] = Code.UNSCHEDULABLE if is_refused else Code.SUCCESS
        return codes

    def _is_aware(self) -> bool:
        return "gatherStrategy" in self.gang

    def fit(self, node: str, keys: Sequence[str]) -> str:
        return "" if sum(self.cpu[key] for key in keys) <= self.nodes[node]["cpu"] else SHORT

    def ground(self) -> SmallGround:
        return SmallGround(self.codes, self.occupants, self.priority, self.fit)

    def _slots(self, node: str, there: Sequence[str], wanted: Sequence[JobMember]) -> int:
        keys = [each.key for each in wanted]
        counts = range(1, len(keys) + 1)
        return next((n - 1 for n in counts if self.fit(node, [*there, *keys[:n]])), len(keys))

    def placer(self) -> Placer | None:
        if not self._is_aware():
            return None
        if self.gang.get("attempted", 1) > 1:
            return lambda members, ground: Placing(failure=PLAN_INVALID)
        return self._place

    def _place(self, members: Sequence[JobMember], ground: Ground) -> Placing:
        while ground.clear(members):
            pass
        specs = msgspec.convert(self.gang["networkTopologySpec"], list[NetworkTopologySpec])
        tree = build(specs, [(name, node.get("labels") or {}) for name, node in self.nodes.items()])
        rules = msgspec.convert(self.gang["gatherStrategy"], list[GatherStrategy])
        gone = ground.cleared()
        slots = {
            name: self._slots(name, [p.key for p in self.occupants[name] if p not in gone[name]], members)
            for name in gone
        }
        keys = [each.key for each in members]
        demand = placement.demand_of(rules, tree.layers)
        found = placement.plan(tree, demand, keys, tree.by_leaf(slots), tree.by_leaf({}))
        reasons = [SHORT for count in slots.values() if count < len(keys)]
        for member in members:
            if member.key in found.nodes:
                assert ground.place(found.nodes[member.key], member), member
        return Placing(found.nodes, found.message(fit_error(len(self.nodes), Counter(reasons))))


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
    found = preempt(job, world.ground(), world.placer())
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
