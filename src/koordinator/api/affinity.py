"""Placement constraints of a pod: selectors, affinity, tolerations, spreading.

Views, and whether the terms of a node selector hold; how the rest matches is decided by whoever asks (webhooks,
controllers, scheduler plugins). `scheduler.label_columns` is the same over many nodes. A condition that cannot be read
(an operator with values that do not go with it) never holds. Source: the Kubernetes API's NodeSelectorTerm.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

from koordinator.api.meta import ViewPart
from koordinator.api.scalars import ScalarError, parse_int
from koordinator.api.schema import ATOMIC_LIST, DATE_TIME, REQUIRED, always


class LabelSelectorRequirement(ViewPart, frozen=True, kw_only=True):
    """One condition on labels."""

    key: Annotated[str, REQUIRED, "The label that the condition is about."] = always("")
    operator: Annotated[str, REQUIRED, "In, NotIn, Exists or DoesNotExist."] = always("")
    values: Annotated[list[str], ATOMIC_LIST, "Values for In and NotIn; empty for the others."] = []


class LabelSelector(ViewPart, frozen=True, kw_only=True):
    """All conditions must hold; an empty selector matches everything (an absent one often nothing)."""

    match_labels: Annotated[dict[str, str], "Labels that must be there with these values."] = {}
    match_expressions: Annotated[
        list[LabelSelectorRequirement], ATOMIC_LIST, "Conditions that must all hold."
    ] = []


class NodeSelectorRequirement(ViewPart, frozen=True, kw_only=True):
    """One condition on a node; `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class NodeSelectorTerm(ViewPart, frozen=True, kw_only=True):
    """All conditions must hold; a term without conditions matches no node."""

    match_expressions: list[NodeSelectorRequirement] = []
    match_fields: list[NodeSelectorRequirement] = []


class NodeSelector(ViewPart, frozen=True, kw_only=True):
    """One of the terms must match."""

    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(ViewPart, frozen=True, kw_only=True):
    """A node preference; `weight` is 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ViewPart, frozen=True, kw_only=True):
    """Nodes that a pod requires or prefers."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = []


class PodAffinityTerm(ViewPart, frozen=True, kw_only=True):
    """Pods next to which, or away from which, a pod wants to be, within one value of `topology_key`."""

    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: list[str] = []
    mismatch_label_keys: list[str] = []


class WeightedPodAffinityTerm(ViewPart, frozen=True, kw_only=True):
    """A preference about other pods; `weight` is 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(ViewPart, frozen=True, kw_only=True):
    """Terms of `podAffinity` or `podAntiAffinity`."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []


class Affinity(ViewPart, frozen=True, kw_only=True):
    """`spec.affinity` of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(ViewPart, frozen=True, kw_only=True):
    """A taint that a pod bears; empty `operator` means Equal, empty `effect` means all effects."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Taint(ViewPart, frozen=True, kw_only=True):
    """A mark that keeps away pods which do not tolerate it."""

    key: Annotated[str, REQUIRED, "Key of the taint."] = always("")
    value: Annotated[str, "Value of the taint."] = ""
    effect: Annotated[str, REQUIRED, "NoSchedule, PreferNoSchedule or NoExecute."] = always("")
    time_added: Annotated[str | None, DATE_TIME, "When the taint was added."] = None


class TopologySpreadConstraint(ViewPart, frozen=True, kw_only=True):
    """A rule for how evenly pods spread; `when_unsatisfiable` is DoNotSchedule or ScheduleAnyway."""

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] = []


class TopologySelectorLabelRequirement(ViewPart, frozen=True, kw_only=True):
    """A node label that must have one of the values."""

    key: str = ""
    values: list[str] = []


class TopologySelectorTerm(ViewPart, frozen=True, kw_only=True):
    """The place where a volume of a storage class may be provisioned; all conditions must hold."""

    match_label_expressions: list[TopologySelectorLabelRequirement] = []


NAME_FIELD = "metadata.name"


def any_term_holds(terms: Iterable[NodeSelectorTerm], labels: Mapping[str, str], name: str) -> bool:
    """Return whether one of the terms holds for an object with these labels and this name."""
    return any(term_holds(term, labels, name) for term in terms)


def term_holds(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Return whether all conditions of the term hold; an empty term holds for nothing."""
    return bool(term.match_expressions or term.match_fields) and (
        all(holds(each, labels.get(each.key)) for each in term.match_expressions)
        and all(each.key == NAME_FIELD and holds(each, name) for each in term.match_fields)
    )


def holds(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    """Return whether one condition holds for the value of its key (None: the key is not there)."""
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return bool(requirement.values) and value not in requirement.values
        case "Exists":
            return value is not None and not requirement.values
        case "DoesNotExist":
            return value is None and not requirement.values
        case "Gt" | "Lt":
            return value is not None and _compares(requirement, value)
    return False


def _compares(requirement: NodeSelectorRequirement, value: str) -> bool:
    """Above or below as 64-bit integers; other texts never are."""
    if len(requirement.values) != 1:
        return False
    try:
        number, limit = parse_int(value), parse_int(requirement.values[0])
    except ScalarError:
        return False
    return number > limit if requirement.operator == "Gt" else number < limit
