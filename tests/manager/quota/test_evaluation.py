"""Quota evaluation at admission: what is given out never exceeds the limit, in any order and after conflicts."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, resource_list
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.manager.quota import evaluation
from koordinator.manager.quota.evaluation import PodQuotaRules, QuotaLimit
from koordinator.manager.quota.tree import QuotaTree, quota_info
from tests.manager.quota.builders import quota

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 9).map(str)).map(
    resource_list.of
)


def limit(**amounts: str) -> QuotaLimit:
    return QuotaLimit("ns/q", resource_list.of(amounts), resource_list.of(amounts), {})


@given(most=AMOUNTS, used=AMOUNTS, requests=st.lists(AMOUNTS, max_size=6))
def test_what_is_accepted_is_what_is_counted_and_stays_below_the_limit(
    most: resource_list.Amounts, used: resource_list.Amounts, requests: list[resource_list.Amounts]
) -> None:
    given_quota = QuotaLimit("ns/q", most, most, used)

    decisions, after = evaluation.evaluate_batch(given_quota, requests)

    accepted = resource_list.sum_of(decision.delta for decision in decisions)
    assert after == resource_list.add(used, accepted)
    for name in accepted:
        assert after[name] <= most[name]
    assert all(decision.allowed or not decision.delta for decision in decisions)


def test_a_refusal_shows_the_figures_of_what_is_exceeded_in_the_order_of_names() -> None:
    full = msgspec.structs.replace(
        limit(memory="8", cpu="4", pods="9"), used=resource_list.of({"cpu": "3", "memory": "8"})
    )

    refused = evaluation.evaluate(full, resource_list.of({"memory": "1", "cpu": "2", "pods": "1"}))

    assert refused.message == (
        "exceeded quota: ns/q, requested: cpu=2,memory=1, used: cpu=3,memory=8, limited: cpu=4,memory=8"
    )


def test_a_pod_that_has_ended_asks_for_nothing_and_resources_are_renamed_on_demand() -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2", "x": "1"}}}]}
    annotations = {labels.REPLACE_RESOURCES: "cpu:kubernetes.io/batch-cpu,x:"}
    pod = from_builtins({"metadata": {"annotations": annotations}, "spec": spec}, Pod)
    ended = from_builtins({"spec": spec, "status": {"phase": "Succeeded"}}, Pod)

    assert evaluation.pod_request(ended) == {}
    assert evaluation.pod_request(pod) == resource_list.of({"cpu": "2", "x": "1"})
    replaced = evaluation.pod_request(pod, replaces_resources=True)
    assert replaced == resource_list.of({"kubernetes.io/batch-cpu": "2000"})


def test_the_quota_of_a_pod_must_be_the_only_one_of_its_name() -> None:
    first, second = quota("web"), quota("web")

    assert evaluation.find([first], "web") is first
    assert evaluation.find([], labels.DEFAULT_QUOTA_NAME) is None
    for quotas, said in (
        ([], "elastic quota web not found"),
        ([first, second], "more than one elastic quota web"),
    ):
        with pytest.raises(evaluation.QuotaLookupError, match=said):
            evaluation.find(quotas, "web")


def test_a_malformed_annotation_names_quota_and_key() -> None:
    broken = quota("web")
    broken.metadata.annotations[labels.QUOTA_CHILD_REQUEST] = "{"

    with pytest.raises(ProtocolError, match=r"ElasticQuota quotas/web: .*/child-request"):
        evaluation.limit_of(broken)


def test_a_pod_that_asks_for_nothing_of_a_quota_may_come_though_an_annotation_is_malformed() -> None:
    broken = quota("web", high={"cpu": "1"})
    broken.metadata.annotations[labels.QUOTA_ADMISSION] = "{"

    assert evaluation.decide(broken, resource_list.of({"memory": "1"})).allowed
    for cpu in ("1", "2"):
        with pytest.raises(ProtocolError, match="/admission"):
            evaluation.decide(broken, resource_list.of({"cpu": cpu}))


def test_the_default_quota_takes_pods_also_when_it_is_labelled_a_parent() -> None:
    tree = QuotaTree()
    for name in (labels.DEFAULT_QUOTA_NAME, "web"):
        tree.put(quota_info(quota(name, is_parent=True)))

    def allows(own: dict[str, str]) -> bool:
        pod = from_builtins({"metadata": {"name": "p", "namespace": "n", "labels": own}}, Pod)
        return evaluation.check_quota_use(tree, pod, None, "n", PodQuotaRules()).allowed

    assert allows({})
    assert allows({labels.QUOTA_NAME: labels.DEFAULT_QUOTA_NAME})
    assert not allows({labels.QUOTA_NAME: "web"})


@given(changed=st.integers(0, 10_000), most=st.integers(0, 20), seed=st.integers(0, 99))
def test_retries_and_their_pauses_are_bounded(changed: int, most: int, seed: int) -> None:
    count = evaluation.retries(changed, most)
    assert evaluation.RETRIES_MIN <= count <= max(evaluation.RETRIES_MIN, most)
    assert count <= evaluation.retries(changed + 1, most)

    rng, slept_s = random.Random(seed), 0.0
    for _ in range(count):
        slept_s += evaluation.retry_pause_s(0.4, slept_s, 1.0, rng)
    assert slept_s <= 1.0
    assert 0.2 <= evaluation.retry_pause_s(0.4, 0.0, 1.0, rng) < 0.4


@pytest.mark.parametrize(
    ("name", "is_judged"),
    [
        ("cpu", True),
        ("kubernetes.io/batch-cpu", True),
        ("kubernetes.io/mid-memory", True),
        ("requests.x.io/gpu", True),
        ("x.io/gpu", False),
        ("pods", False),
    ],
)
def test_a_quota_that_names_no_resource_of_pods_lets_all_pass(name: str, is_judged: bool) -> None:
    tight = QuotaLimit("ns/q", resource_list.of({name: 1}), resource_list.of({name: 1}), {})
    decision = evaluation.evaluate(tight, resource_list.of({name: 2}))
    assert decision.allowed is not is_judged


def test_a_pod_fits_up_to_the_limit_and_only_what_is_limited_counts() -> None:
    known = QuotaLimit(
        "ns/q",
        resource_list.of({"cpu": 9, "memory": 9}),
        resource_list.of({"cpu": 3}),
        resource_list.of({"cpu": 1}),
    )
    request = resource_list.of({"cpu": 2, "memory": 99, "x.io/y": 1})
    decision = evaluation.evaluate(known, request)
    assert decision.allowed
    assert decision.delta == resource_list.of({"cpu": 2, "memory": 99})
    assert not evaluation.evaluate(known, resource_list.of({"cpu": "2001m"})).allowed
    assert evaluation.evaluate(known, resource_list.of({"cpu": 0})).delta == {}


@pytest.mark.parametrize(
    ("changed", "most", "count"),
    [(0, 9, 3), (1, 9, 3), (2, 9, 4), (3, 9, 4), (4, 9, 5), (64, 9, 9), (9999, 5, 5), (9999, 1, 3)],
)
def test_the_more_pods_depend_on_a_write_the_oftener_it_is_tried(changed: int, most: int, count: int) -> None:
    assert evaluation.retries(changed, most) == count


def test_pauses_end_where_their_sum_does() -> None:
    rng = random.Random(1)
    assert evaluation.retry_pause_s(0.4, 0.9, 1.0, rng) == pytest.approx(0.1)
    assert evaluation.retry_pause_s(0.4, 1.5, 1.0, rng) == 0.0
