"""Controller `tidalpool`: carries out what a pass over a pool decides. Source: behaviour/tidal 4, gate TidalPool.

A pool is looked at every `PERIOD_S`, and soon after its nodes change. All that must outlive a restart is in its status
and in the marks of nodes; the window of a load rule begins anew.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import labels, pod_labels
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.tidal_pool import TidalPool
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.manager.parts import ManagerContext
from koordinator.manager.tidal import marks as node_marks
from koordinator.manager.tidal import proof, survey
from koordinator.manager.tidal import status as pool_status
from koordinator.manager.tidal.drain import Drain, DrainAction, MigratePod, NotifyPod
from koordinator.manager.tidal.emergency import HOLD_S
from koordinator.manager.tidal.membership import Membership
from koordinator.manager.tidal.nodes import TidalNode, TidalPhase, total
from koordinator.manager.tidal.policy import PoolPolicy, policy_of
from koordinator.manager.tidal.pool_pass import CostChange, PoolMemory, PoolPass, PoolPlaces, look
from koordinator.manager.tidal.target import LoadHistory

log = logging.getLogger(__name__)

PERIOD_S = 10.0
SOON_S = 1.0
"""Changes come in droves: a pool is looked at so long after the first."""
WRITES_MAX = 200
"""Marks and deletion costs written per pass: the next one goes on at once."""
TURN = 64
"""Nodes looked at before others get their turn: some 10 ms."""
REFUSED_S = 60.0
"""A node that the scheduler refused to lend is asked about again after that."""
UNSEEN_S = 10.0
"""Our own write is waited for so long before a pass goes on without having seen it."""
DEFAULT = TidalPool()
"""Stands for a pool that is gone."""
TARGET, DRAINED, BLOCKED, EMERGENCY, LEAVING = "target", "drained", "blocked", "emergency", "leaving"
"""Causes of changes, as the metrics name them."""

_BY_NODE, _PENDING, _BY_POD, _BY_NAMESPACE = "tidal node", "tidal pending", "tidal pod", "tidal namespace"


def _node_of(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _pending(pod: Pod) -> Iterable[str]:
    return (_PENDING,) if pod_labels.is_unschedulable(pod) else ()


def _pod_of(job: PodMigrationJob) -> Iterable[str]:
    return (job.spec.pod_ref.uid,) if job.spec.pod_ref.uid else ()


def _namespace_of(budget: PodDisruptionBudget) -> Iterable[str]:
    return (budget.metadata.namespace,)


class _Caches:
    """The objects that passes look at; nodes with their pods are kept until one of them changes."""

    def __init__(self, shared: ManagerContext) -> None:
        factory = shared.factory
        self.pools = factory.informer(TidalPool)
        self.nodes = factory.informer(Node)
        self.pods = factory.informer(Pod)
        self.jobs_seen = factory.informer(PodMigrationJob)
        self.budgets_seen = factory.informer(PodDisruptionBudget)
        self.pods.add_index(_BY_NODE, _node_of)
        self.pods.add_index(_PENDING, _pending)
        self.jobs_seen.add_index(_BY_POD, _pod_of)
        self.budgets_seen.add_index(_BY_NAMESPACE, _namespace_of)
        self._surveyed: dict[str, tuple[PoolPolicy, TidalNode]] = {}

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def survey(self, name: str, policy: PoolPolicy) -> TidalNode | None:
        known = self._surveyed.get(name)
        if known is not None and known[0] is policy:
            return known[1]
        node = self.nodes.get(name)
        if node is None:
            return None
        found = survey.survey_node(node, self.pods.by_index(_BY_NODE, name), policy)
        self._surveyed[name] = (policy, found)
        return found

    async def survey_all(self, names: Sequence[str], policy: PoolPolicy) -> None:
        """Look at nodes ahead of a pass, in turns: the first pass over a large pool knows none of them."""
        for number, name in enumerate(names, 1):
            self.survey(name, policy)
            if number % TURN == 0:
                await asyncio.sleep(0)

    def pending(self) -> Sequence[Pod]:
        return self.pods.by_index(_PENDING, _PENDING)

    def jobs(self, pod_uid: str) -> Sequence[PodMigrationJob]:
        return self.jobs_seen.by_index(_BY_POD, pod_uid)

    def budgets(self, namespace: str) -> Sequence[PodDisruptionBudget]:
        return self.budgets_seen.by_index(_BY_NAMESPACE, namespace)

    def forget(self, node: str) -> None:
        """Look at a node anew."""
        self._surveyed.pop(node, None)


class _Kept:
    """The memory of a pool between passes."""

    def __init__(self, pool: TidalPool, policy: PoolPolicy) -> None:
        self.generation = (pool.metadata.uid, pool.metadata.generation)
        self.policy = policy
        self.history = LoadHistory()
        self.name = pool.metadata.name
        self.hold_until_s = 0.0
        self.checked_s: float | None = None
        self.refused: dict[str, tuple[str, float]] = {}
        """Nodes whose pods the scheduler would not place elsewhere: why, and until when that counts."""


class TidalPoolController(ControllerLoop):
    """Marks nodes, has them emptied, and tells how far that is."""

    def __init__(self, shared: ManagerContext) -> None:
        self._cluster = shared.cluster
        self._prove = shared.prove
        self._events = shared.events
        self._metrics = shared.metrics.tidal
        self._caches = _Caches(shared)
        self._controller: Controller[str] = Controller("tidalpool", self._reconcile)
        shared.metrics.queues.watch("tidalpool", self._controller.queue)
        self._membership = Membership(self._wake)
        self._kept: dict[str, _Kept] = {}
        self._unseen: dict[str, tuple[str, float]] = {}
        """Versions of nodes that we wrote and have not seen, and when."""
        caches = self._caches
        caches.pools.add_handler(self._on_pool, self._on_pool_changed, self._on_pool_gone)
        caches.nodes.add_handler(self._on_node, lambda _, node: self._on_node(node), self._on_node_gone)
        caches.pods.add_handler(self._on_pod, self._on_pod_changed, self._on_pod)
        self._informers = [caches.pools, caches.nodes, caches.pods, caches.jobs_seen, caches.budgets_seen]

    def _wake(self, pool: str) -> None:
        self._controller.queue.add_after(pool, SOON_S)

    # What changes

    def _on_pool(self, pool: TidalPool) -> None:
        name = pool.metadata.name
        if pool.metadata.deletion_timestamp is not None:
            self._membership.drop(name)
        elif (policy := self._policy(pool)) is not None:
            self._membership.select(pool, policy.selects)
        self._controller.queue.add(name)

    def _on_pool_changed(self, old: TidalPool, new: TidalPool) -> None:
        """Most changes are our own reports."""
        before, after = old.metadata, new.metadata
        if old is new or (before.generation, before.deletion_timestamp) != (
            after.generation,
            after.deletion_timestamp,
        ):
            self._on_pool(new)

    def _on_pool_gone(self, pool: TidalPool) -> None:
        self._kept.pop(pool.metadata.name, None)
        self._membership.drop(pool.metadata.name)
        self._controller.queue.add(pool.metadata.name)

    def _on_node(self, node: Node) -> None:
        name = node.metadata.name
        self._caches.forget(name)
        if name in self._unseen and self._unseen[name][0] == node.metadata.resource_version:
            del self._unseen[name]
        self._membership.put(node)

    def _on_node_gone(self, node: Node) -> None:
        self._caches.forget(node.metadata.name)
        self._unseen.pop(node.metadata.name, None)
        self._membership.remove(node.metadata.name)

    def _on_pod(self, pod: Pod) -> None:
        node = pod.spec.node_name
        if not node:
            return
        self._caches.forget(node)
        pool = self._membership.pool_of(node)
        found = self._caches.nodes.get(node) if pool else None
        if found is not None and labels.TIDAL_PHASE in found.metadata.labels:
            is_moving = found.metadata.labels[labels.TIDAL_PHASE].startswith("to-")
            if is_moving:
                self._wake(pool)

    def _on_pod_changed(self, old: Pod, new: Pod) -> None:
        if old is not new:
            self._on_pod(new)

    # A pass

    def _policy(self, pool: TidalPool) -> PoolPolicy | None:
        """Return the policy of this version of a pool; None when it cannot be read, which users are told."""
        name = pool.metadata.name
        known = self._kept.get(name)
        if known is not None and known.generation == (pool.metadata.uid, pool.metadata.generation):
            return known.policy
        try:
            policy = policy_of(pool)
        except ProtocolError:
            return None
        kept = self._kept[name] = _Kept(pool, policy)
        if known is not None:
            kept.hold_until_s, kept.checked_s = known.hold_until_s, known.checked_s
        return policy

    async def _reconcile(self, name: str) -> float | None:
        now_s = self._cluster.clock.now()
        if self._awaits(name, now_s):
            return SOON_S
        pool = self._caches.pools.get(name)
        if pool is None or pool.metadata.deletion_timestamp is not None:
            return await self._end(name, pool, now_s)
        policy = self._policy(pool)
        if policy is None:
            await self._report_invalid(pool, now_s)
            return None
        if labels.TIDAL_FINALIZER not in pool.metadata.finalizers:
            await self._set_finalizers(pool, [*pool.metadata.finalizers, labels.TIDAL_FINALIZER])
        kept = self._kept[name]
        # What another leader wrote counts, too; a clock that was wrong must not hold for longer than a right one.
        hold_s = max(kept.hold_until_s, clock.parse_rfc3339_or(pool.status.hold_until, 0.0))
        hold_s = min(hold_s, now_s + max(policy.cooldown_s, HOLD_S))
        memory = PoolMemory(hold_s, kept.history.highest(now_s, policy.load_window_s))
        places = PoolPlaces(
            self._membership.members(name), self._membership.leaving(name), self._membership.lost(name)
        )
        await self._caches.survey_all([*places.members, *places.leaving], policy)
        found = await self._proven(kept, places, memory, now_s)
        self._remember(kept, found, now_s)
        is_done = await self._carry_out(pool, found)
        await self._write_status(pool, pool_status.status_of(pool, found, now_s))
        return PERIOD_S if is_done else SOON_S

    async def _proven(self, kept: _Kept, places: PoolPlaces, memory: PoolMemory, now_s: float) -> PoolPass:
        """Look at the pool; what the scheduler says of nodes to lend counts, and is remembered for a while.

        A node that is refused is one candidate less, so this ends.
        """
        kept.refused = {
            node: one for node, one in kept.refused.items() if now_s < one[1] <= now_s + REFUSED_S
        }
        while True:
            known = {node: why for node, (why, _) in kept.refused.items()}
            memory = msgspec.structs.replace(memory, refused=known)
            found = look(kept.name, kept.policy, places, self._caches, memory, now_s)
            if self._prove is None or not (new := await proof.refusals(found, self._prove)):
                return found
            kept.refused |= {node: (why, now_s + REFUSED_S) for node, why in new.items()}

    def _awaits(self, pool: str, now_s: float) -> bool:
        """Return whether the cache does not show yet what we wrote to the pool's nodes."""
        for node, (_, at_s) in list(self._unseen.items()):
            if not 0.0 <= now_s - at_s < UNSEEN_S:
                del self._unseen[node]
        return any(self._membership.pool_of(node) == pool for node in self._unseen)

    def _remember(self, kept: _Kept, found: PoolPass, now_s: float) -> None:
        """Keep what the next pass needs, and count."""
        decision, policy = found.decision, kept.policy
        kept.hold_until_s = decision.hold_until_s
        if any(step.to is TidalPhase.TO_BATCH for step in decision.plan.steps):
            kept.history.clear()
        elif policy.rule is not None:
            kept.history.add(now_s, decision.spare_percent, policy.load_window_s)
        passed_s = min(max(now_s - kept.checked_s, 0.0), 2 * PERIOD_S) if kept.checked_s is not None else 0.0
        kept.checked_s = now_s
        self._count(found, passed_s)

    def _count(self, found: PoolPass, passed_s: float) -> None:
        metrics, pool = self._metrics, found.pool
        phases = Counter(node.phase for node in found.nodes)
        for phase in TidalPhase:
            metrics.nodes.set(phases[phase], pool, phase.value)
        metrics.target.set(found.decision.target.nodes, pool)
        lent = total(node.allocatable for node in found.nodes if node.phase is TidalPhase.BATCH)
        metrics.lent_core_s.inc(pool, by=lent.cpu_milli / 1000 * passed_s)

    async def _end(self, name: str, pool: TidalPool | None, now_s: float) -> float | None:
        """Let all nodes of a pool go that is deleted; then it may vanish."""
        self._membership.drop(name)
        nodes = self._membership.leaving(name)
        if not nodes:
            self._kept.pop(name, None)
            self._metrics.forget(name)
            if pool is not None and labels.TIDAL_FINALIZER in pool.metadata.finalizers:
                rest = [each for each in pool.metadata.finalizers if each != labels.TIDAL_FINALIZER]
                await self._set_finalizers(pool, rest)
            return None
        policy = self._policy(pool) if pool is not None else None
        places = PoolPlaces(leaving=nodes)
        found = look(name, policy or policy_of(DEFAULT), places, self._caches, PoolMemory(), now_s)
        await self._carry_out(pool, found)
        return SOON_S

    # Writing

    async def _carry_out(self, pool: TidalPool | None, found: PoolPass) -> bool:
        """Write everything; whether that was all. One object that cannot be written does not keep others back.

        Raises: ApiError, the first one, when all others are done.
        """
        failures: list[errors.ApiError] = []
        for job in found.obsolete_jobs:
            await _trying(failures, self._cluster.delete(PodMigrationJob, job))
        for drained in found.drains.values():
            for action in drained.actions:
                await _trying(failures, self._act(found, drained, action))
        left = WRITES_MAX
        for name, wanted in sorted(found.marks.items(), key=lambda mark: mark[0] not in found.steps):
            node = self._caches.node(name)
            patch = node_marks.patch(node, wanted) if node is not None else None
            if node is None or patch is None:
                continue
            if left == 0:
                break
            left -= 1
            await _trying(failures, self._mark(pool, found, node, patch))
        for change in found.costs[:left]:
            await _trying(failures, self._set_cost(change))
        if failures:
            raise failures[0]
        return left > len(found.costs)

    async def _mark(self, pool: TidalPool | None, found: PoolPass, node: Node, patch: dict[str, Any]) -> None:
        """One patch with all marks, for the version that was looked at."""
        name = node.metadata.name
        written = await self._cluster.patch(Node, name, patch)
        seen = self._caches.node(name)
        if seen is None or seen.metadata.resource_version != written.metadata.resource_version:
            self._unseen[name] = (written.metadata.resource_version, self._cluster.clock.now())
        step = found.steps.get(name)
        if step is None:
            return
        before = node_marks.NodeMarks.of(node)
        took_s = max(self._cluster.clock.now() - before.since_s, 0.0)
        cause = _cause(found, name)
        self._metrics.transitions.inc(found.pool, step.to.value, cause)
        if cause == DRAINED:
            self._metrics.drains.of(found.pool, step.to.value).observe(took_s)
        elif cause == EMERGENCY:
            self._metrics.emergency_returns.inc(found.pool)
        message = f"{before.phase.value} → {step.to.value}: {step.reason}"
        tell = self._events.warning if cause in (BLOCKED, EMERGENCY) else self._events.normal
        tell(node, "TidalPhaseChanged", f"TidalPool {found.pool}: {message}")
        if pool is not None:
            tell(pool, "TidalPhaseChanged", f"node {name}: {message}")
        log.info(
            "node changed its tidal phase",
            extra={"pool": found.pool, "node": name, "to": step.to.value, "reason": step.reason},
        )

    async def _act(self, found: PoolPass, drained: Drain, action: DrainAction) -> None:
        pod = action.pod
        if isinstance(action, MigratePod):
            body = self._new_job(found, drained.node, action)
            try:
                await self._cluster.create(PodMigrationJob, body)
            except errors.AlreadyExists:
                return  # from before a restart, or before a lost answer
        elif isinstance(action, NotifyPod):
            patch = {"metadata": {"uid": pod.uid, "annotations": {labels.TIDAL_RETURN_AT: action.return_at}}}
            await self._cluster.patch(Pod, pod.name, patch, pod.namespace)
        else:
            await self._cluster.delete(
                Pod, pod.name, pod.namespace, uid=pod.uid, grace_period_s=action.grace_s
            )

    def _new_job(self, found: PoolPass, node: str, action: MigratePod) -> dict[str, Any]:
        pod, marks = action.pod, found.marks[node]
        since_s = marks.since_s if marks is not None else 0.0
        kept = self._kept.get(found.pool)
        timeout_s = kept.policy.timeout_s if kept is not None else 0.0
        annotations = {
            labels.EVICT_TRIGGER: survey.TRIGGER,
            labels.EVICT_REASON: f"TidalPool {found.pool} lends node {node}",
            survey.JOB_SINCE: clock.rfc3339(since_s),
            # The pool limits by itself how many pods of a workload move: evictions of others do not hold these back.
            labels.DESCHEDULER_EVICT: "true",
        }
        if kept is not None and kept.policy.surges:
            annotations[labels.JOB_SURGE] = "true"
        return {
            # Named after the drain and the try: a second one of the same name is refused.
            "metadata": {
                "name": f"tidal-{pod.uid}-{int(since_s)}-{action.number}",
                "labels": {labels.TIDAL_POOL: found.pool},
                "annotations": annotations,
            },
            "spec": {
                "podRef": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
                "mode": "ReservationFirst",
                "ttl": f"{max(int(timeout_s), 1)}s",
            },
        }

    async def _set_cost(self, change: CostChange) -> None:
        pod = change.pod
        mine = None if change.cost is None else "true"
        notes = {labels.POD_DELETION_COST: change.cost, labels.TIDAL_DELETION_COST: mine}
        patch = {"metadata": {"uid": pod.uid, "annotations": notes}}
        await self._cluster.patch(Pod, pod.name, patch, pod.namespace)

    async def _set_finalizers(self, pool: TidalPool, finalizers: list[str]) -> None:
        meta = pool.metadata
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}
        }
        await self._cluster.patch(TidalPool, meta.name, patch)

    async def _report_invalid(self, pool: TidalPool, now_s: float) -> None:
        try:
            policy_of(pool)
        except ProtocolError as error:
            status = pool_status.invalid_status(pool, f"{error.field}: {error.reason}", now_s)
            if status != pool.status:
                self._events.warning(pool, pool_status.INVALID, f"no node moves: {error}")
            await self._write_status(pool, status)

    async def _write_status(self, pool: TidalPool, status: Any) -> None:
        if status != pool.status:
            patch = pool_status.patch_of(status)
            await self._cluster.patch(TidalPool, pool.metadata.name, patch, subresource="status")


def _cause(found: PoolPass, node: str) -> str:
    drained = found.drains.get(node)
    if drained is not None:
        return BLOCKED if drained.is_blocked else DRAINED
    urgent = found.decision.emergency
    if urgent is not None and any(step.node == node for step in urgent.steps):
        return EMERGENCY
    return LEAVING if node in found.places.leaving else TARGET


async def _trying(failures: list[errors.ApiError], write: Awaitable[Any]) -> None:
    """Write; what is gone or has changed meanwhile the next pass sees."""
    try:
        await write
    except (errors.NotFound, errors.Conflict):
        return
    except errors.ApiError as error:
        failures.append(error)
