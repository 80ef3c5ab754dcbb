"""Only pods that may be evicted are, in a total order, and never more than is wanted."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from koordinator.api.meta import ObjectMeta
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.qos import cpu_evict, eviction, memory_evict, threshold_eviction
from koordinator.koordlet.qos.cpu_evict import BESample
from koordinator.koordlet.qos.eviction import Arbitration, EvictionTask, ReleaseTarget
from koordinator.koordlet.qos.memory_evict import MemoryState
from koordinator.koordlet.qos.threshold_eviction import Marks, ThresholdProblem

GIB = 2**30


def pod(
    name: str,
    *,
    qos: str = "BE",
    priority: int | None = 5500,
    phase: str = "Running",
    batch_cpu: int = 1000,
    born: str = "2024-01-01T00:00:00Z",
    evictable: str = "true",
) -> Pod:
    requests = ResourceRequirements(requests={"kubernetes.io/batch-cpu": str(batch_cpu)})
    pod_labels = {"koordinator.sh/qosClass": qos, "koordinator.sh/eviction-enabled": evictable}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="n", uid=name, labels=pod_labels, creation_timestamp=born),
        spec=PodSpec(priority=priority, containers=[Container(name="c", resources=requests)]),
        status=PodStatus(phase=phase),
    )


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 100), max_size=2)
UIDS = [f"p{index}" for index in range(6)]
TASKS = st.lists(
    st.builds(
        EvictionTask,
        st.sampled_from((*cpu_evict.CPUEvict.gates, *memory_evict.MemoryEvict.gates)),
        st.sampled_from(ReleaseTarget),
        AMOUNTS,
        st.permutations(UIDS).map(tuple),
        st.dictionaries(st.sampled_from(UIDS), AMOUNTS),
    ),
    max_size=3,
)


@given(TASKS, st.sets(st.sampled_from(UIDS)), st.sets(st.sampled_from(UIDS)))
def test_nobody_is_evicted_twice_or_once_the_wanted_is_there(
    tasks: list[EvictionTask], already: set[str], failing: set[str]
) -> None:
    arbitration = Arbitration(tasks, already)
    while (victim := arbitration.next_victim()) is not None:
        asking = [task for task in tasks if task.feature is victim.feature]
        assert any(arbitration.left(task) for task in asking)
        arbitration.settle(victim, victim.uid not in failing)

    evicted = arbitration.evicted
    assert len(set(evicted)) == len(evicted)
    assert not set(evicted) & (already | failing)


@given(TASKS)
def test_a_round_ends_when_all_is_released_or_all_candidates_are_gone(tasks: list[EvictionTask]) -> None:
    arbitration = Arbitration(tasks)
    while (victim := arbitration.next_victim()) is not None:
        arbitration.settle(victim, True)

    for task in tasks:
        assert not arbitration.left(task) or set(task.candidates) <= set(arbitration.evicted)


def test_a_pod_that_requested_no_cpu_at_all_starves_nobody() -> None:
    pods = [pod("zero", batch_cpu=0), pod("some")]

    ordered = cpu_evict.starved_first(pods, {"zero": 3.0, "some": 0.1})

    assert [each.metadata.name for each in ordered] == ["some", "zero"]


@given(st.permutations([pod("a", born="2024-01-03T00:00:00Z"), pod("b"), pod("c"), pod("d", priority=5000)]))
def test_the_order_does_not_depend_on_how_pods_are_listed(pods: list[Pod]) -> None:
    used = dict.fromkeys("abcd", 1.0)
    ordered = eviction.by_priority(cpu_evict.CPU, pods, used, 9999)

    assert [each.metadata.name for each in ordered] == ["d", "a", "b", "c"]
    assert [each.metadata.name for each in cpu_evict.starved_first(pods, used)] == ["d", "a", "b", "c"]


def test_services_are_spared_by_features_for_best_effort_pods() -> None:
    pods = [pod("service", qos="LS", priority=9000), pod("batch")]
    used = {"service": 50.0 * GIB, "batch": 1.0 * GIB}

    assert [each.metadata.name for each in eviction.largest_first(memory_evict.BE_MEMORY, pods, used)] == [
        "batch"
    ]
    above = eviction.by_priority(memory_evict.MEMORY, pods, used, 5999)
    assert [each.metadata.name for each in above] == ["batch"]


def test_memory_is_counted_in_bytes_so_that_one_small_victim_is_not_enough() -> None:
    pods = [pod(f"p{index}") for index in range(3)]
    used = {each.metadata.uid: 1.0 * GIB for each in pods}
    strategy = ResourceThresholdStrategy(
        enable=True, memory_evict_threshold_percent=80, evict_enabled_priority_threshold=5999
    )
    state = MemoryState(10 * GIB, 10.0 * GIB, used)
    arbitration = Arbitration(memory_evict.tasks([memory_evict.MEMORY], strategy, state, {}, pods))
    while (victim := arbitration.next_victim()) is not None:
        arbitration.settle(victim, True)

    assert len(arbitration.evicted) == 3  # 2.2 GiB are wanted


def test_native_requests_and_finished_pods_are_no_reason_to_evict() -> None:
    native = Pod(
        metadata=ObjectMeta(name="free", uid="free"),
        spec=PodSpec(
            priority=3500,
            containers=[Container(name="c", resources=ResourceRequirements(requests={"cpu": "64"}))],
        ),
        status=PodStatus(phase="Running"),
    )
    marks = Marks(80, 70, 5999)

    assert threshold_eviction.allocatable_release("cpu", [native], {}, marks) == {}
    assert threshold_eviction.allocatable_release("cpu", [pod("done", phase="Succeeded")], {}, marks) == {}
    assert threshold_eviction.allocatable_release("cpu", [pod("runs")], {}, marks) == {
        "kubernetes.io/batch-cpu": 1000
    }


def test_memory_above_what_is_lent_is_rounded_as_the_reference_does() -> None:
    asks = ResourceRequirements(requests={"kubernetes.io/batch-memory": "9Gi"})
    batch = msgspec.structs.replace(
        pod("b"), spec=PodSpec(priority=5500, containers=[Container(name="c", resources=asks)])
    )
    lent = {"kubernetes.io/batch-memory": 10 * GIB}

    wanted = threshold_eviction.allocatable_release("memory", [batch], lent, Marks(85, 80, 5999))

    assert wanted == {"kubernetes.io/batch-memory": GIB - 1}


SAMPLES = st.builds(BESample, st.integers(0, 60), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(-1, 1e5))


@given(SAMPLES, SAMPLES)
def test_starvation_never_releases_more_than_is_requested(average: BESample, latest: BESample) -> None:
    strategy = ResourceThresholdStrategy(
        cpu_evict_be_satisfaction_lower_percent=30, cpu_evict_be_satisfaction_upper_percent=40
    )
    release = cpu_evict.satisfaction_release_milli(strategy, average, latest, 1, None)

    assert 0 <= release <= 0.4 * min(average.request, latest.request) + 1


def test_without_any_sample_nothing_is_released() -> None:
    strategy = ResourceThresholdStrategy(
        cpu_evict_be_satisfaction_lower_percent=30, cpu_evict_be_satisfaction_upper_percent=40
    )
    empty = BESample(0, 9_000, 50_000, 10_000)

    assert cpu_evict.satisfaction_release_milli(strategy, empty, empty, 1, None) == 0
    assert cpu_evict.satisfaction_release_milli(strategy, None, empty, 1, None) == 0


@pytest.mark.parametrize(("count", "is_enough"), [(2, False), (3, True)])
def test_samples_must_cover_a_third_of_the_window_in_whole_seconds(count: int, is_enough: bool) -> None:
    strategy = ResourceThresholdStrategy(
        cpu_evict_be_satisfaction_lower_percent=30,
        cpu_evict_be_satisfaction_upper_percent=40,
        cpu_evict_time_window_seconds=10,
    )
    starved = BESample(count, 9_900, 50_000, 10_000)

    assert (cpu_evict.satisfaction_release_milli(strategy, starved, starved, 1, None) > 0) is is_enough


def test_eviction_runs_only_when_it_is_switched_on() -> None:
    assert threshold_eviction.activity(None) is ThresholdProblem.NOT_CONFIGURED
    assert threshold_eviction.activity(ResourceThresholdStrategy()) is ThresholdProblem.NOT_CONFIGURED
    assert threshold_eviction.activity(ResourceThresholdStrategy(enable=False)) is ThresholdProblem.DISABLED
    assert threshold_eviction.activity(ResourceThresholdStrategy(enable=True)) is None


def test_an_event_names_feature_and_pod() -> None:
    victim = eviction.EvictionVictim("uid", cpu_evict.BE_CPU)

    assert victim.message("web-0") == "trigger by koordlet feature BECPUEvict, kill pod: web-0"


def test_a_target_that_nobody_wants_anything_of_is_not_counted() -> None:
    idle = EvictionTask(cpu_evict.CPU, ReleaseTarget.USED, {"cpu": 0}, (), {"a": {"cpu": 5}})
    busy = EvictionTask(cpu_evict.BE_CPU, ReleaseTarget.REQUEST, {"cpu": 1}, ("a",), {"a": {"cpu": 2}})
    arbitration = Arbitration([busy, idle])
    victim = arbitration.next_victim()
    assert victim is not None
    arbitration.settle(victim, True)

    assert arbitration.released == {ReleaseTarget.REQUEST: {"cpu": 2}}
