"""Find which nodes a daemon pod may run on: its node selector, required affinity and tolerations. Pure.

Source: kube-controller-manager's daemon controller.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api import node_selector
from koordinator.api.affinity import Taint, Toleration
from koordinator.api.core import Node, PodSpec
from koordinator.api.tolerations import NO_EXECUTE, NO_SCHEDULE, is_tolerated

_ALWAYS_TOLERATED = (
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
)
_NETWORK = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE)


class Eligibility(msgspec.Struct, frozen=True):
    """The answer whether a daemon pod should be started on a node, and whether one that is there may stay."""

    starts: bool
    stays: bool


def daemon_tolerations(spec: PodSpec) -> list[Toleration]:
    """The tolerations that every daemon pod has, whatever its template says."""
    tolerated = [*_ALWAYS_TOLERATED, *([_NETWORK] if spec.host_network else [])]
    return [Toleration(key=key, operator="Exists", effect=effect) for key, effect in tolerated]


def eligibility(spec: PodSpec) -> Callable[[Node], Eligibility]:
    """A function that tells about nodes, for a template's pod spec."""
    tolerations = [*spec.tolerations, *daemon_tolerations(spec)]
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None

    def judge(node: Node) -> Eligibility:
        labels = node.metadata.labels
        is_fitting = (
            spec.node_name in ("", node.metadata.name)
            and all(labels.get(key) == value for key, value in spec.node_selector.items())
            and (
                required is None
                or node_selector.matches(required.node_selector_terms, labels, node.metadata.name)
            )
        )
        if not is_fitting:
            return Eligibility(False, False)
        hard = _untolerated(node.spec.taints, tolerations)
        return Eligibility(not hard, all(taint.effect != NO_EXECUTE for taint in hard))

    return judge


def _untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> list[Taint]:
    return [
        taint
        for taint in taints
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not is_tolerated(tolerations, taint)
    ]
