"""How much of what prod pods requested can be lent: requests above their predicted peak.

Source: behaviour/koordlet-observe 11.4. Peaks are the 95th percentile of CPU and the 98th of memory, plus a margin.
"""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import pod_labels, pod_resources, priority, quantity, resources
from koordinator.api.annotations.node import RAW_ALLOCATABLE
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import ZERO, QuantityError

SAFETY_MARGIN_PERCENT = 10
COLD_START_S = 24 * 3600.0
_PERCENT = 100
_PROD = (PriorityClass.PROD, PriorityClass.NONE)


class Amount(msgspec.Struct, frozen=True):
    """CPU and memory."""

    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes)

    def at_least(self, other: "Amount") -> "Amount":
        """The larger of both, per resource."""
        return Amount(max(self.cpu_milli, other.cpu_milli), max(self.memory_bytes, other.memory_bytes))

    def at_most(self, other: "Amount") -> "Amount":
        """The smaller of both, per resource."""
        return Amount(min(self.cpu_milli, other.cpu_milli), min(self.memory_bytes, other.memory_bytes))

    def with_margin(self, percent: int) -> "Amount":
        """More by the margin, cut to whole units."""
        factor = (_PERCENT + percent) / _PERCENT
        return Amount(int(self.cpu_milli * factor), int(self.memory_bytes * factor))


NOTHING = Amount()


class ProdPod(msgspec.Struct, frozen=True):
    """A pod of class prod: its request, its age, its peak (None when there is no prediction)."""

    request: Amount
    age_s: float
    peak: Amount | None
    is_terminating: bool = False
    is_finished: bool = False


class Prediction(msgspec.Struct, frozen=True):
    """What can be lent, and the peak of what stays."""

    reclaimable: Amount
    peak: Amount


def allocatable_of(node: Node) -> Amount:
    """What the node offers to pods, before amplification where that is known. Raises: QuantityError."""
    try:
        raw = RAW_ALLOCATABLE.read(node.metadata.annotations)
    except ProtocolError:
        raw = None
    amounts = node.status.allocatable if raw is None else raw
    return Amount(
        quantity.milli(amounts.get(resources.CPU, 0)), quantity.value(amounts.get(resources.MEMORY, 0))
    )


def prod_pods(pods: Iterable[Pod], peaks: Mapping[str, Amount], ages_s: Mapping[str, float]) -> list[ProdPod]:
    """The pods of class prod; `peaks` and `ages_s` by UID. A pod whose request cannot be read lends nothing."""
    found = []
    for pod in pods:
        if priority.default(pod) in _PROD:
            uid = pod.metadata.uid
            try:
                request = request_of(pod)
            except QuantityError:
                request = NOTHING
            is_terminating = pod.metadata.deletion_timestamp is not None
            is_finished = pod_labels.is_terminated(pod)
            found.append(ProdPod(request, ages_s[uid], peaks.get(uid), is_terminating, is_finished))
    return found


def request_of(pod: Pod) -> Amount:
    """The effective request of a pod. Raises: QuantityError."""
    amounts = pod_resources.requests(pod)
    return Amount(amounts.get(resources.CPU, ZERO).milli, amounts.get(resources.MEMORY, ZERO).value)


def by_pods(
    allocatable: Amount,
    pods: Iterable[ProdPod],
    margin_percent: int = SAFETY_MARGIN_PERCENT,
    cold_start_s: float = COLD_START_S,
) -> Prediction:
    """From the peak of each pod; young pods and those without prediction keep what they requested.

    A young pod keeps it until it is gone, also while it terminates: nobody knows yet what it uses. An older one that
    terminates counts nothing, and a finished one never does.
    """
    reclaimable = unreclaimable = unpredicted = NOTHING
    for pod in pods:
        if pod.is_finished:
            continue
        if pod.age_s <= cold_start_s:
            unpredicted += pod.request
        elif pod.is_terminating:
            continue
        elif pod.peak is None:
            unpredicted += pod.request
        else:
            peak = pod.peak.with_margin(margin_percent)
            reclaimable += (pod.request - peak).at_least(NOTHING)
            unreclaimable += peak
    left = (allocatable - unreclaimable).at_least(NOTHING)
    return Prediction(left.at_most(reclaimable), unreclaimable + unpredicted)


def by_class(
    allocatable: Amount,
    pods: Iterable[ProdPod],
    peak: Amount,
    margin_percent: int = SAFETY_MARGIN_PERCENT,
) -> Prediction:
    """From the common peak of the system, prod pods and pods without class."""
    used = peak.with_margin(margin_percent)
    requested = sum((pod.request for pod in pods if not (pod.is_terminating or pod.is_finished)), NOTHING)
    left = (allocatable - used).at_least(NOTHING)
    return Prediction(left.at_most((requested - used).at_least(NOTHING)), used)


def cautious(one: Prediction, other: Prediction) -> Prediction:
    """What both predictions allow."""
    return Prediction(one.reclaimable.at_most(other.reclaimable), one.peak.at_least(other.peak))
