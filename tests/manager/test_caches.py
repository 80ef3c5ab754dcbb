"""What the manager's caches leave out of pods and nodes changes no decision."""

from typing import Any

import pytest

from koordinator.api import decode
from koordinator.api.core import Node, Pod
from koordinator.manager import caches
from koordinator.manager.noderesource import account


def container(name: str, cpu: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": "registry.example.com/team/app:1",
        "command": ["/bin/app", "--all"],
        "env": [{"name": "A", "value": "b"}],
        "ports": [{"containerPort": 80}],
        "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": "4"}},
        "readinessProbe": {"initialDelaySeconds": 3},
    }


POD: dict[str, Any] = {
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": "u",
        "resourceVersion": "7",
        "finalizers": ["example.com/keep"],
        "labels": {"koordinator.sh/qosClass": "LSE", "koordinator.sh/priority-class": "koord-prod"},
        "annotations": {
            "scheduling.koordinator.sh/resource-status": '{"numaNodeResources": [{"node": 1}]}',
        },
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x"}],
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "koord-scheduler",
        "priority": 9_500,
        "priorityClassName": "koord-prod",
        "overhead": {"cpu": "100m"},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"operator": "Exists"}],
        "initContainers": [container("setup", "6"), container("side", "1") | {"restartPolicy": "Always"}],
        "containers": [container("main", "2"), container("proxy", "500m")],
    },
    "status": {"phase": "Running", "qosClass": "Burstable", "podIP": "10.0.0.1"},
}


def test_a_trimmed_pod_counts_as_the_whole_one() -> None:
    full = decode.from_builtins(POD, Pod)
    trimmed = caches.pod(full)

    assert account.pod_facts(trimmed) == account.pod_facts(full)
    assert trimmed.metadata.labels == full.metadata.labels
    assert trimmed.metadata.owner_references == full.metadata.owner_references
    assert (trimmed.key, trimmed.metadata.uid, trimmed.metadata.resource_version) == ("shop/web", "u", "7")
    assert trimmed.spec.scheduler_name == "koord-scheduler"


def test_what_nobody_reads_is_gone() -> None:
    trimmed = caches.pod(decode.from_builtins(POD, Pod))
    assert not any(each.env or each.command or each.ports for each in trimmed.spec.containers)
    assert not trimmed.spec.volumes and not trimmed.spec.tolerations

    node = decode.from_builtins(
        {
            "metadata": {"name": "n1", "labels": {"pool": "a"}},
            "spec": {"unschedulable": True},
            "status": {
                "capacity": {"cpu": "8"},
                "allocatable": {"cpu": "7"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "images": [{"names": ["app:1"], "sizeBytes": 1}],
            },
        },
        Node,
    )
    kept = caches.node(node)
    assert kept.status.images == []
    assert kept.spec.unschedulable and kept.metadata.labels == {"pool": "a"}
    assert kept.status.conditions == node.status.conditions
    assert account.node_facts(kept) == account.node_facts(node)


@pytest.mark.parametrize("reason", ["", "Deferred", "Infeasible"])
def test_a_trimmed_pod_that_is_resized_counts_as_the_whole_one(reason: str) -> None:
    requests = {"cpu": "6", "memory": "1Gi"}
    reported = {
        "name": "main",
        "ready": True,
        "resources": {"requests": requests},
        "allocatedResources": requests,
    }
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    body = {**POD, "status": {**POD["status"], "containerStatuses": [reported], "conditions": [pending]}}
    full = decode.from_builtins(body, Pod)
    trimmed = caches.pod(full)

    assert (
        account.pod_facts(trimmed)
        == account.pod_facts(full)
        != account.pod_facts(decode.from_builtins(POD, Pod))
    )
    assert not any(each.ready for each in trimmed.status.container_statuses)


def test_a_pod_that_has_what_it_wants_keeps_no_statuses() -> None:
    full = decode.from_builtins(POD, Pod)
    reported = [
        {
            "name": each.name,
            "resources": {"requests": each.resources.requests, "limits": each.resources.limits},
            "allocatedResources": each.resources.requests,
        }
        for each in full.spec.containers
    ]
    body = {**POD, "status": {**POD["status"], "containerStatuses": reported}}
    assert caches.pod(decode.from_builtins(body, Pod)).status == caches.pod(full).status
