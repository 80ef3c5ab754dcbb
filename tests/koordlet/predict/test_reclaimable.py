"""Never more is lent than was requested and is left, and young pods lend nothing."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Node, NodeStatus
from koordinator.api.meta import ObjectMeta
from koordinator.koordlet.predict import reclaimable
from koordinator.koordlet.predict.reclaimable import NOTHING, ProdPod, ReclaimableAmount

AMOUNTS = st.builds(ReclaimableAmount, st.integers(0, 10**6), st.integers(0, 2**45))
PODS = st.lists(
    st.builds(ProdPod, AMOUNTS, st.floats(0, 10 * 86_400), st.none() | AMOUNTS, st.booleans(), st.booleans()),
    max_size=8,
)


@given(AMOUNTS, PODS, AMOUNTS)
def test_nobody_lends_more_than_was_requested_and_is_left(
    allocatable: ReclaimableAmount, pods: list[ProdPod], peak: ReclaimableAmount
) -> None:
    requested = sum((pod.request for pod in pods if not pod.is_finished), NOTHING)
    both = reclaimable.cautious(
        reclaimable.by_pods(allocatable, pods), reclaimable.by_class(allocatable, pods, peak)
    )

    assert both.reclaimable.at_least(NOTHING) == both.reclaimable
    assert both.reclaimable.at_most(allocatable) == both.reclaimable
    assert both.reclaimable.at_most(requested) == both.reclaimable


@given(AMOUNTS, PODS, st.integers(0, 100), st.integers(0, 100))
def test_a_larger_margin_never_lends_more(
    allocatable: ReclaimableAmount, pods: list[ProdPod], margin: int, more: int
) -> None:
    small = reclaimable.by_pods(allocatable, pods, margin).reclaimable
    large = reclaimable.by_pods(allocatable, pods, margin + more).reclaimable

    assert large.at_most(small) == large


def test_a_pod_without_prediction_keeps_what_it_requested() -> None:
    request = ReclaimableAmount(1000, 1000)
    old = ProdPod(request, 10 * 86_400, None)

    found = reclaimable.by_pods(ReclaimableAmount(4000, 4000), [old])

    assert found.reclaimable == NOTHING
    assert found.peak == request


def test_a_young_pod_keeps_what_it_requested_until_it_is_gone() -> None:
    """As the reference does: nobody knows yet what it uses, and it still runs."""
    request, peak = ReclaimableAmount(1000, 1000), ReclaimableAmount(100, 100)
    young = ProdPod(request, 60, peak, is_terminating=True)
    old = ProdPod(request, 10 * 86_400, peak, is_terminating=True)
    finished = ProdPod(request, 60, peak, is_finished=True)

    assert reclaimable.by_pods(ReclaimableAmount(4000, 4000), [young, old, finished]).peak == request
    assert (
        reclaimable.by_class(ReclaimableAmount(4000, 4000), [young, old, finished], NOTHING).reclaimable
        == NOTHING
    )


def test_amplified_nodes_count_with_their_raw_amounts() -> None:
    annotations = {"node.koordinator.sh/raw-allocatable": '{"cpu":"4","memory":"1Ki"}'}
    status = NodeStatus(allocatable={"cpu": "8", "memory": "2Ki"})

    raw = reclaimable.allocatable_of(Node(metadata=ObjectMeta(annotations=annotations), status=status))
    broken = reclaimable.allocatable_of(
        Node(metadata=ObjectMeta(annotations=dict.fromkeys(annotations, "{")), status=status)
    )

    assert (raw, broken) == (ReclaimableAmount(4000, 1024), ReclaimableAmount(8000, 2048))
