"""Plain labels and annotations of pods. Source: behaviour/api 6.1 and 6.2."""

from collections.abc import Mapping

import msgspec

from koordinator.api import labels, scalars
from koordinator.api.core import Pod
from koordinator.api.labels import parse_int32, parse_plain_int32, read
from koordinator.api.meta import ObjectMeta, find_condition
from koordinator.api.scalars import ScalarError

EVICTION_COST_NEVER = 2**31 - 1
"""The eviction cost of a pod that the descheduler must not evict."""

NOT_SET = -1
"""Load-estimation seconds of a pod that does not set them: the plugin's configuration counts."""


class CoreSched(msgspec.Struct, frozen=True):
    """The pods that may share a physical core: those of one group; `policy` is none, exclusive or empty."""

    group_id: str
    policy: str


class ReplaceResources(msgspec.Struct, frozen=True):
    """Resources to drop from a pod, and to rename in it."""

    erase: frozenset[str]
    replace: dict[str, str]


def is_eviction_enabled(pod_labels: Mapping[str, str]) -> bool:
    """Return whether the node agent may evict the pod by usage."""
    return pod_labels.get(labels.EVICTION_ENABLED) == "true"


def is_reservation_ignored(pod_labels: Mapping[str, str]) -> bool:
    """Return whether the pod is placed as if there were no reservations."""
    return pod_labels.get(labels.RESERVATION_IGNORED) == "true"


def is_reserve_pod(annotations: Mapping[str, str]) -> bool:
    """Return whether a pod stands for a Reservation and exists in the scheduler only."""
    return labels.RESERVE_POD in annotations


def is_operating_as_reservation(pod_labels: Mapping[str, str]) -> bool:
    """Return whether the pod, while it runs, is a reservation of what it asks for."""
    return pod_labels.get(labels.POD_OPERATING_MODE) == "Reservation"


def stands_for_reservation(meta: ObjectMeta) -> bool:
    """Return whether others may use what the pod holds: a reserve pod, or one that is a reservation itself."""
    return is_reserve_pod(meta.annotations) or is_operating_as_reservation(meta.labels)


def scheduler_name(pod_labels: Mapping[str, str], spec_name: str) -> str:
    """Return who schedules the pod: the label's text if it exists, even empty, else `spec.schedulerName`."""
    return pod_labels.get(labels.SCHEDULER_NAME, spec_name)


def is_inactive(phase: str) -> bool:
    """Return whether a pod in this phase neither waits nor runs."""
    return phase not in ("Pending", "Running")


def is_terminated(pod: Pod) -> bool:
    """Return whether the pod has ended."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_unschedulable(pod: Pod) -> bool:
    """Return whether the scheduler has said that it finds no node for the pod."""
    said = find_condition(pod.status.conditions, "PodScheduled")
    return (
        not pod.spec.node_name
        and said is not None
        and said.status == "False"
        and said.reason == "Unschedulable"
    )


def core_sched(pod_labels: Mapping[str, str]) -> CoreSched:
    """Return the pod's core-scheduling group; an unknown policy is the default one."""
    policy = pod_labels.get(labels.CORE_SCHED_POLICY, "")
    known = policy if policy in ("none", "exclusive") else ""
    return CoreSched(pod_labels.get(labels.CORE_SCHED_GROUP_ID, ""), known)


def eviction_cost(annotations: Mapping[str, str], obj: str = "") -> int:
    """Return what evicting the pod costs the descheduler, 0 when absent. Raises: ProtocolError when malformed."""
    return read(annotations, labels.EVICTION_COST, parse_plain_int32, 0, obj)


def eviction_priority(annotations: Mapping[str, str], obj: str = "") -> int:
    """Return the eviction priority, lower ones first and before pod priorities; 0 when absent.

    Raises: ProtocolError when malformed.
    """
    return read(annotations, labels.EVICTION_PRIORITY, parse_int32, 0, obj)


def load_estimated_s_after_scheduled(annotations: Mapping[str, str]) -> int:
    """Return how long the pod counts with its estimated load after it was scheduled; `NOT_SET` if absent or bad."""
    return _seconds(annotations, labels.LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED)


def load_estimated_s_after_initialized(annotations: Mapping[str, str]) -> int:
    """Return the same after it was initialised."""
    return _seconds(annotations, labels.LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED)


def replace_resources(annotations: Mapping[str, str]) -> ReplaceResources:
    """Return what `from:to,from2:` asks for; entries without exactly one colon are skipped, the last one wins.

    A name that one entry erases and another one renames is in both: it is erased first.
    """
    erase, replace = set(), {}
    for entry in annotations.get(labels.REPLACE_RESOURCES, "").split(","):
        names = [name.strip() for name in entry.split(":")]
        if len(names) != 2:
            continue
        old, new = names
        if new:
            replace[old] = new
        else:
            erase.add(old)
    return ReplaceResources(erase=frozenset(erase), replace=replace)


def _seconds(annotations: Mapping[str, str], key: str) -> int:
    try:
        return scalars.parse_int(annotations.get(key, ""))
    except ScalarError:
        return NOT_SET
