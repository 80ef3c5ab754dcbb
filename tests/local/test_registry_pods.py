"""Pods: priority, tolerations and QoS at admission; binding; eviction under budgets."""

from typing import Any

import pytest

from koordinator.cluster import errors
from koordinator.cluster.backend import ListOptions, WriteOptions
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import NOW, backend, create, merge, names, next_events, pod, story

PRIORITIES = "scheduling.k8s.io/v1"


async def created(api: ObjectRegistry, **spec: Any) -> dict[str, Any]:
    body = pod("web-0")
    body["spec"].update(spec)
    return (await create(api, "pods", body, "default")).obj


async def with_classes() -> ObjectRegistry:
    api = backend()
    for name, value, is_default in [("koord-batch", 5500, False), ("normal", 10, True), ("higher", 20, True)]:
        body = {"metadata": {"name": name}, "value": value, "globalDefault": is_default}
        await create(api, "priorityclasses", body, "", PRIORITIES)
    return api


async def test_a_priority_comes_from_its_class() -> None:
    obj = await created(await with_classes(), priorityClassName="koord-batch")

    assert (obj["spec"]["priority"], obj["spec"]["preemptionPolicy"]) == (5500, "PreemptLowerPriority")


async def test_the_lowest_default_class_counts() -> None:
    obj = await created(await with_classes())

    assert (obj["spec"]["priorityClassName"], obj["spec"]["priority"]) == ("normal", 10)


async def test_without_classes_the_priority_is_zero() -> None:
    obj = await created(backend())

    assert obj["spec"]["priority"] == 0
    assert "priorityClassName" not in obj["spec"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"priorityClassName": "gold"},
            'pods "web-0" is forbidden: no PriorityClass with name gold was found',
        ),
        (
            {"priority": 5},
            'pods "web-0" is forbidden: the integer value of priority (5) must not be provided in pod spec; '
            "priority admission controller computed 0 from the given PriorityClass name",
        ),
        (
            {"preemptionPolicy": "Never"},
            'pods "web-0" is forbidden: the string value of PreemptionPolicy (Never) must not be provided in '
            "pod spec; priority admission controller computed PreemptLowerPriority from the given "
            "PriorityClass name",
        ),
    ],
)
async def test_a_priority_that_is_not_its_class_s_is_forbidden(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.Forbidden) as refused:
        await created(backend(), **spec)

    assert str(refused.value) == message


async def test_pods_leave_lost_nodes_after_five_minutes_unless_they_say_otherwise() -> None:
    patient = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
    plain = (await created(backend()))["spec"]["tolerations"]
    own = (await created(backend(), tolerations=[patient]))["spec"]["tolerations"]
    all_of_them = [{"operator": "Exists"}]

    assert [(one["key"], one["tolerationSeconds"]) for one in plain] == [
        ("node.kubernetes.io/not-ready", 300),
        ("node.kubernetes.io/unreachable", 300),
    ]
    assert own[0] == patient
    assert [one["key"] for one in own[1:]] == ["node.kubernetes.io/unreachable"]
    assert (await created(backend(), tolerations=all_of_them))["spec"]["tolerations"] == all_of_them


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        (
            {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}},
            "Guaranteed",
        ),
        ({"requests": {"cpu": "lots"}}, "Burstable"),
    ],
)
async def test_qos_class(resources: dict[str, Any], expected: str) -> None:
    obj = await created(backend(), containers=[{"name": "main", "resources": resources}])

    assert obj["status"] == {"phase": "Pending", "qosClass": expected}


async def test_a_gated_pod_says_why_it_waits() -> None:
    obj = await created(backend(), schedulingGates=[{"name": "a.io/b"}])

    (condition,) = obj["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "PodScheduled", "False", "SchedulingGated",
    )  # fmt: skip


# Binding


async def bind(api: ObjectRegistry, node: str = "n1", dry_run: bool = False, **body: Any) -> dict[str, Any]:
    sent = {"metadata": {"name": "web-0"}, "target": {"kind": "Node", "name": node}, **body}
    pods = api.resolve("", "v1", "pods")
    return await api.connect(pods, "default", "web-0", "binding", sent, WriteOptions(dry_run=dry_run))


def stored(api: ObjectRegistry, name: str = "web-0") -> dict[str, Any]:
    return api.get(api.resolve("", "v1", "pods"), "default", name).obj


async def test_a_binding_puts_the_pod_on_its_node() -> None:
    api = backend()
    await created(api)

    answer = await bind(api, metadata={"name": "web-0", "annotations": {"cpus": "0-3"}})

    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Success", 201)
    assert stored(api)["spec"]["nodeName"] == "n1"
    assert stored(api)["metadata"]["annotations"] == {"cpus": "0-3"}
    (condition,) = stored(api)["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["lastTransitionTime"]) == (
        "PodScheduled",
        "True",
        NOW,
    )
    assert names(api, "pods", field_selector="spec.nodeName=n1") == ["web-0"]


ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


async def test_a_bound_pod_says_where_its_node_is() -> None:
    api = backend()
    labels = {ZONE: "z", REGION: "r", "disk": "ssd"}
    await create(api, "nodes", {"metadata": {"name": "n1", "labels": labels}})
    body = pod("web-0", labels={"app": "web", ZONE: "mine"})
    await create(api, "pods", body, "default")
    placed = await create(api, "pods", pod("web-1", node="n1"), "default")

    await bind(api, metadata={"name": "web-0", "labels": {"by": "us"}})

    assert stored(api)["metadata"]["labels"] == {"app": "web", ZONE: "z", REGION: "r", "by": "us"}
    assert placed.obj["metadata"]["labels"] == {ZONE: "z", REGION: "r"}


async def test_a_bound_pod_is_nominated_no_more() -> None:
    api = backend()
    await created(api)
    await merge(api, "pods", "web-0", {"status": {"nominatedNodeName": "n2"}}, subresource="status")

    await bind(api)

    assert "nominatedNodeName" not in stored(api)["status"]


async def test_a_pod_is_bound_once() -> None:
    api = backend()
    await created(api)
    await bind(api)

    with pytest.raises(errors.Conflict) as refused:
        await bind(api, "n2")

    assert str(refused.value) == (
        'Operation cannot be fulfilled on pods/binding "web-0": pod web-0 is already assigned to node "n1"'
    )


@pytest.mark.parametrize(
    ("spec", "body", "error", "message"),
    [
        ({}, {"target": {}}, errors.Invalid, "target.name: Required value"),
        (
            {},
            {"target": {"kind": "Rack", "name": "r"}},
            errors.Invalid,
            'target.kind: Unsupported value: "Rack"',
        ),
        (
            {},
            {"metadata": {"name": "api-0"}},
            errors.BadRequest,
            "name in URL does not match name in Binding",
        ),
        ({}, {"metadata": {"name": "web-0", "uid": "x"}}, errors.Conflict, "UID in precondition: x"),
        (
            {"schedulingGates": [{"name": "a.io/b"}]},
            {},
            errors.Conflict,
            "pod web-0 has non-empty .spec.schedulingGates",
        ),
    ],
)
async def test_a_wrong_binding_is_refused(
    spec: dict[str, Any], body: dict[str, Any], error: type[Exception], message: str
) -> None:
    api = backend()
    await created(api, **spec)

    with pytest.raises(error) as refused:
        await bind(api, **body)

    assert message in str(refused.value)
    assert "nodeName" not in stored(api)["spec"]


async def test_a_dry_run_binds_nothing() -> None:
    api = backend()
    await created(api)
    await bind(api, dry_run=True)

    assert "nodeName" not in stored(api)["spec"]


async def test_an_unknown_action_is_not_found() -> None:
    api = backend()
    await created(api)
    with pytest.raises(errors.NotFound):
        await api.connect(api.resolve("", "v1", "pods"), "default", "web-0", "exec", {})
    with pytest.raises(errors.MethodNotSupported):
        await api.connect(api.resolve("", "v1", "pods"), "default", "web-0", "status", {})


# Eviction


async def serving(api: ObjectRegistry, name: str = "web-0", is_ready: bool = True) -> None:
    """A pod that runs behind the selector of the budgets below."""
    body = pod(name, node="n1", labels={"app": "web"})
    await create(api, "pods", body, "default")
    ready = {"type": "Ready", "status": "True" if is_ready else "False"}
    await merge(
        api, "pods", name, {"status": {"phase": "Running", "conditions": [ready]}}, subresource="status"
    )


async def budget(
    api: ObjectRegistry, name: str = "keep", spec: dict[str, Any] | None = None, **status: int
) -> None:
    body = {"metadata": {"name": name}, "spec": spec or {"selector": {"matchLabels": {"app": "web"}}}}
    await create(api, "poddisruptionbudgets", body, "default", "policy/v1")
    counted = {"observedGeneration": 1, **status}
    await merge(
        api, "poddisruptionbudgets", name, {"status": counted}, api_version="policy/v1", subresource="status"
    )


async def evict(api: ObjectRegistry, name: str = "web-0", **body: Any) -> None:
    sent = {"metadata": {"name": name}, **body}
    await api.connect(api.resolve("", "v1", "pods"), "default", name, "eviction", sent)


def kept_budget(api: ObjectRegistry) -> dict[str, Any]:
    resource = api.resolve("policy", "v1", "poddisruptionbudgets")
    status: dict[str, Any] = api.get(resource, "default", "keep").obj["status"]
    return status


async def test_an_eviction_is_paid_from_the_budget() -> None:
    api = backend()
    await serving(api)
    await budget(api, disruptionsAllowed=1, desiredHealthy=1, currentHealthy=2)
    watch = api.watch(
        api.resolve("", "v1", "pods"), "default", ListOptions(resource_version=str(api.store.version))
    )

    await evict(api)

    assert kept_budget(api)["disruptionsAllowed"] == 0
    assert kept_budget(api)["disruptedPods"] == {"web-0": NOW}
    events = await next_events(watch)
    assert story(events) == ["MODIFIED web-0", "MODIFIED web-0", "DELETED web-0"]
    assert events[0].record is not None
    assert events[0].record.obj["status"]["conditions"][-1]["reason"] == "EvictionByEvictionAPI"


async def test_an_empty_budget_forbids_evictions() -> None:
    api = backend()
    await serving(api)
    await budget(api, disruptionsAllowed=0, desiredHealthy=2, currentHealthy=2)

    with pytest.raises(errors.TooManyRequests) as refused:
        await evict(api)

    assert str(refused.value) == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused.value.details is not None
    (cause,) = refused.value.details.causes
    assert (cause.reason, cause.message) == (
        "DisruptionBudget", "The disruption budget keep needs 2 healthy pods and has 2 currently",
    )  # fmt: skip
    assert names(api, "pods") == ["web-0"]


async def test_a_budget_that_nobody_counted_yet_asks_for_patience() -> None:
    api = backend()
    await serving(api)
    await budget(api, disruptionsAllowed=5, observedGeneration=0)

    with pytest.raises(errors.TooManyRequests) as refused:
        await evict(api)

    assert refused.value.details is not None
    assert refused.value.details.retry_after_seconds == 10
    assert "still being processed by the server" in refused.value.details.causes[0].message


async def test_several_budgets_for_one_pod_are_an_error() -> None:
    api = backend()
    await serving(api)
    await budget(api, disruptionsAllowed=5)
    await budget(api, "also", {"selector": {}}, disruptionsAllowed=5)

    with pytest.raises(errors.InternalError, match="This pod has more than one PodDisruptionBudget"):
        await evict(api)


@pytest.mark.parametrize(
    ("spec", "current", "goes"),
    [
        pytest.param({}, 2, True, id="with enough healthy pods an unready one may go"),
        pytest.param({}, 1, False, id="with too few healthy pods even an unready one stays"),
        pytest.param(
            {"unhealthyPodEvictionPolicy": "AlwaysAllow"}, 0, True, id="unless the budget says always"
        ),
    ],
)
async def test_pods_that_are_not_ready(spec: dict[str, Any], current: int, goes: bool) -> None:
    api = backend()
    await serving(api, is_ready=False)
    selector = {"selector": {"matchLabels": {"app": "web"}}}
    await budget(
        api, "keep", {**selector, **spec}, disruptionsAllowed=0, desiredHealthy=2, currentHealthy=current
    )

    if goes:
        await evict(api)
    else:
        with pytest.raises(errors.TooManyRequests):
            await evict(api)
    assert names(api, "pods") == ([] if goes else ["web-0"])
    assert kept_budget(api)["disruptionsAllowed"] == 0


@pytest.mark.parametrize("spec", [{"minAvailable": 1}, {"selector": {"matchLabels": {"app": "api"}}}])
async def test_budgets_of_other_pods_do_not_matter(spec: dict[str, Any]) -> None:
    api = backend()
    await serving(api)
    await budget(api, "keep", spec, disruptionsAllowed=0)

    await evict(api)

    assert names(api, "pods") == []


async def test_a_pending_pod_needs_no_budget() -> None:
    api = backend()
    await create(api, "pods", pod("web-0", labels={"app": "web"}), "default")
    await budget(api, disruptionsAllowed=0)

    await evict(api)

    assert names(api, "pods") == []


async def test_an_eviction_may_name_the_pod_exactly() -> None:
    api = backend()
    await serving(api)

    with pytest.raises(errors.Conflict, match="the UID in the precondition"):
        await evict(api, deleteOptions={"preconditions": {"uid": "other"}})
    with pytest.raises(errors.BadRequest, match="deleteOptions"):
        await evict(api, deleteOptions={"gracePeriodSeconds": "soon"})
    assert "conditions" in stored(api)["status"]
    assert len(stored(api)["status"]["conditions"]) == 1


async def test_an_evicted_pod_gets_the_grace_that_was_asked_for() -> None:
    api = backend()
    await serving(api)

    await evict(api, deleteOptions={"gracePeriodSeconds": 7})

    assert stored(api)["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_a_dry_run_evicts_nothing_and_pays_nothing() -> None:
    api = backend()
    await serving(api)
    await budget(api, disruptionsAllowed=1)
    before = api.store.version

    await evict(api, deleteOptions={"dryRun": ["All"]})

    assert api.store.version == before
