"""Every handler of the manager is asked for what its rules name, without a socket and on virtual time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import ClusterColocationProfile
from koordinator.api.reservation import Reservation
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.errors import ApiError
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.options import BindingAdmissionOptions, ManagerOptions
from koordinator.simulate import virtual_time
from koordinator.simulate.run import admit_by

GATES = (
    "NodeMutatingWebhook=true,NodeValidatingWebhook=true,ConfigMapValidatingWebhook=true,"
    "ReservationMutatingWebhook=true,BindingAdmissionWebhook=true"
)
OPTIONS = ManagerOptions(
    controllers=(),
    binding_admission=BindingAdmissionOptions(user_names=("koord-scheduler",), namespaces=("*",)),
)
AMOUNTS = {"cpu": "10", "memory": "20Gi", "pods": "110"}
Scenario = Callable[[MemoryCluster], Awaitable[None]]


def run(scenario: Scenario) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        backend = registry.in_memory(clock)
        cluster = MemoryCluster(backend, user="somebody")
        await local.install(cluster)
        manager = Manager(cluster, OPTIONS, FeatureGates.of(Component.MANAGER, GATES))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(manager.run())
            await manager.synced.wait()
            await admit_by(manager.handlers, backend, random.Random(0))
            await scenario(cluster)
            running.cancel()

    virtual_time.run_virtual(main)


def pod(**metadata: Any) -> dict[str, Any]:
    requests = {"cpu": "1", "memory": "1Gi"}
    container = {"name": "main", "image": "x", "resources": {"requests": requests, "limits": requests}}
    return {"metadata": {"name": "web", **metadata}, "spec": {"containers": [container]}}


def test_a_kubelets_report_is_amplified() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        annotations = {"node.koordinator.sh/resource-amplification-ratio": '{"cpu":1.50}'}
        await cluster.create(Node, {"metadata": {"name": "n", "annotations": annotations}})

        report = {"status": {"allocatable": dict(AMOUNTS), "capacity": dict(AMOUNTS)}}
        node = await cluster.patch(Node, "n", report, subresource="status")

        assert (node.status.allocatable["cpu"], node.status.capacity["cpu"]) == ("15", "10")
        assert (
            node.metadata.annotations["node.koordinator.sh/raw-allocatable"] == '{"cpu":"10","memory":"20Gi"}'
        )

    run(scenario)


def test_only_allowed_users_bind_pods() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.create(Node, {"metadata": {"name": "n"}})
        await cluster.create(Pod, pod(), "default")
        await asyncio.sleep(1)

        with pytest.raises(ApiError, match="binding denied: username is not in the allowed list"):
            await cluster.bind("default", "web", "n")
        scheduler = MemoryCluster(cluster._backend, user="system:serviceaccount:kw:koord-scheduler")
        await scheduler.bind("default", "web", "n")

    run(scenario)


def test_pods_are_mutated_and_then_validated_but_not_those_of_the_control_plane() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        profile = {"metadata": {"name": "p"}, "spec": {"labels": {"profiled": "yes"}}}
        await cluster.create(ClusterColocationProfile, profile)
        await cluster.create(Namespace, {"metadata": {"name": "kw", "labels": {"control-plane": "x"}}})
        await asyncio.sleep(1)

        assert (await cluster.create(Pod, pod(), "default")).metadata.labels["profiled"] == "yes"
        wrong = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-batch"}
        with pytest.raises(ApiError, match=r'"vpod.koordinator.sh" denied the request: .*cannot be used'):
            await cluster.create(Pod, pod(name="wrong", labels=wrong), "default")
        assert (await cluster.create(Pod, pod(labels=wrong), "kw")).metadata.labels == wrong

    run(scenario)


def test_quotas_are_completed_and_a_parent_with_children_is_not_deleted() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        amounts = {"spec": {"max": {"cpu": "4"}, "min": {"cpu": "1"}}}
        parent = {
            "metadata": {"name": "a", "labels": {"quota.scheduling.koordinator.sh/is-parent": "true"}},
            **amounts,
        }
        child = {
            "metadata": {"name": "b", "labels": {"quota.scheduling.koordinator.sh/parent": "a"}},
            **amounts,
        }
        made = await cluster.create(ElasticQuota, parent, "default")
        await cluster.create(ElasticQuota, child, "default")

        assert made.metadata.annotations["quota.scheduling.koordinator.sh/shared-weight"] == '{"cpu":"4"}'
        with pytest.raises(ApiError, match=r'"velasticquota.koordinator.sh" denied the request'):
            await cluster.delete(ElasticQuota, "a", "default")
        await cluster.delete(ElasticQuota, "b", "default")
        await cluster.delete(ElasticQuota, "a", "default")

    run(scenario)


def test_reservations_follow_profiles_and_configuration_is_checked() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        profile = {
            "metadata": {"name": "p"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "qosClass": "LSR"},
        }
        await cluster.create(ClusterColocationProfile, profile)
        await asyncio.sleep(1)
        template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
        owners = [{"labelSelector": {"matchLabels": {"a": "b"}}}]
        made = await cluster.create(
            Reservation,
            {
                "metadata": {"name": "r", "labels": {"a": "b"}},
                "spec": {"template": template, "owners": owners, "ttl": "1h"},
            },
        )
        assert made.metadata.labels["koordinator.sh/qosClass"] == "LSR"

        name, namespace = "slo-controller-config", "koordinator-system"
        with pytest.raises(ApiError, match=r'"vconfigmap.koordinator.sh" denied the request'):
            await cluster.patch(ConfigMap, name, {"data": {"colocation-config": "{"}}, namespace)

    run(scenario)
