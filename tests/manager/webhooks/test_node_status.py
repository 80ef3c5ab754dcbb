"""Amplified nodes: the kubelet's figures are raised, echoes of them are left alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, quantity
from koordinator.api.errors import ProtocolError
from koordinator.manager.webhooks import node_status, review

RATIO = labels.NODE_RESOURCE_AMPLIFICATION_RATIO
RAW = labels.NODE_RAW_ALLOCATABLE


def node(cpu_milli: int, ratio: str | None = None, **rest: Any) -> dict[str, Any]:
    annotations = {} if ratio is None else {RATIO: ratio}
    allocatable = {"cpu": f"{cpu_milli}m", "memory": "8Gi", "pods": "110"}
    return {
        "metadata": {"name": "n1", "annotations": annotations, "generation": 7},
        "status": {"capacity": dict(allocatable), "allocatable": allocatable, "phase": "Running"},
        **rest,
    }


def cpu_of(body: dict[str, Any]) -> int:
    return quantity.milli(body["status"]["allocatable"]["cpu"])


@given(cpu_milli=st.integers(1, 10**6), percent=st.integers(100, 500))
def test_an_echo_of_amplified_figures_changes_nothing(cpu_milli: int, percent: int) -> None:
    reported = node(cpu_milli, f'{{"cpu":{percent / 100:.2f}}}')

    once = node_status.mutate(reported, node(1))
    echoed = node_status.mutate(once, once)

    assert echoed == once
    assert cpu_of(once) >= cpu_milli


@given(cpu_milli=st.integers(1, 10**6), later_milli=st.integers(1, 10**6))
def test_the_kubelet_has_the_last_word_on_raw_figures(cpu_milli: int, later_milli: int) -> None:
    first = node_status.mutate(node(cpu_milli, '{"cpu":2}'), None)
    report = {**first, "status": node(later_milli)["status"]}
    if cpu_of(report) == cpu_of(first):
        return  # indistinguishable from an echo

    second = node_status.mutate(report, first)

    assert cpu_of(second) == 2 * later_milli


def test_only_allocatable_and_one_annotation_change() -> None:
    before = node(4_000, '{"cpu":1.5,"pods":3}', extra=True)

    after = node_status.mutate(before, None)

    assert after["status"].pop("allocatable") == {"cpu": "6", "memory": "8Gi", "pods": "110"}
    assert after["metadata"]["annotations"].pop(RAW) == '{"cpu":"4","memory":"8Gi"}'
    before["status"].pop("allocatable")
    assert after == before


def test_switching_amplification_off_forgets_the_raw_figures() -> None:
    amplified = node_status.mutate(node(4_000, '{"cpu":2}'), None)
    del amplified["metadata"]["annotations"][RATIO]

    plain = node_status.mutate(amplified, amplified)

    assert plain["metadata"]["annotations"] == {}
    assert cpu_of(plain) == 8_000  # until the kubelet reports again


def test_what_is_amplified_no_more_gets_its_raw_figures_back_although_nobody_reports_them() -> None:
    amplified = node_status.mutate(node(4_000, '{"cpu":2,"memory":2}'), None)
    assert amplified["status"]["allocatable"]["memory"] == "16Gi"

    only_cpu = {
        **amplified,
        "metadata": {"annotations": {**amplified["metadata"]["annotations"], RATIO: '{"cpu":3}'}},
    }
    changed = node_status.mutate(only_cpu, amplified, restores=True)
    assert changed["status"]["allocatable"] == {"cpu": "12", "memory": "8Gi", "pods": "110"}

    off = {**changed, "metadata": {"annotations": {RAW: changed["metadata"]["annotations"][RAW]}}}
    plain = node_status.mutate(off, changed, restores=True)
    assert plain["metadata"]["annotations"] == {}
    assert plain["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "110"}

    # The kubelet's own report is taken as it is.
    assert (
        cpu_of(node_status.mutate({**off, "status": node(5_000)["status"]}, changed, restores=True)) == 5_000
    )


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["report", "echo", "ratio"]), st.sampled_from([1_000, 1_500, 2_000, 3_000]))
    )
)
def test_whatever_happens_in_which_order_the_node_offers_what_it_has_times_its_ratio(
    steps: list[tuple[str, int]],
) -> None:
    """After each status update; a report of the very figures that are offered is not told from an echo."""
    stored, raw, permille = node(2_000), 2_000, 1_000
    for step, number in steps:
        update = {
            **stored,
            "metadata": {**stored["metadata"], "annotations": dict(stored["metadata"]["annotations"])},
        }
        if step == "ratio":  # the controller's patch of the node, which this webhook does not see
            permille = number
            update["metadata"]["annotations"].pop(RATIO, None)
            if permille > 1_000:
                update["metadata"]["annotations"][RATIO] = f'{{"cpu":{permille / 1000:.2f}}}'
            stored = update
            continue
        if step == "report":
            raw = number * 2
            update["status"] = node(raw)["status"]  # with its capacity, as kubelets do
        stored = node_status.mutate(update, stored, restores=True)
        assert cpu_of(stored) == raw * permille // 1_000


@pytest.mark.parametrize("annotations", [{RATIO: "{"}, {RATIO: '{"cpu":2}', RAW: "x"}])
async def test_a_malformed_annotation_never_keeps_a_kubelet_from_reporting(
    annotations: dict[str, str],
) -> None:
    body = node(1)
    body["metadata"]["annotations"] = annotations
    request = review.AdmissionRequest(
        resource=review.GroupVersionResource(resource="nodes"),
        sub_resource="status",
        operation="UPDATE",
        name="n1",
        object=body,
        old_object=body,
    )

    with pytest.raises(ProtocolError, match=r"^Node n1: node\.koordinator\.sh"):
        node_status.mutate(body, body)
    verdict = await node_status.NodeStatusHandler()(request)
    assert verdict.allowed and verdict.obj is None
    assert verdict.warnings[0].startswith("Node n1 is not amplified: Node n1: node.koordinator.sh/")


def test_a_node_that_grew_to_what_it_was_amplified_to_is_amplified_again() -> None:
    amplified = node_status.mutate(node(4_000, '{"cpu":2}'), None)
    grown = {**amplified, "status": node(8_000)["status"]}
    assert cpu_of(grown) == cpu_of(amplified)  # only the capacity tells

    assert cpu_of(node_status.mutate(grown, amplified)) == 16_000


def test_an_echo_without_the_raw_figures_is_not_amplified_twice() -> None:
    amplified = node_status.mutate(node(4_000, '{"cpu":2}'), None)
    del amplified["metadata"]["annotations"][RAW]

    assert node_status.mutate(amplified, amplified) == amplified

    reported = {**amplified, "status": node(4_000)["status"]}
    mended = node_status.mutate(reported, amplified)
    assert cpu_of(mended) == 8_000
    assert mended["metadata"]["annotations"][RAW] == '{"cpu":"4","memory":"8Gi"}'


@pytest.mark.parametrize("ratios", ['{"cpu":1e308}', '{"cpu":1e7}', '{"memory":1e300}'])
def test_a_ratio_that_is_no_factor_is_refused(ratios: str) -> None:
    with pytest.raises(ProtocolError, match="above"):
        node_status.mutate(node(4_000, ratios), None)
