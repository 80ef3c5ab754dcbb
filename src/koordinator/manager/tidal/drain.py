"""Decide what is done now with the pods of a node that changes sides. Pure. Source: behaviour/tidal 4, "Transitions".

Online pods leave by PodMigrationJobs, room for their successors first; batch pods are told when their node returns, and
deleted with time to end, at last without.
"""

from collections.abc import Mapping, Sequence

import msgspec

from koordinator import clock
from koordinator.api import readable
from koordinator.manager.tidal.nodes import TidalNode, TidalPhase, TidalPod
from koordinator.manager.tidal.plan import PhaseStep
from koordinator.manager.tidal.policy import PoolPolicy

FORCE_AFTER_S = 30.0
"""So long after the grace period batch pods are deleted without any."""
BLOCKED_S = 3600.0
"""A node whose drain failed is not tried again before."""
RETRY_S = 60.0
"""A pod whose migration failed gets a new job after this."""


class MigrationTry(msgspec.Struct, frozen=True):
    """The latest migration job of a pod. `ended_s`: None while it is open; `is_forbidden`: arbitration refused the pod
    for good."""

    name: str
    number: int
    ended_s: float | None
    waits_for: str = ""
    is_forbidden: bool = False


class MigratePod(msgspec.Struct, frozen=True):
    """Create a migration job for an online pod, its `number`-th in this drain."""

    pod: TidalPod
    number: int


class NotifyPod(msgspec.Struct, frozen=True):
    """Tell a batch pod when its node returns."""

    pod: TidalPod
    return_at: str


class DeletePod(msgspec.Struct, frozen=True):
    """Delete a batch pod; without `grace_s` it has its own time to end."""

    pod: TidalPod
    grace_s: int | None


DrainAction = MigratePod | NotifyPod | DeletePod


class Drain(msgspec.Struct, frozen=True):
    """The things to do now with a node that changes sides. `step`: it arrives, or turns back; `is_blocked`: it turns
    back because its pods did not leave; `waits_for`: for people."""

    node: str
    actions: tuple[DrainAction, ...] = ()
    step: PhaseStep | None = None
    is_blocked: bool = False
    waits_for: str = ""


def drain(
    node: TidalNode,
    policy: PoolPolicy,
    tries: Mapping[str, MigrationTry],
    moving: dict[str, int],
    now_s: float,
) -> Drain:
    """Return what to do with a node in `to-batch` or `to-online`.

    `tries` are the latest jobs of this drain by UID of the pod; `moving` counts open jobs by workload, and is counted
    on here.
    """
    if node.phase is TidalPhase.TO_BATCH:
        return _to_batch(node, policy, tries, moving, now_s)
    return _to_online(node, policy, now_s)


def _to_batch(
    node: TidalNode,
    policy: PoolPolicy,
    tries: Mapping[str, MigrationTry],
    moving: dict[str, int],
    now_s: float,
) -> Drain:
    if not node.online_pods:
        return Drain(node.name, step=PhaseStep(node.name, TidalPhase.BATCH, "no online pod is left"))
    forbidden = [pod for pod in node.online_pods if pod.uid in tries and tries[pod.uid].is_forbidden]
    reason = ""
    if forbidden:
        reason = f"{_some(forbidden)} may not be moved: {_obstacle(forbidden, tries)}"
    elif now_s - node.since_s >= policy.timeout_s:
        reason = f"{_some(node.online_pods)} did not leave in time: {_obstacle(node.online_pods, tries)}"
    if reason:
        back = PhaseStep(node.name, TidalPhase.ONLINE, reason)
        return Drain(node.name, step=back, is_blocked=True, waits_for=reason)
    actions: list[DrainAction] = []
    for pod in node.online_pods:
        last = tries.get(pod.uid)
        is_due = last is None or (last.ended_s is not None and now_s - last.ended_s >= RETRY_S)
        if pod.is_going or not is_due or moving.get(pod.workload, 0) >= policy.max_unavailable:
            continue
        moving[pod.workload] = moving.get(pod.workload, 0) + 1
        actions.append(MigratePod(pod, 1 if last is None else last.number + 1))
    waits_for = f"{_some(node.online_pods)} to leave: {_obstacle(node.online_pods, tries)}"
    return Drain(node.name, tuple(actions), waits_for=waits_for)


def _to_online(node: TidalNode, policy: PoolPolicy, now_s: float) -> Drain:
    if not node.batch_pods:
        return Drain(node.name, step=PhaseStep(node.name, TidalPhase.ONLINE, "no batch pod is left"))
    grace_s = 0.0 if policy.is_kill else policy.grace_s
    must_go = now_s - node.since_s >= policy.grace_s + FORCE_AFTER_S
    return_at = clock.rfc3339(node.since_s + policy.grace_s)
    actions: list[DrainAction] = []
    for pod in node.batch_pods:
        if must_go:
            actions.append(DeletePod(pod, 0))
        elif not pod.is_going:
            if pod.return_at != return_at:
                actions.append(NotifyPod(pod, return_at))
            actions.append(DeletePod(pod, int(grace_s) if grace_s else None))
    return Drain(node.name, tuple(actions), waits_for=f"{_some(node.batch_pods)} to end by {return_at}")


def _some(pods: Sequence[TidalPod]) -> str:
    return readable.some_of(sorted(pod.key for pod in pods), 3)


def _obstacle(pods: Sequence[TidalPod], tries: Mapping[str, MigrationTry]) -> str:
    """Return what the first pod waits for that a job says something about."""
    for pod in pods:
        last = tries.get(pod.uid)
        if last is not None and last.waits_for:
            return f"PodMigrationJob {last.name}: {last.waits_for}"
    has_jobs = any(pod.uid in tries for pod in pods)
    return "migration jobs are under way" if has_jobs else "no migration job has begun"
