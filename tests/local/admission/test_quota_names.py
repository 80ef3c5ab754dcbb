"""The names in a quota: of which objects each speaks, and which names speak of an object."""

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
