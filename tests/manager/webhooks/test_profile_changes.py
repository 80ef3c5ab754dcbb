"""Fixed labels of pods may be changed by profiles for waiting pods, and by nobody else."""

import asyncio
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import crd, labels
from koordinator.api.core import Namespace
from koordinator.api.groups import ClusterColocationProfile, CustomResourceDefinition
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.webhooks import all as webhooks
from koordinator.manager.webhooks import table
from koordinator.manager.webhooks.review import AdmissionRequest, GroupVersionResource
from koordinator.simulate import virtual_time
from tests.manager.shared_parts import shared_parts

BE = {labels.QOS_CLASS: "BE", labels.PRIORITY_CLASS: "koord-batch"}


def pod(own: dict[str, str], node: str = "") -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    return {
        "metadata": {"name": "p", "namespace": "default", "labels": {"app": "web", **own}},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize(
    ("gate", "new", "node", "refusal"),
    [
        pytest.param("true", BE, "", "", id="what the profile says, while the pod waits"),
        pytest.param("true", BE, "n1", "field is immutable", id="not once it has a node"),
        pytest.param(
            "true", {**BE, labels.PRIORITY: "9"}, "", "labels.koordinator.sh/priority", id="not more"
        ),
        pytest.param("true", {labels.QOS_CLASS: "LS"}, "", "field is immutable", id="not something else"),
        pytest.param("false", BE, "", "field is immutable", id="not without the controller"),
    ],
)
def test_fixed_labels(gate: str, new: dict[str, str], node: str, refusal: str) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        if "default" not in {ns.metadata.name for ns in (await cluster.list(Namespace)).items}:
            await cluster.create(Namespace, {"metadata": {"name": "default"}})
        spec = {
            "selector": {"matchLabels": {"app": "web"}},
            "qosClass": "BE",
            "labels": {labels.PRIORITY_CLASS: "koord-batch"},
        }
        managed = {"name": "batch", "labels": {labels.CONTROLLER_MANAGED: "true"}}
        await cluster.create(ClusterColocationProfile, {"metadata": managed, "spec": spec})
        shared = shared_parts(cluster, gates=f"ColocationProfileController={gate}")
        handler = webhooks.admission(shared).handlers[table.VALIDATE_POD]
        request = AdmissionRequest(
            resource=GroupVersionResource(resource="pods"),
            operation="UPDATE",
            name="p",
            namespace="default",
            object=pod(new, node),
            old_object=pod({}, node),
        )
        async with asyncio.TaskGroup() as group:
            shared.factory.start(group)
            await shared.factory.wait_synced()
            verdict = await handler(request)
            assert verdict.allowed is not bool(refusal)
            assert refusal in verdict.message
            await shared.factory.stop()

    virtual_time.run_virtual(main)
