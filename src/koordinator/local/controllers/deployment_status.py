"""Describe what a Deployment says about itself: counts, and whether it is available and progresses. Pure.

Source: kube-controller-manager's deployment controller; reasons and messages are those that kubectl shows.
"""

from collections.abc import Sequence

import msgspec

from koordinator import clock
from koordinator.api.apps import Deployment, DeploymentStatus, ReplicaSet
from koordinator.api.meta import Condition
from koordinator.local.controllers import rollout
from koordinator.local.controllers.replicaset import REPLICA_FAILURE
from koordinator.local.controllers.status_write import find, without_condition

AVAILABLE, PROGRESSING = "Available", "Progressing"
NEW_SET_CREATED, NEW_SET_FOUND, NEW_SET_AVAILABLE = (
    "NewReplicaSetCreated",
    "FoundNewReplicaSet",
    "NewReplicaSetAvailable",
)
SET_UPDATED, SET_CREATE_ERROR, TIMED_OUT = (
    "ReplicaSetUpdated",
    "ReplicaSetCreateError",
    "ProgressDeadlineExceeded",
)
PAUSED, RESUMED = "DeploymentPaused", "DeploymentResumed"

DEADLINE_DEFAULT_S = 600
_NO_DEADLINE = 2**31 - 1  # how the API spells "for ever"


def deadline_s(deployment: Deployment) -> int | None:
    """Return seconds without progress after which a rollout is called stuck; None for never."""
    found = deployment.spec.progress_deadline_seconds
    if found is None:
        return DEADLINE_DEFAULT_S
    return None if found == _NO_DEADLINE else found


def progressing(status: str, reason: str, message: str, now_s: float) -> Condition:
    now = clock.rfc3339(now_s)
    return Condition(
        type=PROGRESSING,
        status=status,
        reason=reason,
        message=message,
        last_update_time=now,
        last_transition_time=now,
    )


def with_condition(conditions: Sequence[Condition], new: Condition) -> list[Condition]:
    """Set a condition: unchanged while status and reason stay, and with its old transition time while the
    status stays."""
    old = find(conditions, new.type)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return list(conditions)
    if old is not None and old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return [*without_condition(conditions, new.type), new]


def with_pause(deployment: Deployment, now_s: float) -> DeploymentStatus:
    """The status after a pause or its end was noted (a pause stops the progress deadline)."""
    status = deployment.status
    if deadline_s(deployment) is None:
        return status
    current = find(status.conditions, PROGRESSING)
    reason = current.reason if current is not None else ""
    if reason == TIMED_OUT or deployment.spec.paused == (reason == PAUSED):
        return status
    if deployment.spec.paused:
        new = progressing("Unknown", PAUSED, "Deployment is paused", now_s)
    else:
        new = progressing("Unknown", RESUMED, "Deployment is resumed", now_s)
    return msgspec.structs.replace(status, conditions=with_condition(status.conditions, new))


def counts(
    deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], now_s: float
) -> DeploymentStatus:
    """Replica counts and the Available condition."""
    every = [*old, *([new] if new is not None else [])]
    available = sum(one.status.available_replicas for one in every)
    minimum = deployment.spec.replicas - rollout.bounds_of(deployment).unavailable
    now = clock.rfc3339(now_s)
    enough = available >= minimum
    condition = Condition(
        type=AVAILABLE,
        status="True" if enough else "False",
        reason="MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        last_update_time=now,
        last_transition_time=now,
    )
    return msgspec.structs.replace(
        deployment.status,
        observed_generation=deployment.metadata.generation,
        replicas=sum(one.status.replicas for one in every),
        updated_replicas=new.status.replicas if new is not None else 0,
        ready_replicas=sum(one.status.ready_replicas for one in every),
        available_replicas=available,
        unavailable_replicas=max(rollout.wanted(every) - available, 0),
        conditions=with_condition(deployment.status.conditions, condition),
    )


def rolling(
    deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], now_s: float
) -> DeploymentStatus:
    """Counts, the Progressing condition of the rollout, and failures of the ReplicaSets.

    `deployment.status` is the status before, against which progress is measured.
    """
    status = counts(deployment, new, old, now_s)
    conditions = status.conditions
    current = find(deployment.status.conditions, PROGRESSING)
    if deadline_s(deployment) is None:
        conditions = without_condition(conditions, PROGRESSING)
    elif not _was_complete(status, current):
        subject = f'ReplicaSet "{new.metadata.name}"' if new is not None else _name(deployment)
        if is_complete(deployment, status):
            done = progressing("True", NEW_SET_AVAILABLE, f"{subject} has successfully progressed.", now_s)
            conditions = with_condition(conditions, done)
        elif _has_progressed(deployment.status, status):
            moving = progressing("True", SET_UPDATED, f"{subject} is progressing.", now_s)
            if current is not None and current.status == "True":
                moving = msgspec.structs.replace(moving, last_transition_time=current.last_transition_time)
            # Set anew even when it says the same: the deadline counts from the last progress.
            conditions = [*without_condition(conditions, PROGRESSING), moving]
        elif is_timed_out(deployment, now_s):
            stuck = progressing("False", TIMED_OUT, f"{subject} has timed out progressing.", now_s)
            conditions = with_condition(conditions, stuck)
    failure = _failure(new, old)
    if failure is None:
        conditions = without_condition(conditions, REPLICA_FAILURE)
    else:
        conditions = with_condition(conditions, failure)
    return msgspec.structs.replace(status, conditions=conditions)


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Return whether all pods are new and available."""
    replicas = deployment.spec.replicas
    return (
        status.updated_replicas == replicas
        and status.replicas == replicas
        and status.available_replicas == replicas
        and status.observed_generation >= deployment.metadata.generation
    )


def is_timed_out(deployment: Deployment, now_s: float) -> bool:
    """Return whether the rollout has made no progress for its deadline."""
    left_s = until_deadline_s(deployment, deployment.status, now_s)
    current = find(deployment.status.conditions, PROGRESSING)
    return (left_s is not None and left_s < 0) or (current is not None and current.reason == TIMED_OUT)


def until_deadline_s(deployment: Deployment, status: DeploymentStatus, now_s: float) -> float | None:
    """Return seconds until the rollout counts as stuck (negative: it does); None when that cannot happen."""
    limit_s, current = deadline_s(deployment), find(status.conditions, PROGRESSING)
    if limit_s is None or current is None or current.last_update_time is None:
        return None
    if current.reason in (NEW_SET_AVAILABLE, TIMED_OUT, PAUSED):
        return None
    return clock.parse_rfc3339(current.last_update_time) + limit_s - now_s


def _was_complete(status: DeploymentStatus, current: Condition | None) -> bool:
    return (
        status.replicas == status.updated_replicas
        and current is not None
        and current.reason == NEW_SET_AVAILABLE
    )


def _has_progressed(old: DeploymentStatus, new: DeploymentStatus) -> bool:
    return (
        new.updated_replicas > old.updated_replicas
        or new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        or new.ready_replicas > old.ready_replicas
        or new.available_replicas > old.available_replicas
    )


def _failure(new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> Condition | None:
    """Return the first failure of a ReplicaSet, the new one asked first."""
    for one in [*([new] if new is not None else []), *old]:
        found = find(one.status.conditions, REPLICA_FAILURE)
        if found is not None:
            return msgspec.structs.replace(found, last_update_time=found.last_transition_time)
    return None


def _name(deployment: Deployment) -> str:
    return f'Deployment "{deployment.metadata.name}"'
