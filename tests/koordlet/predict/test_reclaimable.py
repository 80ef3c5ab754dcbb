"""Never more is lent than was requested and is left, and young pods lend nothing."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Node, NodeStatus
from koordinator.api.meta import ObjectMeta
from koordinator.koordlet.predict import reclaimable
from koordinator.koordlet.predict.reclaimable import (
    NOTHING,
    Predictions,
    ProdPod,
    ProdPods,
    ReclaimableAmount,
)

AMOUNTS = st.builds(ReclaimableAmount, st.integers(0, 10**6), st.integers(0, 2**45))
PODS = st.lists(
    st.builds(ProdPod, AMOUNTS, st.floats(0, 10 * 86_400), st.none() | AMOUNTS, st.booleans(), st.booleans()),
    max_size=8,
)


def by_pods(allocatable: ReclaimableAmount, pods: list[ProdPod], margin_percent: int = 10) -> Predictions:
    total = reclaimable.rows((allocatable,))
    return reclaimable.by_pods_of(total, ProdPods.on_one_node(pods), margin_percent, 86_400.0)


def by_class(allocatable: ReclaimableAmount, pods: list[ProdPod], peak: ReclaimableAmount) -> Predictions:
    total, used = reclaimable.rows((allocatable,)), reclaimable.rows((peak,))
    return reclaimable.by_class_of(total, ProdPods.on_one_node(pods), used, 10)


@given(AMOUNTS, PODS, AMOUNTS)
def test_nobody_lends_more_than_was_requested_and_is_left(
    allocatable: ReclaimableAmount, pods: list[ProdPod], peak: ReclaimableAmount
) -> None:
    requested = sum((pod.request for pod in pods if not pod.is_finished), NOTHING)
    lent = reclaimable.cautious_of(by_pods(allocatable, pods), by_class(allocatable, pods, peak)).reclaimable

    assert (lent >= 0).all()
    assert (lent <= reclaimable.rows((allocatable,))).all()
    assert (lent <= reclaimable.rows((requested,))).all()


@given(AMOUNTS, PODS, st.integers(0, 100), st.integers(0, 100))
def test_a_larger_margin_never_lends_more(
    allocatable: ReclaimableAmount, pods: list[ProdPod], margin: int, more: int
) -> None:
    small = by_pods(allocatable, pods, margin).reclaimable
    large = by_pods(allocatable, pods, margin + more).reclaimable

    assert (large <= small).all()


def test_a_pod_without_prediction_keeps_what_it_requested() -> None:
    request = ReclaimableAmount(1000, 1000)
    old = ProdPod(request, 10 * 86_400, None)

    found = by_pods(ReclaimableAmount(4000, 4000), [old]).of(0)

    assert found.reclaimable == NOTHING
    assert found.peak == request


def test_a_young_pod_keeps_what_it_requested_until_it_is_gone() -> None:
    """As the reference does: nobody knows yet what it uses, and it still runs."""
    request, peak = ReclaimableAmount(1000, 1000), ReclaimableAmount(100, 100)
    young = ProdPod(request, 60, peak, is_terminating=True)
    old = ProdPod(request, 10 * 86_400, peak, is_terminating=True)
    finished = ProdPod(request, 60, peak, is_finished=True)

    pods, total = [young, old, finished], ReclaimableAmount(4000, 4000)
    assert by_pods(total, pods).of(0).peak == request
    assert by_class(total, pods, NOTHING).of(0).reclaimable == NOTHING


def test_amplified_nodes_count_with_their_raw_amounts() -> None:
    annotations = {"node.koordinator.sh/raw-allocatable": '{"cpu":"4","memory":"1Ki"}'}
    status = NodeStatus(allocatable={"cpu": "8", "memory": "2Ki"})

    raw = reclaimable.allocatable_of(Node(metadata=ObjectMeta(annotations=annotations), status=status))
    broken = reclaimable.allocatable_of(
        Node(metadata=ObjectMeta(annotations=dict.fromkeys(annotations, "{")), status=status)
    )

    assert (raw, broken) == (ReclaimableAmount(4000, 1024), ReclaimableAmount(8000, 2048))
