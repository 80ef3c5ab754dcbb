"""Make the arrays of a plan of what a descheduler sees: nodes by the limits of LowNodeLoad, pods that its profile lets
go, and how many of them may move by disruption budgets, workloads and the limits of a cycle."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import labels, pod_resources
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.meta import controller_of
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.priority import PriorityClass, default
from koordinator.api.quantity import NANO
from koordinator.api.resources import CPU
from koordinator.descheduler import facts, plan, pod_filter
from koordinator.descheduler.config.low_node_load import LowNodeLoadArgs, NodePool, pools
from koordinator.descheduler.config.migration import MigrationControllerArgs
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.migration.gates import Workload, WorkloadOf, workload_limits
from koordinator.descheduler.migration.jobs import is_open, pod_key
from koordinator.descheduler.migration.reservation_template import target_of
from koordinator.descheduler.plan import PlanNodes, PlanPods
from koordinator.descheduler.plugin import CycleLimits
from koordinator.descheduler.plugins.low_node_load import usage
from koordinator.descheduler.plugins.low_node_load.usage import PODS, Classified, NodeUtilization

UNLIMITED = 1 << 62
"""The limit of a resource that no threshold is about."""
COOL_DOWN_S = 600.0
"""Time for which the moves of a workload bind its pods, so that none goes back: twice the time for which a NodeMetric
averages."""
SWAP_NODES = 32
"""Nodes with most room, by resource, whose pods are looked at for swaps; pods of all nodes would take too long."""
PROD = "prod "
"""Before the name of a resource: what prod pods use of it, which has limits of its own."""


class PlanRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for pods: `refusal` says why one stays, the others say how many may go. `jobs` are remembered moves;
    `left` are nodes to which pods of a controller (by UID) do not come back either."""

    refusal: Callable[[Pod], str]
    budgets: Sequence[PodDisruptionBudget]
    workload_of: WorkloadOf
    migration: MigrationControllerArgs
    limits: CycleLimits
    jobs: Sequence[PodMigrationJob]
    left: Sequence[tuple[str, str]] = ()


class PlanInput(msgspec.Struct, frozen=True, eq=False):
    """Everything that `plan.find` asks for. `resources` names the columns, `chosen` are the pods by number, `replicas`
    and `workloads` tell of the workloads by number, `refused` says by pod what keeps it on its node."""

    resources: tuple[str, ...]
    nodes: PlanNodes
    pods: PlanPods
    left: Mapping[str, int]
    chosen: tuple[Pod, ...]
    workloads: tuple[str, ...]
    replicas: tuple[int, ...]
    refused: Mapping[str, str]


def gather(
    seen: Observation,
    found: Sequence[Classified],
    rules: PlanRules,
    *,
    sources: Container[str] | None = None,
    also: Collection[str] = (),
    most: int | None = None,
) -> PlanInput:
    """Return the arrays, with the pods of the hottest nodes (`most`, None: all that are hot), of those that have most
    room for swaps, and of the nodes `also`.

    `found` are the pools, see `classified`; `sources` the nodes that are cooled, None: all. Nodes without fresh
    measurements are neither sources nor targets, as they are in no pool.
    """
    names = tuple(dict.fromkeys(name for each in found for name in each.filled.names))
    resources = (*names, *(PROD + name for name in names))
    loads = {load.name: load for each in found for load in each.loads}
    index = {name: row for row, name in enumerate(loads)}
    # By columns, in which what is asked of all nodes at once is several times as fast.
    limit = np.full((len(loads), len(resources)), UNLIMITED, np.int64, order="F")
    used = np.zeros_like(limit)
    is_in = np.zeros((len(loads), len(found)), np.bool_)
    for number, pool in enumerate(found):
        rows = np.array([index[load.name] for load in pool.loads], np.intp)
        columns = np.array([resources.index(name) for name in pool.filled.names], np.intp)
        is_in[rows, number] = True
        parts = ((0, pool.usage, pool.limits.high), (len(names), pool.prod_usage, pool.limits.prod_high))
        for first, amounts, limits in parts:
            where = np.ix_(rows, columns + first)
            used[where] = amounts
            limit[where] = np.minimum(limit[where], limits)
    used += _since(seen, loads, resources, rules.jobs)
    takes = np.array([not load.node.spec.unschedulable for load in loads.values()], np.bool_)
    gives = np.array([sources is None or name in sources for name in loads], np.bool_)
    nodes = PlanNodes(tuple(loads), used, limit, gives, takes, is_in)
    interesting = _rows_of_interest(nodes, [index[name] for name in also if name in index], most)
    return _with_pods(seen, list(loads.values()), interesting, nodes, resources, rules)


def classified(seen: Observation, args: LowNodeLoadArgs) -> list[tuple[NodePool, Classified]]:
    """Return each pool that has limits and the nodes of it that are measured, with usage and limits."""
    found = []
    for pool in pools(args):
        if not pool.high_thresholds and not pool.prod_high_thresholds:
            continue
        nodes = usage.pool_nodes(pool, seen.nodes, frozenset())
        found.append((pool, usage.measure(pool, nodes, seen, args.node_metric_expiration_seconds)))
    return found


# What reports do not know yet


def _since(
    seen: Observation,
    loads: Mapping[str, NodeUtilization],
    resources: tuple[str, ...],
    jobs: Iterable[PodMigrationJob],
) -> plan.I64:
    """Return (nodes, resources) what has changed since nodes were measured: pods that left are not there any more,
    pods that came count by their requests, and pods on their way count where they go."""
    change = np.zeros((len(loads), len(resources)), np.int64)
    index = {name: row for row, name in enumerate(loads)}
    on_way = {pod_key(job): target_of(job) for job in jobs if is_open(job)}
    for row, load in enumerate(loads.values()):
        known, measured = load.pod_usage.keys(), 0
        for pod in load.pods:
            key = pod.key
            if key not in known:
                change[row] += _requested(pod, resources)
                continue
            measured += 1
            if key in on_way:
                leaves, arrives = _amounts(load, pod, resources)
                change[row] -= leaves
                if (target := index.get(on_way[key])) is not None:
                    change[target] += arrives
        if measured < len(known):
            for key in known - {pod.key for pod in load.pods}:
                change[row] -= [load.pod_usage[key].get(name, 0) // usage.unit(name) for name in resources]
    return change


def _requested(pod: Pod, resources: Iterable[str]) -> list[int]:
    """Return what a pod may use of which nothing is measured yet: as much as it requests."""
    amounts = pod_resources.requests(pod)
    is_prod = default(pod) is PriorityClass.PROD
    found = []
    for column in resources:
        name = column.removeprefix(PROD)
        amount = amounts.get(name) if is_prod or name == column else None
        found.append(0 if amount is None else amount.milli if name == CPU else amount.value)
    return found


# Pods


def _rows_of_interest(nodes: PlanNodes, also: Iterable[int], most: int | None) -> list[int]:
    """Return rows whose pods may move: hot ones first, then by resource those that have most room."""
    hot = [row for row in plan.hot_rows(nodes, nodes.used) if nodes.gives[row]][:most]
    found = dict.fromkeys([*hot, *also])
    if hot:
        part = nodes.used / np.maximum(nodes.limit, 1)
        part[~nodes.takes] = np.inf
        for column in range(part.shape[1]):
            found |= dict.fromkeys(np.argsort(part[:, column], kind="stable")[:SWAP_NODES].tolist())
    return list(found)


def _with_pods(
    seen: Observation,
    loads: Sequence[NodeUtilization],
    rows: Iterable[int],
    nodes: PlanNodes,
    resources: tuple[str, ...],
    rules: PlanRules,
) -> PlanInput:
    past, books = _past(seen, rules.jobs), _Books(rules)
    refused: dict[str, str] = {}
    chosen: list[tuple[int, Pod]] = []
    groups: list[tuple[str, ...]] = []
    for row in rows:
        load = loads[row]
        for pod in load.pods:
            why = "" if pod.key in load.pod_usage else "nothing is measured of it"
            why = why or rules.refusal(pod) or past.rest_of(pod)
            own = () if why else books.groups(pod)
            if why := why or plan.used_up(own, books.left):
                refused[pod.key] = why
            else:
                chosen.append((row, pod))
                groups.append(own)
    index = {name: row for row, name in enumerate(nodes.names)}
    amounts = [_amounts(loads[row], pod, resources) for row, pod in chosen]
    shape = (len(chosen), len(resources))
    importance = [facts.importance(pod) for _, pod in chosen]
    rank = {one: number for number, one in enumerate(sorted(set(importance)))}
    pods = PlanPods(
        keys=tuple(pod.key for _, pod in chosen),
        rows=np.array([row for row, _ in chosen], np.intp),
        leaves=np.array([leaves for leaves, _ in amounts], np.int64).reshape(shape),
        arrives=np.array([arrives for _, arrives in amounts], np.int64).reshape(shape),
        rank=np.array([rank[one] for one in importance], np.int64),
        workloads=np.array([books.workload(pod) for _, pod in chosen], np.int64),
        groups=tuple(groups),
        history=tuple(
            (number, index.get(source, -1), index.get(target, -1))
            for owner, source, target in (*past.moves, *((*each, "") for each in rules.left))
            if (number := books.numbers.get(owner)) is not None
        ),
    )
    workloads, replicas = tuple(books.names), tuple(books.replicas)
    whole = tuple(pod for _, pod in chosen)
    return PlanInput(resources, nodes, pods, books.left, whole, workloads, replicas, refused)


def _amounts(load: NodeUtilization, pod: Pod, resources: Iterable[str]) -> tuple[list[int], list[int]]:
    """Return what a pod uses, rounded down (it leaves a node by so much) and up (it may need so much)."""
    own = {**load.pod_usage[pod.key], PODS: NANO}
    is_prod = default(pod) is PriorityClass.PROD
    down, up = [], []
    for column in resources:
        name = column.removeprefix(PROD)
        nanos = own.get(name, 0) if is_prod or name == column else 0
        down.append(nanos // usage.unit(name))
        up.append(usage.rounded_up(name, nanos))
    return down, up


# Ping-pong


class _Past(msgspec.Struct, frozen=True):
    """The moves within the cool-down: workloads (uid of the controller) that stay, since a pod is on its way or nobody
    knows where it was, and (workload, source, target) of the others."""

    resting: set[str]
    moves: list[tuple[str, str, str]]

    def rest_of(self, pod: Pod) -> str:
        """Return why the pod stays where it is; empty when earlier moves do not keep it."""
        owner = controller_of(pod)
        is_resting = owner is not None and owner.uid in self.resting
        return "its workload was moved a short time ago" if is_resting else ""


def _past(seen: Observation, jobs: Iterable[PodMigrationJob]) -> _Past:
    known: dict[str, PodMigrationJob] = {}
    for job in jobs:
        made = job.metadata.creation_timestamp
        ref = job.spec.pod_ref if is_open(job) else job.status.pod_ref
        is_recent = is_open(job) or (made and seen.now_s - clock.parse_rfc3339(made) < COOL_DOWN_S)
        if ref is not None and is_recent:
            known[f"{ref.namespace}/{ref.name}"] = job
    past = _Past(set(), [])
    for pod in _pods(seen, known):
        if (owner := controller_of(pod)) is None:
            continue
        job = known[pod.key]
        source = job.metadata.annotations.get(labels.JOB_SOURCE_NODE, "")
        if is_open(job) or not source:
            past.resting.add(owner.uid)
        else:
            past.moves.append((owner.uid, source, pod.spec.node_name))
    return past


def _pods(seen: Observation, keys: Collection[str]) -> Iterable[Pod]:
    if keys:
        for node in seen.nodes:
            yield from (pod for pod in seen.pods_of[node.metadata.name] if pod.key in keys)


# Limits


class _Books:
    """Workloads by number, and the limits that pods count against."""

    def __init__(self, rules: PlanRules) -> None:
        self.left: dict[str, int] = {}
        self.names: list[str] = []
        self.replicas: list[int] = []
        self._rules = rules
        self.numbers: dict[str, int] = {}
        """By the UID of the controller, of pods that were asked about."""
        self._budgets: dict[str, list[tuple[str, Callable[[Pod], bool]]]] = {}
        for each in rules.budgets:
            key = f"disruption budget {each.key}"
            self.left[key] = max(each.status.disruptions_allowed, 0)
            if each.spec.selector is not None:  # without one it covers nobody, unlike an empty one
                matches = pod_filter.matches_labels(each.spec.selector)
                self._budgets.setdefault(each.metadata.namespace, []).append((key, matches))
        if rules.limits.total is not None:
            self.left["maxNoOfPodsToEvictTotal"] = rules.limits.total

    def workload(self, pod: Pod) -> int:
        """Return the number of the pod's workload; a pod without one is a workload of its own."""
        owner = controller_of(pod)
        key = owner.uid if owner is not None else pod.key
        if key not in self.numbers:
            name = pod.key if owner is None else f"{pod.metadata.namespace}/{owner.kind}/{owner.name}"
            found = None if owner is None else self._rules.workload_of(pod.metadata.namespace, owner)
            self.numbers[key] = len(self.names)
            self.names.append(name)
            self.replicas.append(1 if owner is None else 0 if found is None else found.replicas)
            if owner is not None:
                self.left[f"workload {name}"] = 0 if found is None else self._allowed(found)
        return self.numbers[key]

    def groups(self, pod: Pod) -> tuple[str, ...]:
        """Return the limits that the pod counts against, by name."""
        names = [f"workload {self.names[self.workload(pod)]}", "maxNoOfPodsToEvictTotal"]
        names += [key for key, matches in self._budgets.get(pod.metadata.namespace, ()) if matches(pod)]
        limits = self._rules.limits
        for key, most in (
            (f"maxNoOfPodsToEvictPerNode of {pod.spec.node_name}", limits.per_node),
            (f"maxNoOfPodsToEvictPerNamespace of {pod.metadata.namespace}", limits.per_namespace),
        ):
            if most is not None:
                self.left.setdefault(key, most)
                names.append(key)
        return tuple(names)

    def _allowed(self, found: Workload) -> int:
        """Return how many pods of a workload may be on their way: by both limits, what is unavailable counted."""
        try:
            migrating, unavailable = workload_limits(self._rules.migration, found.replicas)
        except ProtocolError:  # the gates refuse each of its pods for it, and say so
            return 0
        return max(min(migrating, unavailable - len(found.unavailable)), 0)
