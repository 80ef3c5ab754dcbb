"""A cluster whose pods use now more, now less, for comparing ways to cool hot nodes: what is evicted comes up elsewhere
a step later.

In place of the scheduler a rule places evicted pods: on the node with the least CPU in use that has room by requests.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator import clock as clocks
from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.meta import controller_of
from koordinator.api.node_metric import (
    NodeMetric,
    NodeMetricInfo,
    NodeMetricStatus,
    PodMetricInfo,
    ResourceMap,
)
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.cluster.proof import MoveAnswer, MoveQuestion
from koordinator.descheduler import plan_input
from koordinator.descheduler.measurements import MeasuredNode, Observation, measured
from koordinator.descheduler.migration import object_limiter
from koordinator.descheduler.migration.gates import Workload
from koordinator.descheduler.plan_input import PlanRules
from koordinator.descheduler.plugin import CycleLimits, Handle
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.low_node_load import planned
from koordinator.descheduler.plugins.low_node_load.cycle import LowNodeLoad, UsageForecast
from koordinator.descheduler.plugins.low_node_load.usage import NodeClass

PODS_PER_NODE, REPLICAS = 20, 20
MEAN_MILLI = 650
CORES_MILLI, STEP_S, STEPS = 32_000, 60.0, 40
START_S = 1_700_000_000.0
ARGS = {
    "lowThresholds": {"cpu": 45, "memory": 95},
    "highThresholds": {"cpu": 65, "memory": 98},
    "anomalyCondition": {"consecutiveAbnormalities": 1},
}


class Course(msgspec.Struct, kw_only=True):
    """The sums of one course: minutes in which nodes were hot, evictions, pods back on a node that they had left,
    and workloads that lost more pods in a cycle than they or their disruption budgets allow."""

    hot_minutes: int = 0
    evictions: int = 0
    returns: int = 0
    violations: int = 0


class CoursesWorld:
    """One random cluster; the same seed gives the same pods, and the same demand at each step."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.now_s = START_S
        self._chance = np.random.default_rng(seed)
        self._rng = random.Random(seed)
        count = nodes * PODS_PER_NODE
        self._nodes = [_node(number) for number in range(nodes)]
        self._names = [node.metadata.name for node in self._nodes]
        self._at = np.array([self._rng.randrange(nodes) for _ in range(count)])
        order = np.argsort(self._at, kind="stable")
        self._on = [
            part.tolist() for part in np.split(order, np.searchsorted(self._at[order], np.arange(1, nodes)))
        ]
        """Pods of each node, by number."""
        workloads = max(count // REPLICAS, 1)
        self._base = (
            np.clip(self._chance.lognormal(0.0, 0.6, workloads), 0.2, 4.0)[np.arange(count) % workloads]
            * MEAN_MILLI
        )
        self._drift = np.ones(count)
        self._left: list[set[int]] = [set() for _ in range(count)]
        made = [_pod(number) for number in range(workloads)]
        self._pods = [
            _replica(made[number % workloads], number, self._names[at])
            for number, at in enumerate(self._at.tolist())
        ]
        self._budgets = [_budget(number) for number in range(0, workloads, 2)]
        self._number = {pod.metadata.uid: number for number, pod in enumerate(self._pods)}
        self._jobs: list[tuple[float, PodMigrationJob]] = []
        self._forecast = UsageForecast()
        self.course = Course()

    def step(self) -> Observation:
        """Time passes, usage changes; what is measured then."""
        self.now_s += STEP_S
        noise = self._chance.normal(0.0, 0.06, self._drift.size)
        self._drift = np.clip(1 + (self._drift - 1) * 0.97 + noise, 0.3, 2.5)
        used = (self._base * self._drift).astype(np.int64)
        self._used = used
        total = np.bincount(self._at, used, minlength=len(self._nodes))
        self.course.hot_minutes += int((total > 0.65 * CORES_MILLI).sum())
        time, milli = clocks.rfc3339(self.now_s), used.tolist()
        return Observation(
            now_s=self.now_s,
            nodes=self._nodes,
            pods_of={
                name: [self._pods[one] for one in there]
                for name, there in zip(self._names, self._on, strict=True)
            },
            metrics={
                name: _metric(time, [(self._pods[one], milli[one]) for one in there])
                for name, there in zip(self._names, self._on, strict=True)
            },
        )

    def pod_by_pod(self, plugin: LowNodeLoad, seen: Observation) -> None:
        """A cycle of LowNodeLoad as it is by default; each workload gives at most what its limit allows."""
        evicted: list[Pod] = []
        gone: Counter[str] = Counter()
        steps = plugin.balance(seen)
        answer: bool | None = None
        while True:
            try:
                wanted = next(steps) if answer is None else steps.send(answer)
            except StopIteration:
                break
            owner = _owner(wanted.pod)
            answer = gone[owner] < _allowed(wanted.pod)
            if answer:
                gone[owner] += 1
                evicted.append(wanted.pod)
        total = np.bincount(self._at, self._used, minlength=len(self._nodes)).astype(np.float64)
        asked = np.bincount(self._at, minlength=len(self._nodes)) * 1_000
        moves = []
        for pod in evicted:
            number = self._number[pod.metadata.uid]
            has_room = asked + 1_000 <= CORES_MILLI
            target = int(np.argmin(np.where(has_room, total, np.inf)))
            total[self._at[number]] -= self._used[number]
            total[target] += self._used[number]
            asked[target] += 1_000
            moves.append((number, target))
        self._carry_out(moves)

    def by_plan(self, seen: Observation) -> None:
        """A cycle in plan mode, by the same limits."""
        args = BUILT_IN["LowNodeLoad"].read(ARGS)
        found = [each for _, each in plan_input.classified(seen, args)]
        hot = [name for each in found for name in each.names(NodeClass.HIGH)]
        self._forecast.see(found, [1] * len(found), seen.now_s)
        sources = self._forecast.sources(found, hot)
        expected = self._forecast.as_targets(found, sources)
        rules = PlanRules(
            refusal=lambda _: "",
            budgets=self._budgets,
            workload_of=lambda _, owner: Workload(REPLICAS),
            migration=BUILT_IN["MigrationController"].read({}),
            limits=CycleLimits(),
            jobs=[job for at_s, job in self._jobs if self.now_s - at_s < plan_input.COOL_DOWN_S],
        )

        async def prove(moves: Sequence[MoveQuestion]) -> list[MoveAnswer]:
            return [MoveAnswer(one.nodes[0]) for one in moves]

        outcome = asyncio.run(planned.planned(seen, expected, sources, rules, prove))
        self._carry_out(
            [
                (self._number[move.pod.metadata.uid], int(move.target.removeprefix("node-")))
                for move in outcome.moves
            ]
        )

    def _carry_out(self, moves: Sequence[tuple[int, int]]) -> None:
        lost: Counter[str] = Counter()
        allowed: dict[str, int] = {}
        for number, target in moves:
            source = int(self._at[number])
            self._left[number].add(source)
            self.course.evictions += 1
            self.course.returns += target in self._left[number]
            lost[_owner(self._pods[number])] += 1
            allowed[_owner(self._pods[number])] = _allowed(self._pods[number])
            self._at[number] = target
            self._on[source].remove(number)
            self._on[target].append(number)
            spec = msgspec.structs.replace(self._pods[number].spec, node_name=f"node-{target}")
            self._pods[number] = msgspec.structs.replace(self._pods[number], spec=spec)
            self._jobs.append((self.now_s, _job(self._pods[number], source, self.now_s)))
        self.course.violations += sum(count > allowed[owner] for owner, count in lost.items())


def course(nodes: int, seed: int, *, by_plan: bool) -> Course:
    """Run one cluster for `STEPS` minutes."""
    world = CoursesWorld(nodes, seed)
    handle = Handle(may_evict=lambda _: True, may_evict_now=lambda _: True)
    plugin = LowNodeLoad(BUILT_IN["LowNodeLoad"].read(ARGS), handle)
    for _ in range(STEPS):
        seen = world.step()
        if by_plan:
            world.by_plan(seen)
        else:
            world.pod_by_pod(plugin, seen)
    return world.course


def _owner(pod: Pod) -> str:
    owner = controller_of(pod)
    return "" if owner is None else owner.uid


def _allowed(pod: Pod) -> int:
    """Return how many pods of its workload may go in a cycle: every second workload has a budget of one."""
    most = object_limiter.limit(REPLICAS, None)
    return min(most, 1) if int(_owner(pod).removeprefix("rs-")) % 2 == 0 else most


def _budget(workload: int) -> PodDisruptionBudget:
    labels = {"matchLabels": {"app": f"app-{workload}"}}
    metadata = {"namespace": f"team-{workload}", "name": f"app-{workload}"}
    body = {"metadata": metadata, "spec": {"selector": labels}, "status": {"disruptionsAllowed": 1}}
    return from_builtins(body, PodDisruptionBudget)


def _node(number: int) -> Node:
    amounts = {"cpu": f"{CORES_MILLI}m", "memory": "128Gi", "pods": "110"}
    return from_builtins({"metadata": {"name": f"node-{number}"}, "status": {"allocatable": amounts}}, Node)


def _replica(pod: Pod, number: int, node: str) -> Pod:
    """Return another pod of the workload."""
    metadata = msgspec.structs.replace(pod.metadata, name=f"pod-{number}", uid=f"uid-{number}")
    return msgspec.structs.replace(
        pod, metadata=metadata, spec=msgspec.structs.replace(pod.spec, node_name=node)
    )


def _pod(workload: int) -> Pod:
    owner = {"kind": "ReplicaSet", "name": f"app-{workload}", "uid": f"rs-{workload}", "controller": True}
    body = {
        "metadata": {
            "namespace": f"team-{workload}",
            "labels": {"app": f"app-{workload}"},
            "ownerReferences": [owner],
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return from_builtins(body, Pod)


def _metric(time: str, used: Sequence[tuple[Pod, int]]) -> MeasuredNode:
    pods = [
        PodMetricInfo(
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            pod_usage=ResourceMap(resources={"cpu": f"{milli}m"}),
        )
        for pod, milli in used
    ]
    status = NodeMetricStatus(update_time=time, node_metric=NodeMetricInfo(), pods_metric=pods)
    return measured(NodeMetric(status=status))


def _job(pod: Pod, source: int, now_s: float) -> PodMigrationJob:
    ref = {"namespace": pod.metadata.namespace, "name": pod.metadata.name}
    metadata = {
        "name": f"job-{pod.metadata.name}",
        "creationTimestamp": clocks.rfc3339(now_s),
        "annotations": {labels.JOB_SOURCE_NODE: f"node-{source}"},
    }
    return from_builtins(
        {"metadata": metadata, "spec": {"podRef": ref}, "status": {"phase": "Succeeded", "podRef": ref}},
        PodMigrationJob,
    )
