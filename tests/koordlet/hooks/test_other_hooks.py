"""Hooks for core scheduling, out-of-memory scores, GPUs and network: what they give, and what they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.annotations.device import HAMI_CORE
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo_qos import CPUQOS, NetworkQOS, QOSPolicies, ResourceQOS, ResourceQOSStrategy
from koordinator.host.files import FileFailure, FileProblem
from koordinator.koordlet.hooks import core_sched, device_inject, oom_score, tc
from koordinator.koordlet.hooks.tc import TrafficClass

CORE_SCHED = core_sched.rule_of(
    ResourceQOSStrategy(
        policies=QOSPolicies(cpu_policy="coreSched"),
        lsr_class=ResourceQOS(cpu_qos=CPUQOS(enable=True)),
        be_class=ResourceQOS(cpu_qos=CPUQOS(enable=True, sched_idle=1)),
    )
)


def test_system_pods_have_no_core_group() -> None:
    system = {labels.QOS_CLASS: "SYSTEM", labels.CORE_SCHED_POLICY: "exclusive"}

    assert core_sched.group_of(CORE_SCHED, system, KubeQoS.GUARANTEED, "u") == core_sched.CoreGroup(False, "")


@pytest.mark.parametrize(
    ("kube_qos", "is_enabled"),
    [(KubeQoS.GUARANTEED, True), (KubeQoS.BURSTABLE, False), (KubeQoS.BEST_EFFORT, True)],
)
def test_pods_without_class_follow_their_kubernetes_qos(kube_qos: KubeQoS, is_enabled: bool) -> None:
    assert core_sched.group_of(CORE_SCHED, {}, kube_qos, "u").is_enabled is is_enabled


def test_the_node_needs_core_scheduling_when_any_class_does() -> None:
    assert CORE_SCHED.is_enabled
    assert not core_sched.rule_of(ResourceQOSStrategy()).is_enabled


def test_a_malformed_score_is_an_error_with_its_key() -> None:
    for key, text in ((labels.OOM_SCORE_ADJ, "high"), (labels.OOM_SCORE_ADJ_SPEC, "{")):
        with pytest.raises(ProtocolError) as refused:
            oom_score.score({key: text, labels.OOM_SCORE_ADJ: text}, "c")
        assert refused.value.field == key


def test_an_empty_score_is_none_and_an_empty_list_hides_nothing() -> None:
    assert oom_score.score({labels.OOM_SCORE_ADJ: ""}, "c") is None
    assert oom_score.score({labels.OOM_SCORE_ADJ_SPEC: ""}, "c") is None
    assert oom_score.score({labels.OOM_SCORE_ADJ_SPEC: "", labels.OOM_SCORE_ADJ: "5"}, "c") == 5


@given(st.integers(-2000, 2000))
def test_a_score_is_valid_or_left_alone(value: int) -> None:
    score = oom_score.score({labels.OOM_SCORE_ADJ: str(value)}, "c")

    assert score == (value if -1000 <= value <= 1000 else None)


SHARED = '{"gpu":[{"minor":1,"resources":{%s"koordinator.sh/gpu-memory-ratio":"50"}},{"minor":3}]}'
HAMI = {labels.GPU_ISOLATION_PROVIDER: HAMI_CORE}


def test_a_shared_gpu_gets_limits_from_the_isolation_library() -> None:
    amounts = '"koordinator.sh/gpu-memory":"1Ki","koordinator.sh/gpu-core":"50",'
    variables = device_inject.environment(HAMI, {labels.DEVICE_ALLOCATED: SHARED % amounts})

    assert variables == {
        "NVIDIA_VISIBLE_DEVICES": "1,3",
        "CUDA_DEVICE_MEMORY_LIMIT": "1024",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "LD_PRELOAD": device_inject.HAMI_LIBRARY,
    }


def test_what_is_lent_of_a_card_limits_a_batch_pod() -> None:
    amounts = '"koordinator.sh/batch-gpu-core":"30","koordinator.sh/batch-gpu-memory":"1Gi"'
    text = f'{{"gpu":[{{"minor":1,"resources":{{{amounts}}}}}]}}'

    variables = device_inject.environment(HAMI, {labels.DEVICE_ALLOCATED: text})

    assert variables == {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_MEMORY_LIMIT": str(2**30),
        "CUDA_DEVICE_SM_LIMIT": "30",
        "LD_PRELOAD": device_inject.HAMI_LIBRARY,
    }


def test_isolation_without_a_memory_amount_is_refused() -> None:
    with pytest.raises(ProtocolError, match="gpu-memory"):
        device_inject.environment(HAMI, {labels.DEVICE_ALLOCATED: SHARED % ""})


RATES = st.builds(
    NetworkQOS,
    enable=st.booleans(),
    egress_request=st.integers(0, 50) | st.just("1M"),
    egress_limit=st.integers(0, 100),
)


@given(RATES, RATES, st.integers(0, 10**12))
def test_what_is_assured_to_all_classes_is_the_total(
    service: NetworkQOS, best_effort: NetworkQOS, total_bits: int
) -> None:
    rates = tc.class_rates(service, best_effort, total_bits)
    assured = sum(rate.rate_bytes_per_s for rate in rates.values())

    assert set(rates) == set(TrafficClass)
    assert assured >= total_bits // 8
    assert rates[TrafficClass.SYSTEM].rate_bytes_per_s >= 0


def test_pods_are_classed_by_qos_or_by_a_class_of_their_own() -> None:
    assert tc.class_id(QoSClass.LSR) == 0x1_0003
    assert tc.class_id(QoSClass.BE, own_minor=0xABCD) == 0x1_ABCD
    assert tc.class_id(QoSClass.NONE) is None


@pytest.mark.parametrize(("failure", "is_told"), [(FileFailure.GONE, False), (FileFailure.DENIED, True)])
def test_a_process_that_has_ended_is_no_problem_when_cookies_are_given_or_taken(
    failure: FileFailure, is_told: bool
) -> None:
    class Refusing:
        """Every process has a cookie, another one each, which cannot be changed."""

        def cookie(self, pid: int) -> int:
            return pid

        def create(self, pid: int) -> None:
            return None

        def assign(self, source: int, pids: list[int]) -> dict[int, FileProblem]:
            return {pid: FileProblem(f"process {pid}", failure) for pid in pids}

        def clear(self, pids: list[int]) -> dict[int, FileProblem]:
            return self.assign(0, pids)

    cookies = core_sched.Cookies(Refusing())  # type: ignore[arg-type]

    given, taken = cookies.give("c", "g", [10, 11], 0.0), cookies.clear("c", [10, 11])

    assert [problem is not None for problem in (given, taken)] == [is_told, is_told]
