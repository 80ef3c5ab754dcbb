"""Whatever an API server lets through, no handler breaks: it answers, and a refusal says what is wrong."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.quota.validation import QuotaRules
from koordinator.manager.webhooks import (
    config_validating,
    node_status,
    pod_mutating,
    pod_validating,
    quota_admission,
    review,
)
from koordinator.manager.webhooks.pod_mutating import ReservationMutatingHandler
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.pod_validating import PodBindingHandler
from koordinator.manager.webhooks.profile_cache import ProfileCache
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from tests.manager.shared_parts import shared_parts

GATES = "ValidatePodDeviceResource=true,MultiQuotaTree=true"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "1", "-1", "{", "x", "10Gi"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["cpu", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [
        labels.QUOTA_PARENT,
        labels.QUOTA_IS_PARENT,
        labels.QUOTA_SHARED_WEIGHT,
        labels.QUOTA_NAMESPACES,
        labels.QUOTA_GUARANTEED,
        labels.NODE_RESOURCE_AMPLIFICATION_RATIO,
        labels.NODE_RAW_ALLOCATABLE,
        labels.QOS_CLASS,
    ]
)
TEXTS = st.dictionaries(KEYS, st.sampled_from(["", "{", "{}", "null", '{"cpu": 2}', '["a"]', "LSR", "true"]))
OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "metadata": JSON
        | st.fixed_dictionaries({}, optional={"labels": TEXTS | JSON, "annotations": TEXTS | JSON}),
        "spec": JSON | st.fixed_dictionaries({}, optional={"min": JSON, "max": JSON, "containers": JSON}),
        "status": JSON
        | st.fixed_dictionaries({}, optional={"allocatable": JSON, "capacity": JSON, "used": JSON}),
        "data": JSON,
    },
)


def handlers() -> dict[str, tuple[str, str, review.Handler]]:
    """Name -> resource, subresource, handler, all with empty caches."""
    shared = shared_parts(MemoryCluster(registry.in_memory(FixedClock(0.0), checks=False)), gates=GATES)
    factory = shared.factory
    topology = QuotaTopology(factory, FixedClock())
    look_up = quota_admission.ParentLookUp(shared.cluster, topology)
    profiles = ProfileCache(shared)
    update = shared.options.quota_update
    pod_quotas = PodQuotas(shared.cluster, factory, topology, shared.gates, update, shared.rng)
    quotas = "elasticquotas"
    return {
        "quota-mutate": (quotas, "", quota_admission.QuotaMutatingHandler(topology, look_up)),
        "quota": (quotas, "", quota_admission.QuotaValidatingHandler(topology, QuotaRules(), look_up)),
        "pod": ("pods", "", pod_validating.PodValidatingHandler(shared, pod_quotas)),
        "pod-mutate": ("pods", "", pod_mutating.PodMutatingHandler(shared, profiles, pod_quotas)),
        "binding": ("pods", "binding", PodBindingHandler(shared)),
        "node-status": ("nodes", "status", node_status.NodeStatusHandler()),
        "node": ("nodes", "", config_validating.NodeValidatingHandler(shared)),
        "configmap": ("configmaps", "", config_validating.ConfigMapValidatingHandler(shared)),
        "reservation": (
            "reservations",
            "",
            ReservationMutatingHandler(shared, profiles),
        ),
    }


@pytest.mark.parametrize("name", sorted(handlers()))
@settings(max_examples=60, deadline=None)
@given(
    obj=OBJECT | st.none(),
    old=OBJECT | st.none(),
    operation=st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]),
)
def test_no_request_breaks_a_handler(name: str, obj: Any, old: Any, operation: str) -> None:
    resource, sub_resource, handler = handlers()[name]
    request = {
        "uid": "1",
        "resource": {"resource": resource},
        "subResource": sub_resource,
        "operation": operation,
        "name": "slo-controller-config",
        "namespace": "koordinator-system",
        "object": obj,
        "oldObject": old,
    }
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "request": request})

    answer = msgspec.json.decode(asyncio.run(review.review(handler, body)))["response"]

    message = answer["status"]["message"]
    assert answer["uid"] == "1"
    assert answer["allowed"] or message
    assert not any(
        f"{kind}Error:" in message for kind in ("Type", "Attribute", "Key", "Index", "Assertion", "Value")
    )
