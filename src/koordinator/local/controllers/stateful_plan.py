"""Find which pods of a StatefulSet to create and delete next, and what it says about itself. Pure.

With ordered management nothing happens to a pod before all earlier ones are ready; with parallel management
only updates go one by one. Source: kube-controller-manager's statefulset controller.
"""

from collections.abc import Sequence

import msgspec

from koordinator.api.apps import StatefulSet, StatefulSetStatus
from koordinator.api.core import Pod
from koordinator.local.controllers import pod_health, rollout
from koordinator.local.controllers.controller_revision import POD_LABEL
from koordinator.local.controllers.ownership import is_deleting

PARALLEL = "Parallel"
ON_DELETE = "OnDelete"


class NewStatefulPod(msgspec.Struct, frozen=True):
    """The pod `ordinal` is missing; `is_current` takes the template from before the update."""

    ordinal: int
    is_current: bool


class StatefulPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`scaled_down` are those of `delete` that leave for good."""

    create: list[NewStatefulPod] = []
    delete: list[Pod] = []
    scaled_down: list[Pod] = []


class Revisions(msgspec.Struct, frozen=True):
    """Names of the revision before an update and of the newest; equal when there is no update."""

    current: str
    update: str


def ordinal_of(obj: StatefulSet, pod: Pod) -> int | None:
    """Return the number in the pod's name; None when the name is not one of the set's."""
    base, dash, number = pod.metadata.name.rpartition("-")
    is_member = base == obj.metadata.name and dash and number.isascii() and number.isdecimal()
    return int(number) if is_member and str(int(number)) == number else None


def start_of(obj: StatefulSet) -> int:
    """Return the first ordinal."""
    return obj.spec.ordinals.start if obj.spec.ordinals is not None else 0


def revision_of(pod: Pod) -> str:
    return pod.metadata.labels.get(POD_LABEL, "")


def is_running_and_ready(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod_health.is_ready(pod)


def is_healthy(pod: Pod) -> bool:
    return is_running_and_ready(pod) and not is_deleting(pod)


def plan(obj: StatefulSet, pods: Sequence[Pod], revisions: Revisions, now_s: float) -> StatefulPlan:
    """Return the next step. Raises: ProtocolError (maxUnavailable)."""
    start = start_of(obj)
    by_ordinal = {ordinal: pod for pod in pods if (ordinal := ordinal_of(obj, pod)) is not None}
    wanted = range(start, start + obj.spec.replicas)
    replicas = [by_ordinal.get(ordinal) for ordinal in wanted]
    condemned = [by_ordinal[ordinal] for ordinal in sorted(by_ordinal, reverse=True) if ordinal not in wanted]
    ordered = obj.spec.pod_management_policy != PARALLEL
    made = StatefulPlan()
    if not _fill(obj, wanted, replicas, ordered, made, now_s):
        return made
    if not _scale_down(obj, replicas, condemned, ordered, made, now_s):
        return made
    if obj.spec.update_strategy.type != ON_DELETE and not made.create and not made.delete:
        made.delete.extend(_to_update(obj, replicas, revisions))
    return made


def _fill(
    obj: StatefulSet,
    wanted: range,
    replicas: Sequence[Pod | None],
    ordered: bool,
    made: StatefulPlan,
    now_s: float,
) -> bool:
    """Create what is missing and remove what has ended; whether there may be further steps."""
    for ordinal, pod in zip(wanted, replicas, strict=True):
        if pod is None:
            made.create.append(NewStatefulPod(ordinal, _keeps_current(obj, ordinal)))
        elif pod.status.phase in (pod_health.SUCCEEDED, pod_health.FAILED):
            if not is_deleting(pod):
                made.delete.append(pod)
        elif is_healthy(pod) and pod_health.is_available(pod, obj.spec.min_ready_seconds, now_s):
            continue
        if ordered:
            return False
    return True


def _keeps_current(obj: StatefulSet, ordinal: int) -> bool:
    """Return whether a missing pod comes back as it was before the update."""
    is_rolling = obj.spec.update_strategy.type != ON_DELETE
    return is_rolling and ordinal < start_of(obj) + _partition(obj)


def _partition(obj: StatefulSet) -> int:
    """Return how many of the lowest pods an update leaves alone."""
    rolling = obj.spec.update_strategy.rolling_update
    return (rolling.partition or 0) if rolling is not None else 0


def _scale_down(
    obj: StatefulSet,
    replicas: Sequence[Pod | None],
    condemned: Sequence[Pod],
    ordered: bool,
    made: StatefulPlan,
    now_s: float,
) -> bool:
    """Delete what is too much, the highest ordinal first; whether there may be further steps."""
    every = [pod for pod in (*replicas, *reversed(condemned)) if pod is not None]
    first_unhealthy = next((pod for pod in every if not is_healthy(pod)), None)
    for pod in condemned:
        if is_deleting(pod):
            if ordered:
                return False
            continue
        is_fine = is_running_and_ready(pod) and pod_health.is_available(
            pod, obj.spec.min_ready_seconds, now_s
        )
        if ordered and not is_fine and pod is not first_unhealthy:
            return False
        made.delete.append(pod)
        made.scaled_down.append(pod)
        if ordered:
            return False
    return True


def _to_update(obj: StatefulSet, replicas: Sequence[Pod | None], revisions: Revisions) -> list[Pod]:
    """Old pods to delete now, from the highest ordinal down to the partition."""
    rolling = obj.spec.update_strategy.rolling_update
    most = rolling.max_unavailable if rolling is not None else None
    field = "spec.updateStrategy.rollingUpdate.maxUnavailable"
    left = max(rollout.resolved(1 if most is None else most, obj.spec.replicas, field, up=False), 1)
    doomed: list[Pod] = []
    for pod in reversed(replicas[_partition(obj) :]):
        is_old = pod is not None and revision_of(pod) != revisions.update and not is_deleting(pod)
        if is_old and pod is not None:
            doomed.append(pod)
        if is_old or pod is None or not is_healthy(pod):
            left -= 1
        if left == 0:
            break
    return doomed


def status_of(
    obj: StatefulSet, pods: Sequence[Pod], revisions: Revisions, collisions: int, now_s: float
) -> StatefulSetStatus:
    """The counts and revisions; a finished update makes its revision the current one."""
    living = [pod for pod in pods if not is_deleting(pod)]
    ready = [pod for pod in pods if is_running_and_ready(pod)]
    updated = sum(revision_of(pod) == revisions.update for pod in living)
    current, current_count = revisions.current, sum(revision_of(pod) == revisions.current for pod in living)
    wanted = obj.spec.replicas
    is_rolling = obj.spec.update_strategy.type != ON_DELETE
    if is_rolling and updated == wanted and len(ready) == wanted and len(pods) == wanted:
        current, current_count = revisions.update, updated
    return msgspec.structs.replace(
        obj.status,
        replicas=len(pods),
        ready_replicas=len(ready),
        available_replicas=sum(
            pod_health.is_available(pod, obj.spec.min_ready_seconds, now_s) for pod in ready
        ),
        current_replicas=current_count,
        updated_replicas=updated,
        current_revision=current,
        update_revision=revisions.update,
        collision_count=collisions,
        observed_generation=obj.metadata.generation,
    )
