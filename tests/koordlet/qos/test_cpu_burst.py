"""Quotas move between the limit and its burst, buckets bound how long, and pods move with their containers."""

import random

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.slo import CPUBurstStrategy
from koordinator.koordlet.qos import cpu_burst
from koordinator.koordlet.qos.cpu_burst import BurstNodeState, BurstTokenBucket, ContainerQuota, Operation

POLICIES = st.sampled_from(["none", "auto", "cpuBurstOnly", "cfsQuotaBurstOnly"])
SETTINGS = st.builds(
    CPUBurstStrategy, policy=POLICIES, cfs_quota_burst_percent=st.none() | st.integers(50, 1000)
)
CONTAINERS = st.lists(
    st.builds(
        ContainerQuota,
        st.uuids().map(str),
        st.integers(1, 64_000),
        st.just(-1) | st.integers(1_000, 10**8),
        st.none() | st.floats(0, 1),
        st.none() | st.builds(BurstTokenBucket, st.just(1000), st.integers(-1000, 1000)),
    ),
    max_size=4,
)


@given(st.integers(0, 1_000), st.integers(1, 64))
def test_usage_is_told_in_whole_percent_of_the_limit(percent: int, cores: int) -> None:
    used_cores = (percent + 0.5) * cores / 100

    assert cpu_burst.usage_percent(used_cores, 1_000 * cores) == percent
    assert cpu_burst.usage_percent(None, 1_000 * cores) == 100


@given(SETTINGS, st.sampled_from(BurstNodeState), CONTAINERS, st.just(-1) | st.integers(1, 10**9))
def test_quotas_stay_between_limit_and_burst_and_the_pod_moves_along(
    settings: CPUBurstStrategy, state: BurstNodeState, containers: list[ContainerQuota], spare_us: int
) -> None:
    pod_us = spare_us if spare_us < 0 else spare_us + sum(max(0, each.quota_us) for each in containers)
    plan = cpu_burst.plan_pod(settings, state, containers, pod_us)

    moved = 0
    for container in containers:
        new_us = plan.containers_us[container.name]
        if container.quota_us < 0:
            assert new_us == container.quota_us
            continue
        base_us = cpu_burst.base_quota_us(container.limit_milli)
        assert base_us <= new_us <= base_us * max(settings.cfs_quota_burst_percent or 100, 100) // 100
        moved += new_us - container.quota_us
    assert plan.pod_us == (pod_us if pod_us < 0 else pod_us + moved)


@given(SETTINGS, st.sampled_from(BurstNodeState), CONTAINERS, st.integers(1, 10**8))
def test_a_pod_never_falls_below_one_of_its_containers(
    settings: CPUBurstStrategy, state: BurstNodeState, containers: list[ContainerQuota], pod_us: int
) -> None:
    plan = cpu_burst.plan_pod(settings, state, containers, pod_us)

    quotas = {container.name: container.quota_us for container in containers}
    for write in plan.writes:
        if write.container:
            quotas[write.container] = write.quota_us
        else:
            assert write.quota_us >= max(1_000, *quotas.values())


@given(SETTINGS, CONTAINERS)
def test_an_overloaded_node_never_raises_a_quota_above_its_limit(
    settings: CPUBurstStrategy, containers: list[ContainerQuota]
) -> None:
    plan = cpu_burst.plan_pod(settings, BurstNodeState.OVERLOAD, containers, 10**9)

    for container in containers:
        new_us = plan.containers_us[container.name]
        assert new_us <= max(container.quota_us, cpu_burst.base_quota_us(container.limit_milli))


def test_a_pod_grows_before_its_container_and_shrinks_after_it() -> None:
    settings = CPUBurstStrategy(policy="auto", cfs_quota_burst_percent=300)
    container = ContainerQuota("c", 1_000, 200_000, 0.5, None)

    up = cpu_burst.plan_pod(settings, BurstNodeState.IDLE, [container], 200_000)
    down = cpu_burst.plan_pod(settings, BurstNodeState.OVERLOAD, [container], 200_000)

    assert [write.container for write in up.writes] == ["", "c"]
    assert [write.container for write in down.writes] == ["c", ""]


def test_switched_off_every_container_returns_to_its_limit() -> None:
    container = ContainerQuota("c", 1_000, 300_000, 0.5, None)
    plan = cpu_burst.plan_pod(CPUBurstStrategy(policy="none"), BurstNodeState.IDLE, [container], 300_000)

    assert plan.operations == {"c": Operation.RESET}
    assert (plan.containers_us["c"], plan.pod_us) == (100_000, 100_000)


def test_a_burst_of_115_percent_ends_exactly_there() -> None:
    settings = CPUBurstStrategy(policy="auto", cfs_quota_burst_percent=115)
    container = ContainerQuota("c", 2_000, 229_000, 0.5, None)
    plan = cpu_burst.plan_pod(settings, BurstNodeState.IDLE, [container], 229_000)

    assert plan.containers_us == {"c": 230_000}  # 200 ms × 1.15 is less in floating point


def test_the_limit_is_that_of_normalized_cpus() -> None:
    container = ContainerQuota("c", 1_000, 83_334, None, None)
    plan = cpu_burst.plan_pod(CPUBurstStrategy(policy="none"), BurstNodeState.IDLE, [container], 83_334, 1.2)

    assert plan.writes == ()


@given(st.integers(0, 10**6), st.integers(-(10**6), 10**6), st.floats(0, 1e5), st.integers(0, 1000))
def test_a_bucket_stays_within_its_capacity(
    capacity: int, tokens: int, elapsed_s: float, percent: int
) -> None:
    bucket = BurstTokenBucket(capacity, tokens).step(elapsed_s, percent)

    assert -capacity <= bucket.tokens <= capacity
    assert 0 <= bucket.rest_s < 1


def test_a_loop_faster_than_a_second_still_pays() -> None:
    bucket = BurstTokenBucket(10_000, 1_000)
    for _ in range(20):
        bucket = bucket.step(0.9, 200)

    assert bucket.tokens == 1_000 - 100 * 18 or bucket.tokens == 1_000 - 100 * 17  # 20 × 0.9 s, by rounding


def test_a_new_bucket_starts_less_than_half_full_and_an_old_one_stays() -> None:
    rng = random.Random(7)
    starts = {cpu_burst.bucket_for(1000, None, rng).tokens for _ in range(200)}
    old = BurstTokenBucket(1000, 3)

    assert min(starts) >= 0 and max(starts) <= 500 and len(starts) > 50
    assert cpu_burst.bucket_for(1000, old, rng) is old
    assert cpu_burst.bucket_for(2000, old, rng).capacity == 2000


def test_a_malformed_annotation_leaves_the_nodes_settings() -> None:
    node = CPUBurstStrategy(policy="auto", cpu_burst_percent=500)

    assert cpu_burst.settings_of(node, {labels.CPU_BURST: "{"}) == node
    assert cpu_burst.settings_of(node, {}) == node


def test_nothing_known_of_the_node_never_raises_quotas() -> None:
    assert cpu_burst.node_state(None, 8, [], 50) is BurstNodeState.UNKNOWN
    assert cpu_burst.node_state(1.0, None, [], 50) is BurstNodeState.UNKNOWN
