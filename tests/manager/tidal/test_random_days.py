"""Random days of a pool: passes over nodes and pods that change by themselves, with lost writes, restarts and a clock
that jumps. What must hold of a tide holds all the same."""

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from koordinator import clock
from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.tidal_pool import TidalPool
from koordinator.manager.tidal import marks as node_marks
from koordinator.manager.tidal import survey
from koordinator.manager.tidal.drain import DeletePod, MigratePod
from koordinator.manager.tidal.listed import ListedObjects
from koordinator.manager.tidal.marks import NodeMarks
from koordinator.manager.tidal.nodes import Side, TidalPhase
from koordinator.manager.tidal.plan import online_percent
from koordinator.manager.tidal.policy import policy_of
from koordinator.manager.tidal.pool_pass import PoolMemory, PoolPass, PoolPlaces, look

MIDNIGHT_S = clock.parse_rfc3339("2026-03-02T00:00:00Z")
STEP_S = 30.0
CORES = 8
HOME = {TidalPhase.ONLINE: Side.ONLINE, TidalPhase.BATCH: Side.BATCH}
LENT = (TidalPhase.TO_BATCH, TidalPhase.BATCH)


def tolerated(phase: TidalPhase) -> list[str]:
    return [labels.TIDAL_BATCH_PHASE_TAINT] if phase in LENT else []


class PoolWorld:
    """A pool on nodes and pods that are only dictionaries; what is refused or lost is drawn."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_s = MIDNIGHT_S
        self.faults = rng.choice([0.0, 0.1, 0.4])
        self.nodes = {name: self._node(name) for name in (f"n{i}" for i in range(rng.randint(2, 9)))}
        self.pods: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.number = 0
        self.replicas = 0
        self.success = rng.choice([0.0, 0.5, 0.9])
        self.pool = from_builtins(self._pool(), TidalPool)
        self.policy = policy_of(self.pool)
        self.memory = PoolMemory()
        self.moves: Counter[str] = Counter()
        self.emergency_s = 0.0
        self.changes: dict[str, list[float]] = {}

    def _node(self, name: str) -> dict[str, Any]:
        return {
            "metadata": {
                "name": name,
                "uid": name,
                "labels": {"pool": "web"},
                "annotations": {},
                "creationTimestamp": clock.rfc3339(MIDNIGHT_S - 1e6),
            },
            "spec": {"taints": []},
            "status": {
                "allocatable": {"cpu": str(CORES), "memory": "64Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def _pool(self) -> dict[str, Any]:
        rng = self.rng
        spec: dict[str, Any] = {
            "nodeSelector": {"matchLabels": {"pool": "web"}},
            "onlineReserve": rng.choice([0, 1, "30%"]),
            "batchReserve": rng.choice([0, 0, 1]),
            "schedule": [
                {"start": "30 0 * * *", "duration": "2h", "batchNodes": rng.choice([1, 3, "50%", "100%"])},
                {"start": "0 2 * * *", "duration": "3h", "batchNodes": rng.choice([1, "30%"])},
            ],
            "leadTime": rng.choice(["10m", "45m"]),
            "cooldown": rng.choice(["2m", "10m"]),
            "maxNodesPerStep": rng.choice([1, 2, "50%"]),
            "drain": {
                "gracePeriod": "2m",
                "timeout": "10m",
                "batchPolicy": rng.choice(["Kill", "Checkpoint"]),
            },
        }
        return {"metadata": {"name": "night", "uid": "night"}, "spec": spec}

    # The rest of the cluster

    def live(self) -> None:
        """Workloads scale, jobs move pods, pods find nodes and end."""
        self.now_s += STEP_S
        rng = self.rng
        if rng.random() < 0.04:
            self.replicas = rng.randint(0, CORES * len(self.nodes) // 4)
        web = [pod for pod in self.pods.values() if self._app(pod) == "web"]
        if len(web) < self.replicas:
            self._add("web", "2", "koord-prod")
        elif len(web) > self.replicas:
            del self.pods[rng.choice(web)["metadata"]["name"]]
        if sum(self._app(pod) == "train" for pod in self.pods.values()) < len(self.nodes):
            self._add("train", "6", "koord-batch")
        for name, job in list(self.jobs.items()):
            if job["status"]["phase"] == "" and rng.random() < 0.3:
                self._end(job, rng.random() < self.success)
            elif job["status"]["phase"] and rng.random() < 0.05:
                del self.jobs[name]
        for name, pod in list(self.pods.items()):
            due_s = pod["metadata"].get("due")
            if due_s is not None and self.now_s >= due_s:
                del self.pods[name]
            elif not pod["spec"]["nodeName"]:
                self._place(pod)

    def _app(self, pod: dict[str, Any]) -> str:
        return str(pod["metadata"]["labels"]["app"])

    def _add(self, app: str, cpu: str, priority: str) -> None:
        self.number += 1
        name = f"{app}-{self.number}"
        owner = {"kind": "ReplicaSet", "name": app, "uid": app, "controller": True}
        self.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": name,
                "labels": {"app": app, labels.PRIORITY_CLASS: priority},
                "annotations": {},
                "creationTimestamp": clock.rfc3339(self.now_s),
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": "", "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"phase": "Pending", "conditions": []},
        }

    def _place(self, pod: dict[str, Any]) -> bool:
        app, need = self._app(pod), int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        for name in self.rng.sample(list(self.nodes), len(self.nodes)):
            node = self.nodes[name]
            phase = node["metadata"]["labels"].get(labels.TIDAL_PHASE, "online")
            used = sum(
                int(each["spec"]["containers"][0]["resources"]["requests"]["cpu"])
                for each in self.pods.values()
                if each["spec"]["nodeName"] == name
            )
            if used + need <= CORES and phase == ("online" if app == "web" else "batch"):
                pod["spec"]["nodeName"] = name
                pod["status"] = {"phase": "Running", "conditions": []}
                return True
        if not pod["status"]["conditions"]:
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [{**said, "lastTransitionTime": clock.rfc3339(self.now_s)}]
        return False

    def _end(self, job: dict[str, Any], succeeds: bool) -> None:
        pod = self.pods.get(job["spec"]["podRef"]["name"])
        if pod is not None and succeeds:
            del self.pods[pod["metadata"]["name"]]
            self._add("web", "2", "koord-prod")
            if not self._place(self.pods[f"web-{self.number}"]):  # no room was reserved: nobody is evicted
                del self.pods[f"web-{self.number}"]
                self.pods[pod["metadata"]["name"]] = pod
                succeeds = False
        job["status"] = {"phase": "Succeeded" if succeeds else "Failed", "message": "no room"}

    # The controller

    def step(self) -> PoolPass:
        """One pass, carried out as far as writes succeed."""
        objects = ListedObjects(
            [self.pool],
            (from_builtins(node, Node) for node in self.nodes.values()),
            (from_builtins(pod, Pod) for pod in self.pods.values()),
            (from_builtins(job, PodMigrationJob) for job in self.jobs.values()),
            (),
        )
        found = look("night", self.policy, PoolPlaces(sorted(self.nodes)), objects, self.memory, self.now_s)
        self.memory = PoolMemory(found.decision.hold_until_s)
        for job in found.obsolete_jobs:
            self.jobs.pop(job, None)
        for drained in found.drains.values():
            for action in drained.actions:
                if self.rng.random() < self.faults:
                    continue
                if isinstance(action, MigratePod):
                    self._migrate(found, drained.node, action)
                elif isinstance(action, DeletePod):
                    self._delete(action)
        for name, wanted in found.marks.items():
            if self.rng.random() >= self.faults:
                self._write(name, wanted)
        return found

    def _migrate(self, found: PoolPass, node: str, action: MigratePod) -> None:
        marks = found.marks[node]
        assert marks is not None
        name = f"tidal-{action.pod.uid}-{int(marks.since_s)}-{action.number}"
        notes = {survey.JOB_SINCE: clock.rfc3339(marks.since_s), labels.EVICT_TRIGGER: survey.TRIGGER}
        self.jobs.setdefault(
            name,
            {
                "metadata": {
                    "name": name,
                    "annotations": notes,
                    "creationTimestamp": clock.rfc3339(self.now_s),
                },
                "spec": {"podRef": {"namespace": "default", "name": action.pod.name, "uid": action.pod.uid}},
                "status": {"phase": ""},
            },
        )

    def _delete(self, action: DeletePod) -> None:
        pod = self.pods[action.pod.name]
        assert self._app(pod) == "train", "online pods only leave by migration"
        grace_s = 30.0 if action.grace_s is None else float(action.grace_s)
        pod["metadata"]["deletionTimestamp"] = clock.rfc3339(self.now_s)
        due_s = self.now_s + self.rng.uniform(0, grace_s)
        pod["metadata"]["due"] = min(pod["metadata"].get("due", due_s), due_s)

    def _write(self, name: str, wanted: NodeMarks | None) -> None:
        body = self.nodes[name]
        patch = node_marks.patch(from_builtins(body, Node), wanted)
        if patch is None:
            return
        for part in ("labels", "annotations"):
            for key, text in patch["metadata"].get(part, {}).items():
                if text is None:
                    body["metadata"][part].pop(key, None)
                else:
                    body["metadata"][part][key] = text
        body["spec"] |= patch.get("spec", {})

    def marks(self) -> dict[str, NodeMarks]:
        return {name: NodeMarks.of(from_builtins(node, Node)) for name, node in self.nodes.items()}


def check_flapping(
    world: PoolWorld, before: dict[str, NodeMarks], after: dict[str, NodeMarks], *, is_calm: bool
) -> None:
    """At most two changes of a node per cool-down, where neither an emergency nor the end of a window has its own
    right."""
    for name, each in after.items():
        times = world.changes.setdefault(name, [])
        if not is_calm:
            times.clear()
        elif each.phase is not before[name].phase:
            times.append(world.now_s)
            recent = [at_s for at_s in times if at_s > world.now_s - world.policy.cooldown_s]
            assert len(recent) <= 2, f"{name} flaps"


def check(world: PoolWorld, before: dict[str, NodeMarks], found: PoolPass) -> None:
    """What holds after each pass."""
    policy, decision, after = world.policy, found.decision, world.marks()
    moving = [name for name, each in after.items() if each.phase.value.startswith("to-")]
    was_moving = [name for name, each in before.items() if each.phase.value.startswith("to-")]
    is_open = bool(policy.windows(world.now_s))
    limit = max(policy.per_step.up(len(world.nodes)), 1)
    if is_open and decision.emergency is None:
        assert len(moving) <= max(limit, len(was_moving))
    lends = [name for name in after if after[name].phase is TidalPhase.TO_BATCH and name not in was_moving]
    if lends:
        nodes = [msgspec.structs.replace(node, phase=after[node.name].phase) for node in found.nodes]
        percent = online_percent(nodes)
        assert percent is not None and percent <= policy.load_max_percent
        assert world.now_s >= world.emergency_s + 1800.0, "nothing is lent after an emergency"
    if decision.emergency is not None:
        world.emergency_s = world.now_s
    if not is_open and not world.faults:
        late = [
            name for name, each in after.items() if each.phase is TidalPhase.BATCH and each.reserve is None
        ]
        assert not late, "when a window is over, nothing is in batch phase"
    check_flapping(world, before, after, is_calm=is_open and decision.emergency is None)
    for name, each in after.items():
        taints = [taint["key"] for taint in world.nodes[name]["spec"]["taints"]]
        returns = [labels.TIDAL_ONLINE_PHASE_TAINT] if each.phase is TidalPhase.TO_ONLINE else []
        assert taints == tolerated(each.phase) + returns, "all marks come in one patch"
        side, home = before[name].reserve, HOME.get(before[name].phase)
        if side is not None and side is home and side is each.reserve:
            assert each.phase is before[name].phase, "a reserved node never leaves its side"


@pytest.mark.parametrize("seed", range(8))
def test_what_must_hold_of_a_tide_holds_on_random_days(seed: int) -> None:
    world = PoolWorld(seed)
    while world.now_s < MIDNIGHT_S + 5.5 * 3600:
        world.live()
        if world.rng.random() < 0.01 * (world.faults > 0):
            world.memory = PoolMemory(world.memory.hold_until_s)  # a restart: the rest is in marks and status
        if world.rng.random() < 0.05:
            continue  # the controller is away
        before = world.marks()
        check(world, before, world.step())
    while world.faults or world.now_s < MIDNIGHT_S + 5.75 * 3600:
        world.faults = 0.0
        world.live()
        world.step()
    # Long after the last window, only the batch reserve is still lent.
    lent = {name for name, each in world.marks().items() if each.phase is not TidalPhase.ONLINE}
    assert lent <= {name for name, each in world.marks().items() if each.reserve is not None}


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_jumps_leaves_no_node_behind(seed: int, jump_s: float) -> None:
    world = PoolWorld(seed)
    for number in range(900):
        if number in (300, 500):
            world.now_s += jump_s
        world.live()
        world.step()
    world.now_s = MIDNIGHT_S + 86_400 + 6 * 3600
    for _ in range(90):
        world.live()
        world.step()

    marks = world.marks().values()
    assert all(each.phase is TidalPhase.ONLINE or each.reserve is not None for each in marks)
    assert all(each.since_s <= world.now_s for each in marks)
