"""Strategies that go by a pod's own state. Pure. Source: behaviour/descheduler 12.

PodLifeTime evicts pods that are old or in a given state, RemoveFailedPods those that failed a while ago,
RemovePodsHavingTooManyRestarts those whose containers restart.
"""

from collections.abc import Iterable

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import Condition, ViewPart
from koordinator.descheduler import facts, pod_filter
from koordinator.descheduler.config.checks import NonNegative
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.pod_filter import PodPredicate


class ConditionFilter(ViewPart, frozen=True, kw_only=True):
    """A condition of the pod; empty members match anything."""

    type: str = ""
    status: str = ""
    reason: str = ""
    min_time_since_last_transition_seconds: NonNegative | None = None


STATES_OF_PODS = frozenset(
    (
        *("Running", "Pending", "Succeeded", "Failed", "Unknown"),
        *("NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError"),
        *("PodInitializing", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff", "ErrImagePull"),
        *("CreateContainerConfigError", "CreateContainerError", "InvalidImageName"),
        *(
            "OOMKilled",
            "Error",
            "Completed",
            "DeadlineExceeded",
            "Evicted",
            "ContainerCannotRun",
            "StartError",
        ),
    )
)
"""Phases, reasons of pods, and why containers wait or ended, that PodLifeTime can be asked for."""


class PodLifeTimeArgs(common.CommonArgs, frozen=True, kw_only=True):
    """All criteria that are given must hold; at least one of the first four must be."""

    max_pod_life_time_seconds: NonNegative | None = None
    states: list[str] = []
    conditions: list[ConditionFilter] = []
    exit_codes: list[int] = []
    owner_kinds: pod_filter.Namespaces | None = None
    including_init_containers: bool = False
    including_ephemeral_containers: bool = False


def check_pod_life_time(args: PodLifeTimeArgs) -> None:
    """Raises: ProtocolError."""
    pod_filter.check_namespaces(args.owner_kinds, "ownerKinds")
    criteria = (args.states, args.conditions, args.exit_codes)
    if args.max_pod_life_time_seconds is None and not any(criteria):
        field = "maxPodLifeTimeSeconds"
        raise ProtocolError("PodLifeTime", field, "this, states, conditions or exitCodes must be set")
    if unknown := [state for state in args.states if state not in STATES_OF_PODS]:
        raise ProtocolError(
            "PodLifeTime", "states", f"{unknown[0]!r} is none of {', '.join(sorted(STATES_OF_PODS))}"
        )
    if any(one == ConditionFilter() for one in args.conditions):
        raise ProtocolError("PodLifeTime", "conditions", "one of them asks for nothing")


def old_pods(args: PodLifeTimeArgs, pods: Iterable[Pod], may_evict: PodPredicate, now_s: float) -> list[Pod]:
    """Return the pods to evict, oldest first. `args` are checked."""
    selected = common.selection(args, may_evict)
    found = [pod for pod in pods if _is_old(args, pod, now_s) and selected(pod)]
    return sorted(found, key=facts.created_s)


def _is_old(args: PodLifeTimeArgs, pod: Pod, now_s: float) -> bool:
    longest_s = args.max_pod_life_time_seconds
    if longest_s is not None and common.age_s(pod, now_s) <= longest_s:
        return False
    if not _has_owner_kind(args.owner_kinds, pod):
        return False
    with_init = args.including_init_containers
    statuses = common.container_statuses(pod, with_init, args.including_ephemeral_containers)
    states = {pod.status.phase, pod.status.reason} | common.state_reasons(statuses)
    if args.states and not states.intersection(args.states):
        return False
    codes = common.exit_codes(common.container_statuses(pod, with_init))  # never of ephemeral containers
    if args.exit_codes and not codes.intersection(args.exit_codes):
        return False
    return not args.conditions or any(
        _has_condition(wanted, own, now_s) for wanted in args.conditions for own in pod.status.conditions
    )


def _has_owner_kind(kinds: pod_filter.Namespaces | None, pod: Pod) -> bool:
    if kinds is None:
        return True
    own = {owner.kind for owner in pod.metadata.owner_references}
    return (not kinds.include or bool(own.intersection(kinds.include))) and not own.intersection(
        kinds.exclude
    )


def _has_condition(wanted: ConditionFilter, own: Condition, now_s: float) -> bool:
    pairs = ((wanted.type, own.type), (wanted.status, own.status), (wanted.reason, own.reason))
    if any(asked and asked != has for asked, has in pairs):
        return False
    least_s = wanted.min_time_since_last_transition_seconds
    if least_s is None:
        return True
    since = own.last_transition_time
    return since is not None and now_s - clock.parse_rfc3339(since) >= least_s


class RemoveFailedPodsArgs(common.CommonArgs, frozen=True, kw_only=True):
    """Empty lists ask for nothing; an owner of an excluded kind protects."""

    min_pod_lifetime_seconds: NonNegative = 3600
    reasons: list[str] = []
    exit_codes: list[int] = []
    exclude_owner_kinds: list[str] = []
    including_init_containers: bool = False


def failed_pods(
    args: RemoveFailedPodsArgs, pods: Iterable[Pod], may_evict: PodPredicate, now_s: float
) -> list[Pod]:
    """Return the pods to evict, in the order given. Raises: ProtocolError for a bad selector."""
    selected = common.selection(args, may_evict)
    return [pod for pod in pods if _has_failed(args, pod, now_s) and selected(pod)]


def _has_failed(args: RemoveFailedPodsArgs, pod: Pod, now_s: float) -> bool:
    if pod.status.phase != "Failed" or common.age_s(pod, now_s) < args.min_pod_lifetime_seconds:
        return False
    if any(owner.kind in args.exclude_owner_kinds for owner in pod.metadata.owner_references):
        return False
    statuses = list(common.container_statuses(pod, args.including_init_containers))
    reasons = ({pod.status.reason} | common.state_reasons(statuses)) - {""}
    if args.reasons and not reasons.intersection(args.reasons):
        return False
    return not args.exit_codes or bool(common.exit_codes(statuses).intersection(args.exit_codes))


STATES = ("Running", "CrashLoopBackOff")


class TooManyRestartsArgs(common.CommonArgs, frozen=True, kw_only=True):
    """`states` are phases or reasons why a container waits; none asks for nothing."""

    pod_restart_threshold: int = 0
    including_init_containers: bool = False
    states: list[str] = []


def check_too_many_restarts(args: TooManyRestartsArgs) -> None:
    """Raises: ProtocolError."""
    name = "RemovePodsHavingTooManyRestarts"
    if args.pod_restart_threshold < 1:
        raise ProtocolError(name, "podRestartThreshold", f"{args.pod_restart_threshold} is not above 0")
    if unknown := [state for state in args.states if state not in STATES]:
        raise ProtocolError(name, "states", f"{unknown[0]!r} is none of {', '.join(STATES)}")


def restarting_pods(args: TooManyRestartsArgs, pods: Iterable[Pod], may_evict: PodPredicate) -> list[Pod]:
    """Return the pods of one node to evict, those with the most restarts first. `args` are checked."""
    selected = common.selection(args, may_evict)
    counted = ((restarts(args, pod), pod) for pod in pods)
    found = [
        (count, pod)
        for count, pod in counted
        if count >= args.pod_restart_threshold and _is_in_state(args, pod) and selected(pod)
    ]
    return [pod for _, pod in sorted(found, key=lambda one: -one[0])]


def restarts(args: TooManyRestartsArgs, pod: Pod) -> int:
    return sum(one.restart_count for one in common.container_statuses(pod, args.including_init_containers))


def _is_in_state(args: TooManyRestartsArgs, pod: Pod) -> bool:
    if not args.states or pod.status.phase in args.states:
        return True
    waiting = (one.state.waiting for one in common.container_statuses(pod, args.including_init_containers))
    return any(one is not None and one.reason in args.states for one in waiting)
