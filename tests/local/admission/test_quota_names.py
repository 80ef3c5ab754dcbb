"""The names in a quota: of which objects each speaks, and which names speak of an object."""

from typing import Any

import pytest

from koordinator.api.meta import Resource
from koordinator.local.admission import quota

NAMES = {
    "pods": (
        "pods",
        "count/pods",
        "cpu",
        "requests.memory",
        "limits.ephemeral-storage",
        "hugepages-2Mi",
        "requests.hugepages-1Gi",
        "requests.example.com/card",
    ),
    "services": ("services", "count/services", "services.nodeports", "services.loadbalancers"),
    "persistentvolumeclaims": (
        "persistentvolumeclaims",
        "count/persistentvolumeclaims",
        "requests.storage",
        "gold.storageclass.storage.k8s.io/requests.storage",
    ),
    "configmaps": ("configmaps", "count/configmaps"),
    "secrets": ("secrets",),
    "replicationcontrollers": ("replicationcontrollers",),
    "resourcequotas": ("resourcequotas",),
    "deployments.apps": ("count/deployments.apps",),
}
EVERY = [(name, kind) for kind, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_a_name_counts_objects_of_one_kind(name: str, kind: str) -> None:
    assert quota.counted_kinds(name) == kind


@pytest.mark.parametrize("kind", NAMES)
def test_an_object_is_counted_by_the_names_of_its_kind(kind: str) -> None:
    plural, _, group = kind.partition(".")
    resource = Resource(group=group, version="v1", kind="Kind", plural=plural, namespaced=True)
    assert quota.names_for(resource, [name for name, _ in EVERY]) == list(NAMES[kind])


@pytest.mark.parametrize(
    ("spec", "node_ports", "load_balancers"),
    [
        ({}, 0, 0),
        ({"type": "ClusterIP"}, 0, 0),
        ({"type": "NodePort"}, 2, 0),
        ({"type": "NodePort", "allocateLoadBalancerNodePorts": False}, 2, 0),
        ({"type": "LoadBalancer"}, 2, 1),
        ({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": True}, 2, 1),
        ({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False}, 1, 1),
    ],
)
def test_a_service_counts_the_node_ports_that_it_is_given(
    spec: dict[str, Any], node_ports: int, load_balancers: int
) -> None:
    resource = Resource(group="", version="v1", kind="Service", plural="services", namespaced=True)
    ports = [{"port": 80, "nodePort": 30_080}, {"port": 443}]
    found = quota.of(resource, {"metadata": {}, "spec": {**spec, "ports": ports}}, 0.0)

    assert {name: amount.value for name, amount in found.items()} == {
        "count/services": 1,
        "services": 1,
        "services.nodeports": node_ports,
        "services.loadbalancers": load_balancers,
    }
