"""Work out how much of what prod pods requested can be lent: requests above their predicted peak.

Source: behaviour/koordlet-observe 11.4. Peaks are the 95th percentile of CPU and the 98th of memory, plus a margin.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator import clock
from koordinator.api import pod_labels, pod_resources, priority, quantity, resources
from koordinator.api.annotations.node import RAW_ALLOCATABLE
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import ZERO, QuantityError

_PERCENT = 100
_PROD = (PriorityClass.PROD, PriorityClass.NONE)

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]


class ReclaimableAmount(msgspec.Struct, frozen=True):
    """CPU and memory."""

    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "ReclaimableAmount") -> "ReclaimableAmount":
        return ReclaimableAmount(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)


NOTHING = ReclaimableAmount()


class ProdPod(msgspec.Struct, frozen=True):
    """A pod of class prod: its request, its age, its peak (None when there is no prediction)."""

    request: ReclaimableAmount
    age_s: float
    peak: ReclaimableAmount | None
    is_terminating: bool = False
    is_finished: bool = False


class Prediction(msgspec.Struct, frozen=True):
    """The amounts that can be lent, and the peak of what stays."""

    reclaimable: ReclaimableAmount
    peak: ReclaimableAmount


class ProdPods(msgspec.Struct, frozen=True):
    """Pods of class prod on many nodes, as `ProdPod` has them: `node` is the row of each, (pods,)."""

    node: NDArray[np.int64]
    request: Amounts
    """(pods, 2): milli-cores and bytes, as everywhere below."""
    peak: Amounts
    """(pods, 2)."""
    has_peak: Mask
    age_s: NDArray[np.float64]
    is_terminating: Mask
    is_finished: Mask

    @classmethod
    def on_one_node(cls, pods: Iterable[ProdPod]) -> Self:
        """Return the pods of an agent: a fleet of one."""
        found = list(pods)
        return cls.on_nodes(found, [0] * len(found))

    @classmethod
    def on_nodes(cls, found: Sequence[ProdPod], node: Sequence[int]) -> Self:
        """Return pods with the row of each."""
        return cls(
            node=np.array(node, np.int64),
            request=rows(pod.request for pod in found),
            peak=rows(pod.peak or NOTHING for pod in found),
            has_peak=np.array([pod.peak is not None for pod in found], np.bool_),
            age_s=np.array([pod.age_s for pod in found], np.float64),
            is_terminating=np.array([pod.is_terminating for pod in found], np.bool_),
            is_finished=np.array([pod.is_finished for pod in found], np.bool_),
        )


class Predictions(msgspec.Struct, frozen=True):
    """`Prediction` of each node; both (nodes, 2)."""

    reclaimable: Amounts
    peak: Amounts

    def of(self, row: int) -> Prediction:
        """Return that of one node."""
        return Prediction(
            ReclaimableAmount(*self.reclaimable[row].tolist()), ReclaimableAmount(*self.peak[row].tolist())
        )


def by_pods_of(allocatable: Amounts, pods: ProdPods, margin_percent: int, cold_start_s: float) -> Predictions:
    """Return the prediction of each node from the peak of each pod; young pods and those without prediction keep what
    they requested. `allocatable` is (nodes, 2).

    A young pod keeps it until it is gone, also while it terminates: nobody knows yet what it uses. An older one that
    terminates counts nothing, and a finished one never does.
    """
    is_young = pods.age_s <= cold_start_s
    counts = ~pods.is_finished & (is_young | ~pods.is_terminating)
    is_predicted = counts & ~is_young & pods.has_peak
    peak = _with_margin(pods.peak, margin_percent)
    reclaimable = _sums(pods, np.maximum(pods.request - peak, 0), is_predicted, allocatable)
    stays = _sums(pods, peak, is_predicted, allocatable)
    unpredicted = _sums(pods, pods.request, counts & ~is_predicted, allocatable)
    left = np.maximum(allocatable - stays, 0)
    return Predictions(np.minimum(left, reclaimable), stays + unpredicted)


def by_class_of(allocatable: Amounts, pods: ProdPods, peak: Amounts, margin_percent: int) -> Predictions:
    """Return the prediction of each node from the common peak of the system, prod pods and pods without class;
    `allocatable` and `peak` are (nodes, 2)."""
    used = _with_margin(peak, margin_percent)
    requested = _sums(pods, pods.request, ~(pods.is_terminating | pods.is_finished), allocatable)
    left = np.maximum(allocatable - used, 0)
    return Predictions(np.minimum(left, np.maximum(requested - used, 0)), used)


def cautious_of(one: Predictions, other: Predictions) -> Predictions:
    """Return what both predictions of each node allow."""
    return Predictions(np.minimum(one.reclaimable, other.reclaimable), np.maximum(one.peak, other.peak))


def _with_margin(amounts: Amounts, percent: int) -> Amounts:
    return (amounts * ((_PERCENT + percent) / _PERCENT)).astype(np.int64)


def _sums(pods: ProdPods, amounts: Amounts, counts: Mask, like: Amounts) -> Amounts:
    """Add the amounts (pods, 2) of those that count up per node, (nodes, 2)."""
    sums = np.zeros_like(like)
    np.add.at(sums, pods.node[counts], amounts[counts])
    return sums


def rows(amounts: Iterable[ReclaimableAmount]) -> Amounts:
    """Return amounts as (n, 2)."""
    found = [(each.cpu_milli, each.memory_bytes) for each in amounts]
    return np.array(found, np.int64).reshape(-1, 2)


def allocatable_of(node: Node) -> ReclaimableAmount:
    """Return what the node offers to pods, before amplification where that is known. Raises: QuantityError."""
    try:
        raw = RAW_ALLOCATABLE.read(node.metadata.annotations)
    except ProtocolError:
        raw = None
    amounts = node.status.allocatable if raw is None else raw
    return ReclaimableAmount(
        quantity.milli(amounts.get(resources.CPU, 0)), quantity.value(amounts.get(resources.MEMORY, 0))
    )


def prod_pods(
    pods: Iterable[Pod], peaks: Mapping[str, ReclaimableAmount], ages_s: Mapping[str, float]
) -> list[ProdPod]:
    """Return the pods of class prod; `peaks` and `ages_s` by UID. A pod whose request cannot be read lends nothing."""
    found = []
    for pod in pods:
        if is_prod(pod):
            uid = pod.metadata.uid
            try:
                request = request_of(pod)
            except QuantityError:
                request = NOTHING
            is_terminating = pod.metadata.deletion_timestamp is not None
            is_finished = pod_labels.is_terminated(pod)
            found.append(ProdPod(request, ages_s[uid], peaks.get(uid), is_terminating, is_finished))
    return found


def ages_s(pods: Iterable[Pod], now_s: float) -> dict[str, float]:
    """Return ages by UID; a pod of unknown age is young."""
    found = {}
    for pod in pods:
        created_s = clock.parse_rfc3339_or(pod.metadata.creation_timestamp, now_s)
        found[pod.metadata.uid] = now_s - created_s
    return found


def is_prod(pod: Pod) -> bool:
    """Return whether a pod counts as a service, whose unused requests can be lent."""
    return priority.default(pod) in _PROD


def request_of(pod: Pod) -> ReclaimableAmount:
    """Return the effective request of a pod. Raises: QuantityError."""
    amounts = pod_resources.requests(pod)
    return ReclaimableAmount(
        amounts.get(resources.CPU, ZERO).milli, amounts.get(resources.MEMORY, ZERO).value
    )
