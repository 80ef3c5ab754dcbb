"""A runtime is told what the reconciler writes: a container is never adjusted twice in contradiction."""

import itertools
import json
from pathlib import Path

import msgspec
import pytest

from koordinator.koordlet import node_pods
from koordinator.koordlet.hooks import contexts
from koordinator.koordlet.hooks.contexts import ContainerContext, HookResponse, HookStage, PodContext
from koordinator.koordlet.hooks.hook import ReconcileLevel
from tests.koordlet.hooks.hook_node import BE_ON, HookNode, batch, classes, native, pod

KUBE = {"BE": ("BestEffort",)}
CASES = [
    (qos, kube, cpus, ratio)
    for qos, cpus, ratio in itertools.product(
        ("", "LS", "LSR", "LSE", "BE", "SYSTEM"), ("", "0-1"), ("", "1.5")
    )
    for kube in KUBE.get(qos, ("Guaranteed", "Burstable", "BestEffort"))
]


@pytest.mark.parametrize(("qos", "kube", "cpus", "ratio"), CASES)
def test_a_runtime_is_told_what_the_reconciler_writes(
    tmp_path: Path, qos: str, kube: str, cpus: str, ratio: str
) -> None:
    node = HookNode(tmp_path, gates="CPUNormalization=true")
    node.hooks.start()
    node.policy(classes(be=BE_ON))
    node.node(**({"cpu_normalization_ratio": ratio} if ratio else {}))
    node.topology(cpu_shared_pools='[{"socket":0,"node":0,"cpuset":"0-3"}]')
    bound = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})} if cpus else {}
    asked = batch(500) if qos == "BE" else {} if kube == "BestEffort" else native("1")
    record = node_pods.record(
        pod("p", qos, kube=kube, resources=[asked], annotations=bound), node.view.driver
    )
    of_pod = contexts.of_pod(record)
    (of_container,) = contexts.of_containers(of_pod, record)

    for level, stage, context in (
        (ReconcileLevel.POD, HookStage.PRE_RUN_POD_SANDBOX, of_pod),
        (ReconcileLevel.CONTAINER, HookStage.PRE_CREATE_CONTAINER, of_container),
        (ReconcileLevel.CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES, of_container),
    ):
        assert node.hooks.registry.run_stage(stage, context).response == reconciled(
            node, level, context, of_pod
        )


def reconciled(
    node: HookNode, level: ReconcileLevel, context: PodContext | ContainerContext, of_pod: PodContext
) -> HookResponse:
    found = (each.functions.get(each.select(of_pod)) for each in node.hooks.registry.entries(level))
    return contexts.merged(function(context) for _, function in filter(None, found))


def test_a_quota_that_the_runtime_proxy_repeats_is_not_made_smaller_again(tmp_path: Path) -> None:
    node = HookNode(tmp_path, gates="CPUNormalization=true")
    node.hooks.start()
    node.node(cpu_normalization_ratio="2")
    shop = pod("p", resources=[native("1")])
    record = node_pods.record(shop, node.view.driver)
    (of_spec,) = contexts.of_containers(contexts.of_pod(record), record)

    def answered(stage: HookStage, quota_us: int) -> int | None:
        told = msgspec.structs.replace(of_spec, current=contexts.GroupResources(quota_us=quota_us))
        return node.hooks.registry.run_stage(stage, told).response.quota_us

    update = HookStage.PRE_UPDATE_CONTAINER_RESOURCES
    assert answered(HookStage.PRE_CREATE_CONTAINER, 100_000) == 50_000
    assert [answered(update, 50_000) for _ in range(3)] == [50_000] * 3
    assert answered(update, 300_000) == 150_000, "a resize"
    assert answered(update, 150_000) == 150_000
    node.run_pods(shop)
    node.refresh()
    assert answered(update, 50_000) == 50_000, "the reconciler has seen it"
    node.node(cpu_normalization_ratio="4")
    assert answered(update, 50_000) == 25_000
