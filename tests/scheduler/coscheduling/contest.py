"""Jobs of several priorities on nodes that are too small for all of them, whom they evict, and what must hold then.

Owners make a new pod for each that is evicted, and nodes take their time to stop one.
"""

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.cluster import errors
from koordinator.cluster.protocol import EventType
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.preemption.executor import PREEMPTION
from koordinator.scheduler.scheduler import Scheduler
from tests.churn.table_differences import differences
from tests.cluster.faulty_cluster import Faults
from tests.scheduler.coscheduling.stage import Stage, member, with_moments
from tests.scheduler.world import node, pod

NODES = 4
PRIORITIES = {"humble": 10, "common": 100, "noble": 1000}
PROTECTIONS = (
    {labels.DISABLE_PREEMPTIBLE: "true"},
    {"quota.scheduling.koordinator.sh/preemptible": "false"},
)
STOPPING_S_MAX = 5.0
"""How long a pod takes to end."""
BACKOFF_S_MAX = 10.0
"""How long somebody who matters more may stand back after the unrest, and then take the room."""
SUCCESSOR_S_MAX = 2.0
"""How long an owner takes to make a new pod."""
TAKEOVER_S = 2.0
TURN_S = 0.1


class Job(msgspec.Struct):
    """A gang, or a pod on its own; `members` are those that its owner wants now, with their cores."""

    name: str
    minimum: int
    priority: str
    group: list[str]
    """Gangs that start together, itself among them; empty for a pod on its own."""
    policy: str
    marks: dict[str, str]
    members: dict[str, int] = {}

    @property
    def value(self) -> int:
        return PRIORITIES[self.priority]


class Departure(msgspec.Struct, frozen=True):
    """A pod that was marked to make room for others."""

    at_s: float
    name: str
    priority: int
    is_protected: bool
    group: str
    """The preemptor; empty where stock preemption evicts for one pod."""


class Contest:
    """The jobs of a story, their owners, and the nodes. Pods ask for one or two whole cores, members of a group all
    for the same, so that any order is a way to place them if there is one."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.rng = stage.rng_of(seed)
        self._nodes_rng = random.Random(f"nodes {seed}")
        self.jobs: dict[str, Job] = {}
        self.departures: list[Departure] = []
        self.evicted: set[str] = set()
        """Names of pods that went in some other way than by their owners' will."""
        self.log: list[str] = []
        self._number = 0
        self._about: dict[str, Job] = {}
        """Pod → its job, also for pods that are no more."""
        self._cores: dict[str, int] = {}
        self._marked: dict[str, str] = {}
        self._stopping: set[str] = set()
        self._withdrawn: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    # What happens

    async def begin(self) -> None:
        await self.stage.nodes()
        for name, value in PRIORITIES.items():
            body = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            await self.stage.api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        for number in range(NODES):
            cores = self.rng.randint(2, 5)
            self._cores[f"node-{number}"] = cores
            await self.stage.api.create(Node, node(f"node-{number}", cpu=str(cores)))
        version = (await self.stage.api.list(Pod)).resource_version
        self._tasks = [
            asyncio.create_task(work) for work in (self._follow(version), self._stop_pods(), self._own())
        ]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def act(self) -> None:
        """Something that users do."""
        acts = [(self._gang, 4), (self._group, 2), (self._single, 2), (self._finish, 2)]
        choices, weights = zip(*acts, strict=True)
        [act] = self.rng.choices(choices, weights)
        if len(self.jobs) > 8:
            act = self._finish
        self.log.append(f"{self.now_s:.2f} {act.__name__}")
        await act()

    async def _gang(self) -> None:
        self._number += 1
        await self._make([f"g{self._number}"])

    async def _group(self) -> None:
        self._number += 1
        await self._make([f"r{self._number}-ps", f"r{self._number}-worker"])

    async def _make(self, names: list[str]) -> None:
        policy = self.rng.choice(("once-satisfied", "waiting-and-running", "only-waiting"))
        priority = self.rng.choice(list(PRIORITIES))
        marks = self.rng.choice(PROTECTIONS) if self.rng.random() < 0.15 else {}
        cores = self.rng.choice((1, 1, 2))
        for name in names:
            minimum = self.rng.randint(1, 4)
            job = Job(name, minimum, priority, names, policy, dict(marks))
            self.jobs[name] = job
            await self._pods(job, minimum + self.rng.choice((0, 0, 0, 1, 2)), cores)

    async def _single(self) -> None:
        self._number += 1
        name = f"s{self._number}"
        job = self.jobs[name] = Job(name, 1, self.rng.choice(list(PRIORITIES)), [], "", {})
        await self._pods(job, 1, self.rng.choice((1, 1, 2)))

    async def _pods(self, job: Job, count: int, cores: int) -> None:
        for _ in range(count):
            await self._pod(job, cores)

    async def _pod(self, job: Job, cores: int) -> None:
        self._number += 1
        name = f"{job.name}-{self._number}"
        if job.group:
            annotations = {"match-policy": job.policy}
            if len(job.group) > 1:
                annotations["groups"] = json.dumps([f"default/{each}" for each in job.group])
            body = member(name, job.name, job.minimum, cpu=str(cores), annotations=annotations)
        else:
            body = pod(name, cpu=str(cores))
        body["metadata"]["labels"] = dict(job.marks)
        body["spec"]["priorityClassName"] = job.priority
        job.members[name] = cores
        self._about[name] = job
        await self.stage.pods(body)

    async def _finish(self) -> None:
        """A whole job ends and is cleared away."""
        if not self.jobs:
            return
        job = self.rng.choice(list(self.jobs.values()))
        for each in [self.jobs.pop(name) for name in job.group or [job.name]]:
            for name in each.members:
                self._withdrawn.add(name)
                with contextlib.suppress(errors.NotFound):
                    await self.stage.api.delete(Pod, name, "default", grace_period_s=0)

    # Beside the users

    async def _follow(self, version: str) -> None:
        async for batch in self.stage.api.watch(Pod, resource_version=version):
            for event in batch:
                if event.obj is not None and event.type is not EventType.BOOKMARK:
                    self._seen(event.obj, is_gone=event.type is EventType.DELETED)

    def _seen(self, found: Pod, *, is_gone: bool) -> None:
        name = found.metadata.name
        job = self._about[name]
        said = next((each.message for each in found.status.conditions if each.reason == PREEMPTION), "")
        if said and self._marked.get(name) != said:
            self._marked[name] = said
            whom = re.search(r"preemptor: (.+), triggerPod: ", said)
            group = whom.group(1) if whom else ""
            self.log.append(f"{self.now_s:.2f} {name} of {job.priority} marked: {said}")
            self.departures.append(Departure(self.now_s, name, job.value, bool(job.marks), group))
        if (is_gone or found.metadata.deletion_timestamp is not None) and name not in self._withdrawn:
            if name not in self.evicted:
                self.log.append(f"{self.now_s:.2f} {name} evicted from {found.spec.node_name}")
            self.evicted.add(name)

    async def _stop_pods(self) -> None:
        """Nodes end the pods that are to go."""
        while True:
            for each in (await self.stage.api.list(Pod)).items:
                if each.metadata.deletion_timestamp is not None and each.metadata.name not in self._stopping:
                    self._stopping.add(each.metadata.name)
                    self._tasks.append(asyncio.create_task(self._stop(each.metadata.name)))
            await asyncio.sleep(TURN_S)

    async def _stop(self, name: str) -> None:
        await asyncio.sleep(self._nodes_rng.uniform(0.0, STOPPING_S_MAX))
        with contextlib.suppress(errors.NotFound):
            await self.stage.api.delete(Pod, name, "default", grace_period_s=0)

    async def _own(self) -> None:
        """Owners make new pods for those that went."""
        while True:
            await asyncio.sleep(self._nodes_rng.uniform(0.0, SUCCESSOR_S_MAX))
            there = {each.metadata.name for each in (await self.stage.api.list(Pod)).items}
            for job in list(self.jobs.values()):
                for name in [name for name in job.members if name not in there]:
                    if name in self.evicted and name in job.members and job.name in self.jobs:
                        await self._pod(job, job.members.pop(name))

    # What must hold

    async def print_state(self) -> None:
        """Who is where and why, for whoever looks into a failing seed."""
        print(list(self.jobs.values()))
        print(self._cores)
        for each in (await self.stage.api.list(Pod)).items:
            reported = [cond.message for cond in each.status.conditions]
            print(
                each.metadata.name,
                each.spec.priority,
                each.spec.node_name,
                each.status.nominated_node_name,
                reported,
            )

    def room_is_kept(self, name: str) -> None:
        """A pod has just been reserved: nobody who matters as much is promised that room."""
        scheduler = self.stage.scheduler
        nominations, table = scheduler.engine.nominations, scheduler.table
        place = next((each for each in table.places() if each.pod.pod.metadata.name == name), None)
        if place is None:
            return
        where = table.name_of(place.row)
        promised = [
            other for other in nominations.that_count(where, place.pod) if table.place_of(other.uid) is None
        ]
        needed = sum(amount for other in promised for column, amount in other.requests if column == 0)
        free = int(table.free[0, place.row])
        assert free >= needed, f"{name} took room on {where} that {[each.key for each in promised]} are kept"

    async def check_step(self) -> None:
        """At any time: nodes are not over-committed, and who goes matters less than whom it goes for."""
        found = (await self.stage.api.list(Pod)).items
        used: Counter[str] = Counter()
        for each in found:
            used[each.spec.node_name] += int(each.spec.containers[0].resources.requests["cpu"])
        for name, cores in self._cores.items():
            assert used[name] <= cores, f"{name} has {cores} cores, and {used[name]} are used"
        for gone in self.departures:
            if gone.group:
                by = self._priority_of(gone.group)
                assert gone.priority < by, f"{gone} goes for one of {by}"
                assert not gone.is_protected, gone

    def _priority_of(self, group: str) -> int:
        """Of a preemptor, by its group's id (gang ids with commas) or the pod's key."""
        name = group.split(",")[0].removeprefix("default/")
        known = self._about.get(name) or next(
            job for job in self._about.values() if job.name == name or f"{job.name}" == name
        )
        return known.value

    async def check_rest(self, since_s: float) -> None:
        """Nobody works on anything, nothing is kept for nobody, who is pending does not fit, and whoever had others
        evicted since then has what he wanted, unless somebody more important came."""
        await self.check_step()
        scheduler = self.stage.scheduler
        assert not list(scheduler.waiting), [each.pod.key for each in scheduler.waiting]
        assert scheduler.table.assumed_count == 0
        nominations = scheduler.engine.nominations
        kept = {name: [each.key for each in nominations.on(name)] for name in nominations.nodes}
        assert not kept, f"room is kept for ever: {kept}"
        pods = {each.metadata.name: each for each in (await self.stage.api.list(Pod)).items}
        for name, each in pods.items():
            assert each.metadata.deletion_timestamp is None, name
            assert each.spec.node_name or not each.status.nominated_node_name, f"{name} is nominated for ever"
        where = {name: each.spec.node_name for name, each in pods.items()}
        for job in self.jobs.values():
            assert set(job.members) <= pods.keys(), job
            for wanted in self._wanted(job, where):
                assert not self._fits(job, wanted, where), f"{wanted} of {job.name} would fit: {where}"
        self._check_not_in_vain(since_s, where)
        await self._check_restart()

    def _wanted(self, job: Job, where: dict[str, str]) -> Iterator[list[int]]:
        """Cores of pods that could start together."""
        group = [self.jobs[name] for name in job.group] or [job]
        if group[0] is not job:
            return
        lacking: list[int] = []
        for each in group:
            pending = sorted(cores for name, cores in each.members.items() if not where[name])
            bound = len(each.members) - len(pending)
            count = each.minimum - (0 if each.policy == "only-waiting" else bound)
            if count > len(pending):
                return
            lacking += pending[: max(0, count)]
        has_started = self._has_started(group, where)
        if lacking and not has_started:
            yield lacking
        elif has_started and job.policy != "only-waiting":
            for each in group:
                yield from ([cores] for name, cores in each.members.items() if not where[name])

    def _has_started(self, group: list[Job], where: dict[str, str]) -> bool:
        """Whether members come one by one."""
        if not group[0].group:
            return True
        if group[0].policy == "once-satisfied":
            [profile] = self.stage.scheduler.profiles.values()
            plugin = next(each for each in profile.plugins if isinstance(each, Coscheduling))
            gang = plugin.rounds.cache.get(f"default/{group[0].name}")
            return gang is not None and gang.group.once_satisfied
        return all(sum(bool(where[name]) for name in each.members) >= each.minimum for each in group)

    def _fits(self, job: Job, wanted: list[int], where: dict[str, str]) -> bool:
        """Whether so many cores are free, or in the hands of less important pods."""
        own = {name for each in job.group or [job.name] for name in self.jobs[each].members}
        room = dict(self._cores)
        for name, node_name in where.items():
            other = self._about[name]
            is_spared = bool(other.marks) if job.group else labels.DISABLE_PREEMPTIBLE in other.marks
            stays = other.value >= job.value or is_spared or name in own
            if node_name and stays:
                room[node_name] -= other.members[name]
        for cores in sorted(wanted, reverse=True):
            fitting = next((name for name, free in room.items() if free >= cores), None)
            if fitting is None:
                return False
            room[fitting] -= cores
        return True

    def _check_not_in_vain(self, since_s: float, where: dict[str, str]) -> None:
        lately = [each for each in self.departures if each.at_s >= since_s and each.name in self.evicted]
        for gone in lately:
            names = [each.removeprefix("default/") for each in gone.group.split(",")]
            group = [self.jobs[name] for name in names if name in self.jobs]
            if not gone.group or not group:
                continue
            counts = {each.name: sum(bool(where[name]) for name in each.members) for each in group}
            runs = all(counts[each.name] >= each.minimum for each in group)
            suffered = any(other.priority == group[0].value for other in lately)
            assert runs or suffered, f"{gone} went in vain: {counts}"

    async def _check_restart(self) -> None:
        """Another scheduler that begins now comes to know all that this one knows."""
        fresh = Scheduler(self.stage.api, with_moments(), plugins=self.stage.plugins())
        async with fresh.following():
            found = differences(self.stage.scheduler, fresh, [pod("probe")])
        assert not found, found


async def live(
    stage: Stage,
    seed: int,
    faults: Faults,
    *,
    death_ratio: float,
    unrest_s: float,
    settle_s: float,
    calm_s: float,
) -> "Contest":
    """One whole story: unrest, then the faults end, and in the end everything is at rest."""
    contest = Contest(stage, seed)
    await contest.begin()
    deaths = random.Random(f"deaths {seed}")

    def moment(what: str) -> None:
        kind, _, name = what.partition(" ")
        if kind == "permit":
            contest.room_is_kept(name)
        if deaths.random() < death_ratio:
            contest.log.append(f"{contest.now_s:.2f} dies {what}")
            stage.cut()

    stage.moment = moment
    stage.faults = faults
    try:
        await stage.start()
        while contest.now_s < unrest_s:
            await contest.act()
            if stage.line.is_cut:
                await stage.bury()
                await stage.start()
            for _ in range(contest.rng.randint(1, 8)):
                await contest.check_step()
                await asyncio.sleep(contest.rng.uniform(0.0, 0.6))
        death_ratio = 0.0
        if stage.line.is_cut:
            await stage.bury()
            await stage.start()
        stage.heal()
        contest.log.append(f"{contest.now_s:.2f} calm")
        calm_since_s = contest.now_s + BACKOFF_S_MAX
        await asyncio.sleep(settle_s)
        await contest.check_rest(calm_since_s)
        before, count = stage.attempts(), len(contest.evicted)
        await asyncio.sleep(calm_s)
        await contest.check_rest(calm_since_s)
        assert len(contest.evicted) == count, "evictions go on for ever"
        pending = sum(not each.spec.node_name for each in (await stage.api.list(Pod)).items)
        attempts = stage.attempts() - before
        assert attempts <= 40 * pending, f"{attempts} attempts of {pending} pending pods"
    except AssertionError:
        print("\n".join(contest.log))
        await contest.print_state()
        raise
    finally:
        await contest.end()
    return contest
