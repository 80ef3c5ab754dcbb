"""Gangs, groups of gangs and single pods that come, change and go at random, and what must always hold of them."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.quantity import milli
from koordinator.api.sigs import ElasticQuota, PodGroup
from koordinator.cluster import errors
from koordinator.scheduler.plugin.capabilities import ApiRequest
from koordinator.scheduler.scheduler import Scheduler
from tests.churn.table_differences import differences
from tests.cluster.faulty_cluster import Faults
from tests.scheduler.coscheduling.stage import PREFIX, Json, Stage, member, with_moments
from tests.scheduler.world import node, pod

QUOTA_LABEL = "quota.scheduling.koordinator.sh/name"
POD_GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"
NODES = 3
TAKEOVER_S = 2.0
"""What a new scheduler gets to go on where the last one died."""


class Role(msgspec.Struct):
    """A gang that the story made: `names` are all members that were ever planned."""

    name: str
    minimum: int
    names: list[str]
    group: list[str]
    """Gangs of its group, itself included."""
    has_pod_group: bool
    quota: str = ""
    policy: str = "once-satisfied"
    is_lenient: bool = False
    """NonStrict: its members keep the places that they have until their time is up."""


class Crowd:
    """What a story made so far. Everybody asks for whole cores, so that room is a number."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.rng = stage.rng_of(seed)
        self.roles: dict[str, Role] = {}
        self.tainted: set[str] = set()
        """Gangs that users broke: members deleted, the minimum changed, the PodGroup taken away."""
        self.quotas: dict[str, int] = {}
        self.log: list[str] = []
        self.may_be_half = False
        """Whether bindings were refused: others may have taken the room of a gang that was half bound by then."""
        self._waiting_list: list[Json] = []
        self._number = 0
        self._node_cpu: dict[str, int] = {}

    # What happens

    async def begin(self) -> None:
        await self.stage.nodes(*(str(self.rng.randint(2, 5)) for _ in range(NODES)))
        for found in (await self.stage.api.list(Node)).items:
            self._node_cpu[found.metadata.name] = int(found.status.allocatable["cpu"])
        for name, cores in (("narrow", 3), ("broad", 6)):
            amount = {"cpu": str(cores), "memory": "999Gi"}
            body = {"metadata": {"name": name}, "spec": {"min": amount, "max": amount}}
            await self.stage.api.create(ElasticQuota, body, "default")
            self.quotas[name] = cores

    async def act(self) -> None:
        """Something that users and administrators do."""
        acts: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._gang, 3),
            (self._group, 2),
            (self._single, 2),
            (self._late_member, 6),
            (self._lose_member, 1),
            (self._change_minimum, 1),
            (self._drop_pod_group, 1),
            (self._finish, 2),
            (self._lose_node, 1),
            (self._add_node, 1),
        ]
        choices, weights = zip(*acts, strict=True)
        [act] = self.rng.choices(choices, weights)
        self.log.append(f"{asyncio.get_running_loop().time():.2f} {act.__name__}")
        with contextlib.suppress(errors.NotFound, errors.AlreadyExists):
            await act()

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _gang(self) -> None:
        await self._make([f"g{self._next()}"])

    async def _group(self) -> None:
        number = self._next()
        await self._make([f"r{number}-ps", f"r{number}-worker"])

    async def _make(self, names: list[str]) -> None:
        """Gangs that belong together; some members come at once, others later."""
        quota = self.rng.choice(("", "", "", "narrow", "broad"))
        policy = self.rng.choice(("once-satisfied", "waiting-and-running", "only-waiting"))
        mode = self.rng.choice(("Strict", "Strict", "NonStrict"))
        urgent = self.rng.random() < 0.3
        annotations = {"mode": mode, "match-policy": policy}
        if len(names) > 1:
            annotations["groups"] = json.dumps([f"default/{name}" for name in names])
        for name in names:
            minimum = self.rng.randint(1, 4)
            size = minimum + self.rng.choice((0, 0, 0, 1, 2))
            has_pod_group = self.rng.random() < 0.4
            bodies = []
            for number in range(size):
                body = member(f"{name}-{number}", name, minimum, annotations=annotations)
                if has_pod_group:
                    body["metadata"]["annotations"] = {}
                    body["metadata"]["labels"] = {POD_GROUP_LABEL: name}
                if quota:
                    body["metadata"].setdefault("labels", {})[QUOTA_LABEL] = quota
                if urgent:
                    body["spec"]["priorityClassName"] = "urgent"
                bodies.append(body)
            self.roles[name] = Role(
                name, minimum, [body["metadata"]["name"] for body in bodies], names, has_pod_group, quota,
                policy, mode == "NonStrict",
            )  # fmt: skip
            if has_pod_group:
                about = {f"{PREFIX}/{key}": text for key, text in annotations.items()}
                body = {
                    "metadata": {"name": name, "namespace": "default", "annotations": about},
                    "spec": {"minMember": minimum},
                    "kind": "PodGroup",
                }
                bodies.append(body)
            self.rng.shuffle(bodies)
            at_once = self.rng.choice((0, len(bodies) // 2, len(bodies), len(bodies)))
            for body in bodies[:at_once]:
                await self._create(body)
            self._waiting_list += bodies[at_once:]

    async def _create(self, body: Json) -> None:
        if body.get("kind") == "PodGroup":
            await self.stage.api.create(PodGroup, body, "default")
        else:
            await self.stage.pods(body)

    async def _late_member(self) -> None:
        if self._waiting_list:
            await self._create(self._waiting_list.pop(self.rng.randrange(len(self._waiting_list))))

    async def _single(self) -> None:
        await self.stage.pods(pod(f"s{self._next()}", cpu=str(self.rng.choice((1, 1, 2)))))

    async def _some_role(self) -> Role | None:
        return self.rng.choice(list(self.roles.values())) if self.roles else None

    def _taint(self, role: Role) -> None:
        self.tainted.update(role.group)

    async def _lose_member(self) -> None:
        """A member is deleted; often its owner makes another one."""
        role = await self._some_role()
        if role is not None:
            name = self.rng.choice(role.names)
            self._taint(role)
            found = await self.stage.api.get(Pod, name, "default")
            await self._delete(name)
            if self.rng.random() < 0.6:
                self._waiting_list.append(_again(found, f"{name}x"))
                role.names.append(f"{name}x")

    async def _delete(self, name: str) -> None:
        await self.stage.api.delete(Pod, name, "default", grace_period_s=0)

    async def _change_minimum(self) -> None:
        role = await self._some_role()
        if role is not None and role.has_pod_group:
            minimum = max(1, role.minimum + self.rng.choice((-1, 1)))
            await self.stage.api.patch(PodGroup, role.name, {"spec": {"minMember": minimum}}, "default")
            self._taint(role)
            role.minimum = minimum

    async def _drop_pod_group(self) -> None:
        role = await self._some_role()
        if role is not None and role.has_pod_group:
            await self.stage.api.delete(PodGroup, role.name, "default")
            self._taint(role)

    async def _finish(self) -> None:
        """A whole job ends and is cleared away."""
        role = await self._some_role()
        if role is None:
            return
        for name in role.group:
            gone = self.roles.pop(name)
            self._waiting_list = [
                each for each in self._waiting_list if each["metadata"]["name"] not in (*gone.names, name)
            ]
            for each in gone.names:
                with contextlib.suppress(errors.NotFound):
                    await self._delete(each)
            if gone.has_pod_group:
                with contextlib.suppress(errors.NotFound):
                    await self.stage.api.delete(PodGroup, name, "default")

    async def _lose_node(self) -> None:
        """A node goes with all that was on it."""
        if len(self._node_cpu) <= 1:
            return
        name = self.rng.choice(sorted(self._node_cpu))
        await self.stage.api.delete(Node, name)
        del self._node_cpu[name]
        await self.clear_lost_nodes()

    async def clear_lost_nodes(self) -> None:
        """Delete what was on nodes that are gone, or was bound to them later."""
        for name, where in (await self.pods()).items():
            if where and where not in self._node_cpu:
                for role in self.roles.values():
                    if name in role.names:
                        self._taint(role)
                await self._delete(name)

    async def _add_node(self) -> None:
        name, cores = f"node-{NODES + self._next()}", self.rng.randint(1, 4)
        await self.stage.api.create(Node, node(name, cpu=str(cores)))
        self._node_cpu[name] = cores

    async def everybody_comes(self) -> None:
        """Nobody is left on the way."""
        self.rng.shuffle(self._waiting_list)
        for body in self._waiting_list:
            with contextlib.suppress(errors.AlreadyExists):
                await self._create(body)
        self._waiting_list.clear()

    # What must hold

    async def pods(self) -> dict[str, str]:
        """Name → node, "" for none."""
        return {each.metadata.name: each.spec.node_name for each in (await self.stage.api.list(Pod)).items}

    def count(self, role: Role, pods: dict[str, str]) -> tuple[int, int]:
        """Members that exist, and those of them on nodes."""
        there = [name for name in role.names if name in pods]
        return len(there), sum(bool(pods[name]) for name in there)

    async def check_step(self) -> None:
        """At any time: nodes and quotas are not over-committed, and no gang runs half but while it is being bound."""
        found = (await self.stage.api.list(Pod)).items
        used: Counter[str] = Counter()
        of_quota: Counter[str] = Counter()
        for each in found:
            if each.spec.node_name:
                cores = int(each.spec.containers[0].resources.requests["cpu"])
                used[each.spec.node_name] += cores
                of_quota[each.metadata.labels.get(QUOTA_LABEL, "")] += cores
        for name, cores in self._node_cpu.items():
            assert used[name] <= cores, f"{name} has {cores} cores, and {used[name]} are used"
        for name, cores in self.quotas.items():
            assert of_quota[name] <= cores, f"quota {name} has {cores} cores, and {of_quota[name]} are used"
        pods = {each.metadata.name: each.spec.node_name for each in found}
        is_calm = self.stage.faults == Faults() and self.stage.age_s > TAKEOVER_S
        scheduler = self.stage.scheduler
        if is_calm and scheduler.bindings_in_progress == len(scheduler.waiting):
            self.check_whole(pods)

    def check_whole(self, pods: dict[str, str]) -> None:
        """No group that users left alone runs with fewer members than any of its gangs needs. A lenient one may, where
        some of its bindings failed and others hold the room now."""
        for role in self.roles.values():
            if (
                self.may_be_half
                or role.is_lenient
                or self.tainted.intersection(role.group)
                or not all(name in self.roles for name in role.group)
            ):
                continue
            counts = {name: self.count(self.roles[name], pods)[1] for name in role.group}
            if any(counts.values()):
                short = {name: n for name, n in counts.items() if n < self.roles[name].minimum}
                assert not short, f"half of {role.group} runs: {counts} of {self._minimums(role)}"

    def _minimums(self, role: Role) -> list[int]:
        return [self.roles[name].minimum for name in role.group]

    async def check_settled(self) -> None:
        """Nobody works on anything, nothing is booked for nobody, and who is pending does not fit."""
        await self.check_step()
        scheduler = self.stage.scheduler
        held = {each.pod.pod.metadata.name: each.node_name for each in scheduler.waiting}
        lenient = {name for role in self.roles.values() if role.is_lenient for name in role.names}
        assert held.keys() <= lenient
        assert scheduler.table.assumed_count == len(held)
        assert scheduler.bindings_in_progress == len(held)
        pods = await self.pods()
        self.check_whole(pods)
        await self._check_nobody_fits(pods, held)
        if not held:
            await self._check_restart()

    async def _check_restart(self) -> None:
        """Another scheduler that begins now comes to know all that this one knows."""
        scheduler = self.stage.scheduler
        fresh = Scheduler(self.stage.api, with_moments(), plugins=self.stage.plugins())
        async with fresh.following():
            probes = [pod("probe")]
            for quota in self.quotas:
                probe = pod(f"probe-{quota}")
                probe["metadata"]["labels"] = {QUOTA_LABEL: quota}
                probes.append(probe)
            found = [line for line in differences(scheduler, fresh, probes) if not _is_about_zeros(line)]
        assert not found, found

    async def _check_nobody_fits(self, pods: dict[str, str], held: dict[str, str]) -> None:
        free = Counter(self._node_cpu)
        left = Counter({name: self._runtime(name) for name in self.quotas})
        pending: list[Pod] = []
        for each in (await self.stage.api.list(Pod)).items:
            cores = int(each.spec.containers[0].resources.requests["cpu"])
            if node_name := each.spec.node_name or held.get(each.metadata.name, ""):
                free[node_name] -= cores
                left[each.metadata.labels.get(QUOTA_LABEL, "")] -= cores
            else:
                pending.append(each)
        for each in pending:
            if each.metadata.name.startswith("s"):
                cores = int(each.spec.containers[0].resources.requests["cpu"])
                assert max(free.values()) < cores, f"{each.metadata.name} would fit: {dict(free)}"
        for role in self.roles.values():
            if held.keys() & {each for name in role.group for each in self.roles[name].names}:
                continue  # it may go on as soon as one more of it fits, and tries every few minutes
            needed = self._needed(role, pods)
            room = sum(free.values())
            if role.quota:
                room = min(room, left[role.quota])
            if needed is not None:
                why = f"{role.group} needs {needed} of {room}, free {dict(free)}, left {dict(left)}"
                assert needed > room, why

    def _runtime(self, quota: str) -> int:
        """Whole cores that the quota may use now, as the scheduler says itself."""
        [answer] = [
            each.answer
            for each in self.stage.scheduler.engine.endpoints()["ElasticQuota"]
            if "{" in each.path
        ]
        shown = answer(ApiRequest(path={"name": quota})).body
        return milli(shown["runtime"].get("cpu", "0")) // 1000

    def _needed(self, role: Role, pods: dict[str, str]) -> int | None:
        """Places that the role's group needs to go on; None when it needs none, or may not have them."""
        if not all(name in self.roles for name in role.group):
            return None
        if self.tainted.intersection(role.group):
            return None
        needed = 0
        for name in role.group:
            there, bound = self.count(self.roles[name], pods)
            if there < self.roles[name].minimum:
                return None
            needed += max(0, self.roles[name].minimum - bound)
        if needed == 0:  # it has started: any other member is welcome, one by one where the policy allows it
            if role.policy == "only-waiting":
                return None
            return (
                1 if any(not pods[each] for name in role.group for each in self.roles[name].names) else None
            )
        return needed


def _again(old: Pod, name: str) -> Json:
    """The pod that a controller makes in place of a deleted one."""
    body: dict[str, Any] = pod(name)
    body["metadata"]["labels"] = dict(old.metadata.labels)
    body["metadata"]["annotations"] = {
        key: text for key, text in old.metadata.annotations.items() if key.startswith(PREFIX)
    }
    if old.spec.priority:
        body["spec"]["priorityClassName"] = "urgent"
    return body


def _is_about_zeros(difference: str) -> bool:
    """A quota that was used once says that it uses 0, a new one that it uses nothing."""
    ours, _, theirs = difference.partition(": ")[2].partition(" instead of ")
    return ours.replace("used: cpu:0,memory:0", "used: <empty>") == theirs
