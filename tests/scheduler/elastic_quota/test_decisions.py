"""Admission, victims and taking back: single decisions."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.plugins.elastic_quota.admission import (
    AdmissionReason,
    admit,
    fits,
    has_room,
)
from koordinator.scheduler.plugins.elastic_quota.evictions import (
    QuotaPod,
    revoke,
)
from koordinator.scheduler.plugins.elastic_quota.quota import (
    Quota,
    QuotaPodRequest,
    QuotaSpec,
    exceeding,
    nanos_of,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree


def amounts(**units: int | str) -> Amounts:
    return resource_list.of(units)


def standing(*, used: Amounts, limit: Amounts) -> Quota:
    spec = QuotaSpec(name="q", max=amounts(cpu=100, memory="100Gi", gpu=100))
    quota = Quota(spec=spec, lends=True, runtime=nanos_of(limit))
    quota.follow(spec, lends=True)
    quota.below.used = nanos_of(used)
    return quota


def pods(*asks: tuple[int, Amounts]) -> list[QuotaPod]:
    return [
        QuotaPod(name=f"p{number}", priority=priority, request=request)
        for number, (priority, request) in enumerate(asks)
    ]


def test_the_message_names_the_quota_its_figures_and_what_is_exceeded() -> None:
    quota = standing(used=amounts(cpu=4, memory="1Gi"), limit=amounts(cpu=5, memory="4Gi"))

    decision = admit(amounts(cpu="1500m", disk=3), quota, has_runtime=True)

    assert decision.message == (
        "Insufficient quotas, quotaName: q, runtime: cpu:5,memory:4Gi, used: cpu:4,memory:1Gi, "
        "pod's request: cpu:1500m, exceedDimensions: [cpu]"
    )


def test_an_ancestor_that_is_not_known_is_named_with_the_path() -> None:
    quota = standing(used={}, limit=amounts(cpu=5))

    decision = admit(amounts(cpu=1), quota, has_runtime=True, ancestors=["gone"])

    assert decision.reason is AdmissionReason.ANCESTOR_MISSING
    assert decision.message == "Could not find the elasticQuota gone, quotaNameTopo: [gone q]"


def test_only_what_the_pod_asks_for_counts() -> None:
    quota = standing(used=amounts(gpu=9), limit=amounts(cpu=5, gpu=8))

    assert admit(amounts(cpu=1, gpu=0), quota, has_runtime=True).exceeded == ("gpu",)
    assert admit(amounts(cpu=1), quota, has_runtime=True).is_allowed


@given(used=st.integers(0, 20), limit=st.integers(0, 20), asked=st.integers(0, 20))
def test_an_admitted_pod_never_lifts_its_quota_above_the_limit(used: int, limit: int, asked: int) -> None:
    quota = standing(used=amounts(cpu=used), limit=amounts(cpu=limit))

    decision = admit(amounts(cpu=asked), quota, has_runtime=True)

    assert decision.is_allowed == (used + asked <= limit)


def test_pods_of_different_shapes_are_all_counted_when_taking_back() -> None:
    assigned = pods((1, amounts(cpu=2)), (2, amounts(gpu=1)))

    evicted = revoke(amounts(cpu=2, gpu=1), amounts(cpu=0, gpu=0), assigned)

    assert {each.name for each in evicted} == {"p0", "p1"}


@given(
    asks=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6)), max_size=6),
    cpu=st.integers(0, 20),
    gpu=st.integers(0, 20),
)
def test_taking_back_is_enough_and_no_eviction_is_needless(
    asks: list[tuple[int, int, int]], cpu: int, gpu: int
) -> None:
    assigned = pods(*((priority, amounts(cpu=c, gpu=g)) for priority, c, g in asks))
    used = resource_list.sum_of([amounts(cpu=0, gpu=0), *(each.request for each in assigned)])
    runtime = amounts(cpu=cpu, gpu=gpu)

    evicted = revoke(used, runtime, assigned)

    left = resource_list.sub(used, resource_list.sum_of(each.request for each in evicted))
    assert not exceeding(left, runtime)
    assert all(exceeding(resource_list.add(left, each.request), runtime) for each in evicted)


@given(data=st.data())
def test_the_quick_check_of_a_pod_agrees_with_the_one_that_explains(data: st.DataObject) -> None:
    numbers = st.integers(0, 12)
    tree = GroupQuotaTree()
    tree.total = amounts(cpu=data.draw(numbers), memory=data.draw(numbers))
    ceiling = amounts(cpu=10, memory=10)
    low = amounts(cpu=data.draw(st.integers(0, 5)))
    tree.set_quota(QuotaSpec(name="p", is_parent=True, max=ceiling, weight=ceiling))
    tree.set_quota(QuotaSpec(name="q", parent="p", min=low, max=ceiling, weight=ceiling))
    for number in range(3):
        request = amounts(cpu=data.draw(numbers), memory=data.draw(numbers))
        ask = QuotaPodRequest(
            key=str(number), request=request, is_on_node=True, is_preemptible=data.draw(st.booleans())
        )
        tree.add_pod("q", ask)
    quota, parent = tree.bring_up_to_date("q"), tree.bring_up_to_date("p")
    assert quota is not None and parent is not None
    request, preemptible = amounts(cpu=data.draw(numbers), disk=1), data.draw(st.booleans())

    decision = admit(
        request,
        quota,
        has_runtime=True,
        is_preemptible=preemptible,
        ancestors=[parent],
    )

    asked = nanos_of(request)
    quick = has_room(asked, quota, quota.runtime, is_preemptible=preemptible) and fits(
        asked, quota.max, parent.below.used, parent.runtime
    )
    assert quick == decision.is_allowed
