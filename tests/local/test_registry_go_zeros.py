"""Objects and their owners as Go's types leave them: zero values go, structs held by value are nobody's; what updates
of other kinds do besides. `make test-requests` holds the same against kube-apiserver."""

from typing import Any

import pytest

from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ListOptions, WriteOptions
from koordinator.cluster.protocol import PatchType
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import create, pod
from tests.local.test_registry_checked import MANAGED_BY, checked, deployment, patch


async def owned(api: ObjectRegistry, plural: str, body: dict[str, Any], api_version: str = "v1") -> Any:
    """What the first manager of a new object owns."""
    group, _, version = api_version.rpartition("/")
    resource = api.resolve(group, version, plural)
    record = await api.create(resource, "default" if resource.namespaced else "", body, MANAGED_BY)
    return record.obj["metadata"]["managedFields"][0]["fieldsV1"]


async def test_zero_values_go_where_go_cannot_tell_them_from_absence() -> None:
    body = deployment(replicas=0, paused=False, minReadySeconds=0)
    body["spec"]["template"]["spec"] |= {
        "hostNetwork": False,
        "nodeSelector": {},
        "tolerations": [],
        "hostname": "",
    }
    body["spec"]["template"]["spec"] |= {"affinity": {}, "automountServiceAccountToken": False}
    spec = (await create(checked(), "deployments", body, "default", "apps/v1")).obj["spec"]

    template = spec["template"]["spec"]
    assert spec["replicas"] == 0 and not spec.keys() & {"paused", "minReadySeconds"}
    assert not template.keys() & {"hostNetwork", "nodeSelector", "tolerations", "hostname"}
    assert (template["affinity"], template["automountServiceAccountToken"]) == ({}, False)


async def test_templates_do_without_what_only_pods_get() -> None:
    body = deployment()
    container = {"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}}}
    body["spec"]["template"]["spec"] = {"containers": [container]}
    api = checked()
    template = (await create(api, "deployments", body, "default", "apps/v1")).obj["spec"]["template"]["spec"]
    of_pod = (await create(api, "pods", {**pod("a"), "spec": {"containers": [container]}}, "default")).obj[
        "spec"
    ]

    assert "requests" not in template["containers"][0]["resources"] and "enableServiceLinks" not in template
    assert of_pod["containers"][0]["resources"]["requests"] == {"cpu": "1"} and of_pod["enableServiceLinks"]


async def test_a_client_owns_what_it_sent_not_what_the_server_adds() -> None:
    api = checked()

    namespace = await owned(api, "namespaces", {"metadata": {"name": "n"}})
    of_pod = await owned(api, "pods", pod("a"))
    service = await owned(api, "services", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})

    assert "f:spec" not in namespace
    assert not of_pod["f:spec"].keys() & {"f:priority", "f:tolerations", "f:serviceAccountName"}
    assert not service["f:spec"].keys() & {"f:clusterIP", "f:ipFamilies", "f:ipFamilyPolicy"}


async def test_structs_that_are_always_there_are_nobodys() -> None:
    policy = {"metadata": {"name": "p"}, "spec": {"podSelector": {}, "ingress": [{}]}}

    fields = await owned(checked(), "networkpolicies", policy, "networking.k8s.io/v1")

    assert fields == {"f:spec": {"f:ingress": {}, "f:policyTypes": {}}}


async def test_an_apply_that_changes_nothing_has_no_time() -> None:
    api = checked()
    configs = {"metadata": {"name": "c"}, "data": {"x": "1"}}
    await api.create(api.resolve("", "v1", "configmaps"), "default", configs, MANAGED_BY)
    same = {"apiVersion": "v1", "kind": "ConfigMap", **configs}

    applied = await patch(api, "c", same, PatchType.APPLY, WriteOptions(field_manager="bob"), "configmaps")

    assert {each["manager"]: "time" in each for each in applied.obj["metadata"]["managedFields"]} == {
        "bob": False,
        "kubectl": True,
    }


async def test_an_element_of_an_applied_list_may_leave_its_keys_out() -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"image": "i:1"}]},
    }

    with pytest.raises(errors.Invalid, match=r"spec.containers\[0\].name: Required value"):
        await patch(checked(), "a", body, PatchType.APPLY, MANAGED_BY)


async def test_an_update_creates_some_kinds() -> None:
    api = checked()
    leases, pods = (
        api.resolve(group, "v1", name) for group, name in (("coordination.k8s.io", "leases"), ("", "pods"))
    )

    made = await api.update(leases, "default", "l", {"metadata": {"name": "l"}})

    assert made.obj["metadata"]["uid"]
    with pytest.raises(errors.NotFound):
        await api.update(pods, "default", "a", pod("a"))
    with pytest.raises(errors.Conflict, match=r"UID in precondition: x, UID in object meta: $"):
        await api.update(leases, "default", "m", {"metadata": {"name": "m", "uid": "x"}})


async def test_an_update_of_the_status_writes_labels_but_of_deployments() -> None:
    api = checked()
    await create(api, "deployments", deployment(), "default", "apps/v1")
    await create(api, "statefulsets", deployment(serviceName="s"), "default", "apps/v1")
    change = {"metadata": {"labels": {"x": "y"}, "annotations": {"a": "b"}}}

    found = {}
    for plural in ("deployments", "statefulsets"):
        record = await patch(api, "web", change, plural=plural, api_version="apps/v1", subresource="status")
        found[plural] = record.obj["metadata"].get("labels"), record.obj["metadata"]["annotations"]

    assert found == {"deployments": (None, {"a": "b"}), "statefulsets": ({"x": "y"}, {"a": "b"})}


async def test_a_service_of_another_type_loses_what_it_had_for_the_old_one() -> None:
    api = checked()
    spec = {"type": "NodePort", "ports": [{"port": 80}], "externalTrafficPolicy": "Local"}
    record = await create(api, "services", {"metadata": {"name": "s"}, "spec": spec}, "default")
    assert record.obj["spec"]["ports"][0]["nodePort"]

    changed = (await patch(api, "s", {"spec": {"type": "ClusterIP"}}, plural="services")).obj["spec"]

    assert "nodePort" not in changed["ports"][0] and "externalTrafficPolicy" not in changed
    assert changed["clusterIP"] == record.obj["spec"]["clusterIP"]


@pytest.mark.parametrize(
    ("plural", "api_version", "body", "change", "refused"),
    [
        pytest.param(
            *("resourcequotas", "v1", {"spec": {"scopes": ["BestEffort"]}}, {"spec": {"scopes": []}}),
            r"spec.scopes: Invalid value: \[\]: field is immutable",
            id="scopes of a quota",
        ),
        pytest.param(
            *("controllerrevisions", "apps/v1", {"revision": 1, "data": {"a": 1}}, {"data": {"a": 2}}),
            "data: Invalid value: .*: field is immutable",
            id="a revision's data",
        ),
        pytest.param(
            *("configmaps", "v1", {"data": {"a": "1"}, "immutable": True}, {"data": {"a": ""}}),
            "data: Forbidden: field is immutable",
            id="an emptied value",
        ),
        pytest.param(
            *("rolebindings", "rbac.authorization.k8s.io/v1", {"roleRef": {"kind": "Role", "name": "a"}}),
            {"roleRef": {"name": "b"}},
            'roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"Role","Name":"b"}: cannot change',
            id="a binding's role",
        ),
    ],
)
async def test_some_fields_stay(
    plural: str, api_version: str, body: dict[str, Any], change: dict[str, Any], refused: str
) -> None:
    api = checked()
    await create(api, plural, {"metadata": {"name": "o"}, **body}, "default", api_version)

    with pytest.raises(errors.Invalid, match=refused):
        await patch(api, "o", change, plural=plural, api_version=api_version)


async def test_generations_count_what_they_count_in_kubernetes() -> None:
    api, label = checked(), {"metadata": {"labels": {"a": "b"}}}
    group = "discovery.k8s.io/v1"
    await create(api, "endpointslices", {"metadata": {"name": "e"}, "addressType": "IPv4"}, "default", group)
    await create(api, "priorityclasses", {"metadata": {"name": "p"}, "value": 1}, "", "scheduling.k8s.io/v1")

    labelled = await patch(api, "e", label, plural="endpointslices", api_version=group)
    classes = api.resolve("scheduling.k8s.io", "v1", "priorityclasses")
    described = await api.patch(classes, "", "p", {"description": "x"}, PatchType.MERGE)

    assert (labelled.obj["metadata"]["generation"], described.obj["metadata"]["generation"]) == (2, 1)


async def test_a_collection_is_returned_as_it_was() -> None:
    api = checked()
    kept = {"metadata": {"name": "c", "finalizers": ["example.com/keep"]}}
    await create(api, "configmaps", kept, "default")

    configs = api.resolve("", "v1", "configmaps")
    (deleted,) = await api.delete_collection(configs, "default", ListOptions(), DeleteRequest())

    assert "deletionTimestamp" not in deleted.obj["metadata"]
    assert "deletionTimestamp" in api.get(configs, "default", "c").obj["metadata"]


async def test_times_of_microseconds_have_six_digits() -> None:
    lease = {"metadata": {"name": "l"}, "spec": {"renewTime": "2020-01-01T00:00:00Z"}}

    with pytest.raises(
        errors.BadRequest, match=r'parsing time "2020-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z'
    ):
        await create(checked(), "leases", lease, "default", "coordination.k8s.io/v1")


async def test_drivers_and_network_policies_have_their_defaults_without_a_spec() -> None:
    api = checked()
    driver = await create(api, "csidrivers", {"metadata": {"name": "d"}}, "", "storage.k8s.io/v1")
    policy = await create(
        api, "networkpolicies", {"metadata": {"name": "p"}}, "default", "networking.k8s.io/v1"
    )

    assert driver.obj["spec"]["volumeLifecycleModes"] == ["Persistent"]
    assert policy.obj["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
