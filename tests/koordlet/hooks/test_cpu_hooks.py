"""Hooks for CPU: identities, CPU lists, quotas and shares stay valid, and off puts back what was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.annotations.koordlet import ContainerResources
from koordinator.api.annotations.node import CPUSharedPool
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import QoSClass
from koordinator.api.slo_qos import CPUQOS, QOSPolicies, ResourceQOS, ResourceQOSStrategy
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.koordlet.hooks import batch_resource, cpuset_allocator, group_identity
from koordinator.koordlet.hooks.batch_resource import BatchRule
from koordinator.koordlet.hooks.contexts import UNKNOWN
from koordinator.koordlet.hooks.cpuset_allocator import NodeCPUPools
from koordinator.koordlet.hooks.group_identity import Kernel
from koordinator.koordlet.qos import cpu_burst

CLASSES = st.builds(
    lambda enable, identity: ResourceQOS(cpu_qos=CPUQOS(enable=enable, group_identity=identity)),
    st.booleans(),
    st.integers(-1, 2),
)
POLICIES = st.sampled_from([None, "", "groupIdentity", "coreSched"])
STRATEGIES = st.builds(
    lambda policy, lsr, ls, be: ResourceQOSStrategy(
        policies=QOSPolicies(cpu_policy=policy), lsr_class=lsr, ls_class=ls, be_class=be
    ),
    POLICIES,
    CLASSES,
    CLASSES,
    st.none() | CLASSES,
)
LS = {labels.QOS_CLASS: "LS"}


@given(STRATEGIES)
def test_every_identity_can_be_written_and_a_rule_that_is_off_is_all_zeros(
    strategy: ResourceQOSStrategy,
) -> None:
    rule = group_identity.rule_of(strategy)
    values = [*rule.by_qos.values(), *rule.by_class_dir.values(), *rule.by_kube_qos.values()]

    for value in values:
        cgroup_knobs.check(Knob.CPU_BVT, V1, str(value))
    assert rule.is_enabled or not any(values)


def test_an_ls_pod_keeps_its_own_identity_when_the_rule_changes() -> None:
    own = {labels.CPU_QOS: '{"enable":true,"groupIdentity":-1}'}
    rules = [
        group_identity.rule_of(
            ResourceQOSStrategy(ls_class=ResourceQOS(cpu_qos=CPUQOS(enable=True, group_identity=value)))
        )
        for value in (1, 2)
    ]

    assert {group_identity.pod_value(rule, LS, own, "kubepods/burstable/x") for rule in rules} == {-1}


def test_recovery_zeros_are_written_unless_the_kernels_switch_is_off_too() -> None:
    off = group_identity.rule_of(ResourceQOSStrategy())

    assert group_identity.is_written(off, Kernel(True, None))
    assert group_identity.is_written(off, Kernel(True, 1))
    assert not group_identity.is_written(off, Kernel(True, 0))
    assert not group_identity.is_written(off, Kernel(False, 1))


POOLS = NodeCPUPools(
    shared=(CPUSharedPool(socket=0, node=0, cpuset="1-3"), CPUSharedPool(socket=0, node=1, cpuset="")),
    best_effort=(CPUSharedPool(socket=0, node=0, cpuset="0-3"),),
    system_cpus="7",
)


def test_pools_without_cpus_leave_no_empty_items() -> None:
    cpus = cpuset_allocator.decide(LS, {}, "kubepods/burstable/p/c", POOLS, has_be_manager=False)

    assert cpus == "1-3"


def test_a_pod_that_got_cpu_of_one_numa_node_runs_on_all_numa_nodes_that_it_is_on() -> None:
    pools = NodeCPUPools(
        shared=tuple(
            CPUSharedPool(socket=0, node=node, cpuset=f"{4 * node}-{4 * node + 3}") for node in range(3)
        )
    )
    entries = '{"node":2,"resources":{"memory":"1Gi"}},{"node":0,"resources":{"cpu":"1"}}'
    allocated = {labels.RESOURCE_STATUS: f'{{"numaNodeResources":[{entries}]}}'}

    cpus = cpuset_allocator.decide(LS, allocated, "kubepods/p/c", pools, has_be_manager=False)

    assert cpus == "8-11,0-3"


def test_system_pods_get_their_own_cpus() -> None:
    system = {labels.QOS_CLASS: "SYSTEM"}
    cpus = cpuset_allocator.decide(system, {}, "kubepods/burstable/p/c", POOLS, has_be_manager=False)

    assert cpus == "7"


def test_a_malformed_allocation_is_an_error_and_never_an_empty_list() -> None:
    broken = {labels.RESOURCE_STATUS: "{"}

    with pytest.raises(ProtocolError) as refused:
        cpuset_allocator.decide(LS, broken, "kubepods/p/c", POOLS, has_be_manager=False, obj="Pod a/b")
    assert refused.value.obj == "Pod a/b"
    with pytest.raises(ProtocolError):
        cpuset_allocator.quota_us(broken)


def test_bound_pods_are_never_throttled_unless_asked_for() -> None:
    bound = {labels.RESOURCE_STATUS: '{"cpuset":"2-4"}'}

    assert cpuset_allocator.quota_us(bound) == -1
    assert cpuset_allocator.quota_us(bound, keeps_quota=True) is None
    assert cpuset_allocator.quota_us({}) is None


AMOUNTS = st.integers(-5, 10**6)
CONTAINERS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        lambda request, limit: ContainerResources(
            requests={"kubernetes.io/batch-cpu": str(request)}, limits={"kubernetes.io/batch-cpu": str(limit)}
        ),
        AMOUNTS,
        AMOUNTS,
    ),
    min_size=1,
)
RULES = st.builds(BatchRule, st.booleans(), st.sampled_from([-1.0, 1.0, 1.2, 3.0]))


@given(CONTAINERS, RULES)
def test_a_pods_limits_are_valid_and_hold_those_of_its_containers(
    extended: dict[str, ContainerResources], rule: BatchRule
) -> None:
    pod = batch_resource.pod_limits(QoSClass.BE, extended, rule)
    parts = [batch_resource.container_limits(QoSClass.BE, each, rule) for each in extended.values()]

    for limits in (pod, *parts):
        assert limits.shares is not None and limits.quota_us is not None
        cgroup_knobs.check(Knob.CPU_SHARES, V1, str(limits.shares))
        cgroup_knobs.check(Knob.CPU_QUOTA, V1, str(limits.quota_us))
    quotas = [part.quota_us or 0 for part in parts]
    assert pod.quota_us == -1 or (pod.quota_us or 0) >= max(quotas) - 1
    assert (pod.quota_us == -1) == (-1 in quotas)


def test_a_container_without_batch_resources_makes_its_pod_unlimited() -> None:
    known = {
        "a": ContainerResources(limits={"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1"})
    }
    limited = batch_resource.pod_limits(QoSClass.BE, known, BatchRule(), ["a"])
    unlimited = batch_resource.pod_limits(QoSClass.BE, known, BatchRule(), ["a", "b"])

    assert (limited.quota_us, limited.memory_bytes) == (100_000, 1)
    assert (unlimited.quota_us, unlimited.memory_bytes) == (-1, -1)
    assert batch_resource.pod_limits(QoSClass.BE, {}, BatchRule()) == UNKNOWN


@given(st.integers(1, 10**9), st.floats(1, 10))
def test_a_scaled_quota_is_smaller_but_never_nothing(quota_us: int, ratio: float) -> None:
    scaled = cpu_burst.scaled_us(quota_us, ratio)

    assert 1 <= scaled <= quota_us
    assert scaled * ratio >= quota_us * (1 - 1e-9)


@given(st.integers(-5, 0), st.floats(0.1, 10))
def test_no_quota_stays_no_quota(quota_us: int, ratio: float) -> None:
    assert cpu_burst.scaled_us(quota_us, ratio) == quota_us
    assert cpu_burst.quota_us(LS, {}, ratio, quota_us) is None
