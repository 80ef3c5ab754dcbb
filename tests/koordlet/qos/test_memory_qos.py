"""Memory protection never exceeds what was requested, parents hold their children, off writes neutral values."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, slo_qos
from koordinator.api.core import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from koordinator.api.meta import ObjectMeta
from koordinator.api.qos import KubeQoS
from koordinator.api.slo_qos import MemoryQOS, ResourceQOS, ResourceQOSStrategy
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.koordlet.qos import memory_qos

PERCENT = st.none() | st.integers(0, 100)
SETTINGS = st.builds(
    MemoryQOS,
    min_limit_percent=PERCENT,
    low_limit_percent=PERCENT,
    throttling_percent=PERCENT,
    page_cache_limit_percent=PERCENT,
    page_cache_limit_size=st.none() | st.integers(0, 2**40),
    page_cache_enable=st.none() | st.booleans(),
)


def pod(name: str, kube_qos: KubeQoS, request: int, annotation: str = "") -> Pod:
    resources = ResourceRequirements(requests={"memory": str(request)}, limits={"memory": str(2 * request)})
    annotations = {labels.MEMORY_QOS: annotation} if annotation else {}
    return Pod(
        metadata=ObjectMeta(
            name=name, uid=name, annotations=annotations, labels={"koordinator.sh/qosClass": "LS"}
        ),
        spec=PodSpec(containers=[Container(name="c", resources=resources)]),
        status=PodStatus(phase="Running", qos_class=kube_qos),
    )


PODS = st.lists(
    st.builds(pod, st.uuids().map(str), st.sampled_from(KubeQoS), st.integers(0, 2**40)), max_size=5
)


@given(PODS, SETTINGS, st.sampled_from([V1, V2]))
def test_a_class_protects_what_its_pods_do_and_the_root_everything(
    pods: list[Pod], settings: MemoryQOS, version: int
) -> None:
    strategy = ResourceQOSStrategy(ls_class=ResourceQOS(memory_qos=settings))
    plan = memory_qos.plan(pods, strategy, 2**34, version)

    def least(texts: memory_qos.Texts) -> int:
        return int(texts.get(Knob.MEMORY_MIN, "0"))

    assert least(plan.classes[KubeQoS.GUARANTEED]) == sum(least(texts) for texts in plan.pods.values())
    for each in pods:
        assert least(plan.pods[each.metadata.uid]) <= memory_qos.pod_request_bytes(each)


@given(PODS, SETTINGS, st.sampled_from([V1, V2]))
def test_every_value_can_be_written(pods: list[Pod], settings: MemoryQOS, version: int) -> None:
    strategy = ResourceQOSStrategy(ls_class=ResourceQOS(memory_qos=settings))
    plan = memory_qos.plan(pods, strategy, 2**34, version)
    groups = [*plan.classes.values(), *plan.pods.values()]
    groups += [texts for containers in plan.containers.values() for texts in containers.values()]

    for texts in groups:
        for knob, text in texts.items():
            cgroup_knobs.encode(knob, version, text)


def test_a_class_that_is_switched_off_gets_the_kernels_own_values() -> None:
    strategy = ResourceQOSStrategy(ls_class=slo_qos.NO_QOS)
    plan = memory_qos.plan([pod("p", KubeQoS.BURSTABLE, 1000)], strategy, 2**34, V1)

    assert plan.pods["p"][Knob.MEMORY_MIN] == "0"
    assert plan.pods["p"][Knob.MEMORY_WMARK_RATIO] == "0"
    assert plan.containers["p"]["c"][Knob.MEMORY_HIGH] == "9223372036854775807"


def test_a_malformed_annotation_counts_as_none_and_a_missing_section_writes_nothing() -> None:
    broken = pod("p", KubeQoS.BURSTABLE, 1000, annotation="{")
    plan = memory_qos.plan([broken], ResourceQOSStrategy(), 2**34, V2)

    assert plan.pods["p"] == {}
    assert plan.classes == {kube: {} for kube in KubeQoS}


def test_the_page_cache_may_fill_the_limit_of_a_pod_with_its_sidecars() -> None:
    limited = ResourceRequirements(limits={"memory": "1000"})
    sidecar = Container(name="s", resources=limited, restart_policy="Always")
    setup = Container(name="i", resources=ResourceRequirements(limits={"memory": "500"}))
    spec = PodSpec(containers=[Container(name="c", resources=limited)], init_containers=[setup, sidecar])
    with_sidecar = msgspec.structs.replace(pod("p", KubeQoS.BURSTABLE, 0), spec=spec)
    texts = memory_qos.pod_texts(with_sidecar, MemoryQOS(page_cache_limit_percent=50), V2)

    assert texts[Knob.PAGE_CACHE_SIZE] == "1000"
