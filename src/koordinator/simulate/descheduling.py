"""Work out on a dump what a descheduler would best move: a plan that is proven by the scheduler, and its report.

The descheduler's own caches, filters and limits say which pods may go, the scheduler's own evaluation says where.
"""

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from koordinator.api import kinds
from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import Deployment, ReplicaSet, ReplicationController, StatefulSet
from koordinator.api.errors import KoordinatorError
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.label_selector import compile_selector
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster
from koordinator.descheduler import plan as plans
from koordinator.descheduler.config.low_node_load import LowNodeLoadArgs
from koordinator.descheduler.configuration import DeschedulerConfig
from koordinator.descheduler.cycle import Profile
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plan import Move, Plan, Rows
from koordinator.descheduler.plan_input import UNLIMITED, PlanInput, PlanRules, classified, gather
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.descheduler.plugins.low_node_load.cycle import LowNodeLoad
from koordinator.descheduler.plugins.low_node_load.planned import refusal_of
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.tries import Rehearsal
from koordinator.simulate import dump as dumps
from koordinator.simulate.dump import Dump, DumpSnapshot

VIEWS: tuple[type[Object], ...] = (
    ReplicaSet, Deployment, StatefulSet, ReplicationController,
    NodeMetric, PodDisruptionBudget, PodMigrationJob, Reservation,
)  # fmt: skip
"""Objects that the descheduler's part of a plan reads, besides nodes and pods."""


class PlanError(KoordinatorError, ValueError):
    """There is nothing to plan by."""


class PlanMove(msgspec.Struct, frozen=True, rename="camel"):
    """One pod that moves. Moves with the same `step` belong together: two that change places."""

    pod: str
    uid: str
    workload: str
    source: str
    target: str
    step: int


class ResourceHeat(msgspec.Struct, frozen=True, rename="camel"):
    """Use of a resource (milli-cores of cpu, else units), and the limit above which a node is hot."""

    before: int
    after: int
    limit: int


class HotNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node that is hot now. `why` and what follow are empty unless it stays hot: `excess` is what is too much when
    nothing more can be moved, `pod` the one whose move would help most and `needs` what it would have to find."""

    node: str
    resources: dict[str, ResourceHeat]
    is_cooled: bool
    why: str = ""
    excess: dict[str, int] = {}
    pod: str = ""
    needs: dict[str, int] = {}


class Disruption(msgspec.Struct, frozen=True, rename="camel"):
    """The number of pods of a workload that move, and how many it has."""

    workload: str
    moves: int
    replicas: int


class PlanReport(msgspec.Struct, frozen=True, rename="camel"):
    """The plan. `nodes` have fresh measurements; `unmeasured` are those that take part without, and so stay out.

    `not_movable` counts pods of hot nodes by what keeps them.
    """

    time_s: float
    nodes: int
    unmeasured: int
    hot_before: int
    hot_after: int
    moves: list[PlanMove]
    hot: list[HotNode]
    workloads: list[Disruption]
    not_movable: dict[str, int]


class Destinations:
    """Answers where pods of a plan would go: the scheduler's own choice among nodes, after all earlier moves.

    To be used as a context; within, the engine's table has the moves on it.

    `uids` and `nodes` are those of the plan by number. Columns that depend on the time must be current.
    """

    def __init__(self, engine: Engine, uids: Sequence[str], nodes: Sequence[str]) -> None:
        self._engine = engine
        self._nodes = nodes
        self._uids = uids
        self._moves: tuple[tuple[int, int], ...] = ()
        """(pod, target) of what is on the table."""
        self._rehearsal = Rehearsal(engine)

    def __enter__(self) -> Self:
        self._rehearsal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rehearsal.__exit__(kind, error, trace)

    def place(self, pod: int, rows: Rows, moves: Sequence[Move]) -> int | str:
        """Return which of `rows` (nodes,) the scheduler chooses for a pod, or why it takes none; see `plan.Place`."""
        wanted = tuple((move.pod, move.target) for move in moves)
        if wanted != self._moves or self._rehearsal.is_spoiled:
            self._begin_anew(wanted)
        named: dict[str, int] = {self._nodes[row]: row for row in rows.tolist()}
        found = self._rehearsal.move(self._uids[pod], named)
        if not found.node:
            return found.why
        self._moves = (*self._moves, (pod, named[found.node]))
        return named[found.node]

    def _begin_anew(self, moves: tuple[tuple[int, int], ...]) -> None:
        self._rehearsal.__exit__(None, None, None)
        self._rehearsal = Rehearsal(self._engine).__enter__()
        self._moves = moves
        for pod, target in moves:
            found = self._rehearsal.move(self._uids[pod], (self._nodes[target],))
            assert found.node, (self._uids[pod], self._nodes[target], found.why)


class Situation(msgspec.Struct, frozen=True, eq=False):
    """Everything that a plan for a dump is made of: the scheduler's view, the descheduler's, and the arrays."""

    found: DumpSnapshot
    seen: Observation
    given: PlanInput

    def destinations(self) -> Destinations:
        """Return the scheduler's answers to the plan's questions."""
        uids = [pod.metadata.uid for pod in self.given.chosen]
        return Destinations(self.found.engine, uids, self.given.nodes.names)


async def plan(
    dump: Dump, scheduler: SchedulerConfig, descheduler: DeschedulerConfig, seed: int = 0
) -> PlanReport:
    """Return the plan for what the dump shows. Raises: PlanError, DumpError, ConfigError, ProtocolError."""
    situation = await _situation(dump, scheduler, descheduler, seed)
    given = situation.given
    with situation.destinations() as destinations:
        result = plans.find(given.nodes, given.pods, given.left, destinations.place)
    return _report(situation, result)


async def check(
    dump: Dump,
    scheduler: SchedulerConfig,
    descheduler: DeschedulerConfig,
    wanted: Sequence[PlanMove],
    seed: int = 0,
) -> list[str]:
    """Return by move of an older plan why it cannot be made now, after those before it; empty where it can.

    Raises: PlanError, DumpError, ConfigError, ProtocolError.
    """
    also = {node for move in wanted for node in (move.source, move.target)}
    situation = await _situation(dump, scheduler, descheduler, seed, also)
    given = situation.given
    rows = {name: row for row, name in enumerate(given.nodes.names)}
    numbers = {pod.metadata.uid: number for number, pod in enumerate(given.chosen)}
    found = [_staleness(move, situation, numbers, rows) for move in wanted]
    moves = [
        Move(numbers[move.uid], rows[move.source], rows[move.target], move.step, rows[move.source])
        for move, why in zip(wanted, found, strict=True)
        if not why
    ]
    with situation.destinations() as destinations:
        replayed = iter(plans.replay(given.nodes, given.pods, given.left, destinations.place, moves))
    return [why or next(replayed) for why in found]


def _staleness(
    move: PlanMove, situation: Situation, numbers: Mapping[str, int], rows: Mapping[str, int]
) -> str:
    """Return what has changed since a move was planned, so that it cannot even be looked at."""
    pod = situation.found.pods.get(move.pod)
    if pod is None:
        return "it is gone"
    if pod.metadata.uid != move.uid:
        return "another pod has its name now"
    if pod.spec.node_name != move.source:
        return f"it runs on {pod.spec.node_name or 'no node'} now, not on {move.source}"
    for node in (move.source, move.target):
        if node not in rows:
            return f"{node} takes no part: it is gone, not ready, or has no fresh NodeMetric"
    if move.uid not in numbers:
        return situation.given.refused.get(move.pod, "it has ended")
    return ""


async def _situation(
    dump: Dump,
    scheduler: SchedulerConfig,
    descheduler: DeschedulerConfig,
    seed: int,
    also: Collection[str] = (),
) -> Situation:
    found = dumps.snapshot(dump, scheduler, seed=seed)
    found.engine.refresh(found.now_s)
    cluster = await _cluster(dump, found)
    made = Descheduler(cluster, descheduler, installed_plugins(), rng=random.Random(seed))
    profile, args = _balancing(made)
    budgets = made.caches.factory.informer(PodDisruptionBudget)
    async with made.following():
        await profile.prepare()
        matches = compile_selector(descheduler.node_selector or LabelSelector())
        seen = made.caches.observe(found.now_s, matches)
        seen = msgspec.structs.replace(
            seen, nodes=[node for node in seen.nodes if profile.takes_part(node.metadata.labels)]
        )
        rules = PlanRules(
            refusal=refusal_of(args, profile.refusal),
            budgets=list(budgets.objects.values()),
            workload_of=made.migration.workloads.of,
            migration=made.migration.args,
            limits=descheduler.limits,
            jobs=list(made.caches.jobs.objects.values()),
        )
        pools = [pool for _, pool in classified(seen, args)]
        return Situation(found, seen, gather(seen, pools, rules, also=also))


async def fetch(cluster: Cluster, scheduler: SchedulerConfig) -> Dump:
    """Return what a plan looks at of a running cluster; kinds that it does not serve are left out. Raises: ApiError."""
    return await dumps.fetch(cluster, dict.fromkeys((*dumps.views_of(scheduler), *VIEWS)))


async def _cluster(dump: Dump, found: DumpSnapshot) -> MemoryCluster:
    """Return a cluster with the dump's objects as they are."""
    backend = registry.in_memory(FixedClock(found.now_s), checks=False)
    cluster = MemoryCluster(backend)
    await local.install(cluster)
    for group, kind, namespace, name, obj in dump.objects():
        resource = kinds.by_kind(group, kind)
        if resource is not None:
            backend.store.table(resource.qualified).put(namespace if resource.namespaced else "", name, obj)
    return cluster


def _balancing(made: Descheduler) -> tuple[Profile, LowNodeLoadArgs]:
    """Return the first profile that has LowNodeLoad, and its arguments. Raises: PlanError."""
    for config, profile in zip(made.config.profiles, made.profiles, strict=True):
        if LowNodeLoad.name in profile.plugins:
            return profile, LowNodeLoad.read(config.raw_args(LowNodeLoad.name))
    raise PlanError(
        "the descheduler's configuration has no profile with LowNodeLoad under plugins.balance.enabled: "
        "its thresholds say when a node is hot"
    )


def _report(situation: Situation, result: Plan) -> PlanReport:
    given, seen = situation.given, situation.seen
    nodes, pods = given.nodes, given.pods
    moves = [
        PlanMove(
            pods.keys[move.pod],
            given.chosen[move.pod].metadata.uid,
            given.workloads[int(pods.workloads[move.pod])],
            nodes.names[move.source],
            nodes.names[move.target],
            move.step,
        )
        for move in result.moves
    ]
    hot = plans.hot_rows(nodes, nodes.used)
    counts = Counter(int(pods.workloads[move.pod]) for move in result.moves)
    on_hot = [pod.key for row in hot for pod in seen.pods_of[nodes.names[row]]]
    return PlanReport(
        time_s=situation.found.now_s,
        nodes=len(nodes.names),
        unmeasured=len(seen.nodes) - len(nodes.names),
        hot_before=len(hot),
        hot_after=len(plans.hot_rows(nodes, result.used)),
        moves=moves,
        hot=[_hot_node(given, result, row) for row in hot],
        workloads=[
            Disruption(given.workloads[number], count, given.replicas[number])
            for number, count in counts.most_common()
        ],
        not_movable=dict(Counter(given.refused[key] for key in on_hot if key in given.refused).most_common()),
    )


def _hot_node(given: PlanInput, result: Plan, row: int) -> HotNode:
    nodes = given.nodes
    heat = {
        name: ResourceHeat(
            int(nodes.used[row, column]), int(result.used[row, column]), int(nodes.limit[row, column])
        )
        for column, name in enumerate(given.resources)
        if nodes.limit[row, column] != UNLIMITED
    }
    stuck = next((each for each in result.stuck if each.row == row), None)
    if stuck is None:
        return HotNode(nodes.names[row], heat, is_cooled=True)
    pod = stuck.pod
    needs = {} if pod < 0 else _amounts(given, given.pods.arrives[pod])
    key = "" if pod < 0 else given.pods.keys[pod]
    return HotNode(nodes.names[row], heat, False, stuck.why, _amounts(given, stuck.excess), key, needs)


def _amounts(given: PlanInput, amounts: plans.I64) -> dict[str, int]:
    pairs: Mapping[str, int] = dict(zip(given.resources, amounts.tolist(), strict=True))
    return {name: amount for name, amount in pairs.items() if amount}
