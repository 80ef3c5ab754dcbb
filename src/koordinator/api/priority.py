"""Priority classes and numbers: whose work is worth more. Source: behaviour/api 4."""

import enum
from collections.abc import Mapping

from koordinator.api import labels, qos, scalars
from koordinator.api.core import Pod
from koordinator.api.qos import QoSClass


class PriorityClass(enum.StrEnum):
    """Koordinator priority class; `NONE` is "no class" (empty text)."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


BANDS: dict[PriorityClass, tuple[int, int]] = {
    PriorityClass.PROD: (9000, 9999),
    PriorityClass.MID: (7000, 7999),
    PriorityClass.BATCH: (5000, 5999),
    PriorityClass.FREE: (3000, 3999),
}
"""Lowest and highest priority number of each class; the PriorityClass objects of an installation have the lowest."""

DEFAULT_NUMBERS: dict[PriorityClass, int] = {
    PriorityClass.PROD: 9500,
    PriorityClass.MID: 7500,
    PriorityClass.BATCH: 5500,
    PriorityClass.FREE: 3500,
    PriorityClass.NONE: 0,
}
"""The number that stands for a class where a pod has none of its own."""

PREEMPT_NEVER = "Never"
PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"

_BY_NAME = {cls.value: cls for cls in PriorityClass}
_BY_THOUSAND = {low // 1000: cls for cls, (low, _) in BANDS.items()}


def of_name(name: str) -> PriorityClass:
    """Return the class of that exact name, `NONE` for any other text."""
    return _BY_NAME.get(name, PriorityClass.NONE)


def of_number(number: int | None) -> PriorityClass:
    """Return the class whose band holds the number."""
    return PriorityClass.NONE if number is None else _BY_THOUSAND.get(number // 1000, PriorityClass.NONE)


def raw(pod: Pod) -> PriorityClass:
    """Return the class by label if that exists (any text: an unknown one hides the number), else by number."""
    label = pod.metadata.labels.get(labels.PRIORITY_CLASS)
    return of_name(label) if label is not None else of_number(pod.spec.priority)


def default(pod: Pod) -> PriorityClass:
    """Return the raw class, else what the QoS implies: batch for BE, prod for all others; never `NONE`."""
    if known := raw(pod):
        return known
    return PriorityClass.BATCH if qos.default(pod) is QoSClass.BE else PriorityClass.PROD


def default_number(pod: Pod) -> int:
    """Return the pod's own number unless that is unset or 0, else the number that stands for its class."""
    return pod.spec.priority or DEFAULT_NUMBERS[default(pod)]


def sub_priority(pod_labels: Mapping[str, str], fallback: int) -> int:
    """Return the number of label `koordinator.sh/priority` (64-bit), `fallback` when absent or malformed."""
    try:
        return scalars.parse_int(pod_labels.get(labels.PRIORITY, ""))
    except scalars.ScalarError:
        return fallback


def preemption_policy(pod_labels: Mapping[str, str]) -> str:
    """`Never` or `PreemptLowerPriority` as the label says, empty when it says neither."""
    policy = pod_labels.get(labels.PREEMPTION_POLICY, "")
    return policy if policy in (PREEMPT_NEVER, PREEMPT_LOWER_PRIORITY) else ""


def default_preemption_policy(pod_labels: Mapping[str, str]) -> str:
    """Return the policy as `preemption_policy` does, but `Never` when the label says neither."""
    return preemption_policy(pod_labels) or PREEMPT_NEVER


def is_preemptible(pod_labels: Mapping[str, str]) -> bool:
    """Return whether the pod may be a victim of preemption, whoever preempts."""
    return pod_labels.get(labels.DISABLE_PREEMPTIBLE) != "true"
