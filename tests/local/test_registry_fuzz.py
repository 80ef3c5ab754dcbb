"""Whatever is sent, the registry answers as an API server does: with success or an `ApiError` below 500."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.kinds import BUILT_IN
from koordinator.clock import FixedClock
from koordinator.cluster.backend import DeleteRequest, ListOptions, WriteOptions
from koordinator.cluster.errors import ApiError
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import definition

WORDS = [
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "uid",
    "resourceVersion",
    "generateName",
    "deletionTimestamp",
    "managedFields",
    "spec",
    "status",
    "containers",
    "image",
    "template",
    "selector",
    "matchLabels",
    "replicas",
    "ports",
    "port",
    "clusterIP",
    "type",
    "data",
    "versions",
    "names",
    "plural",
    "kind",
    "group",
    "scope",
    "schema",
    "conditions",
    "phase",
    "tolerations",
    "priority",
    "priorityClassName",
    "nodeName",
    "terminationGracePeriodSeconds",
    "webhooks",
    "rules",
    "target",
    "deleteOptions",
    "preconditions",
    "gracePeriodSeconds",
    "resources",
    "requests",
    "cpu",
    "schedulingGates",
    "size",
    "conversion",
    "globalDefault",
    "value",
    "subresources",
]
SCALARS = st.sampled_from(
    ["a", "", "1", "x/y", "-", "NodePort", "Namespaced", "100m", 0, 1, -1, 2**70, 1.5, True, False, None]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)
PARTS = st.dictionaries(
    st.sampled_from(["spec", "status", "data", "target", "deleteOptions"]), JSON, max_size=2
)
METADATA = st.dictionaries(st.sampled_from(WORDS[:12]), JSON, max_size=2)
CONTAINERS = {"containers": [{"name": "main", "image": "web:1"}]}
POINTERS = st.lists(st.sampled_from(WORDS), max_size=3).map(lambda words: "/" + "/".join(words))


@st.composite
def objects(draw: st.DrawFn, kind: str) -> Any:
    """Objects that are nearly right, so that they get past the first check now and then."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.dictionaries(st.sampled_from(WORDS), JSON, max_size=4))
    if kind == "CustomResourceDefinition":
        obj = definition(draw(st.sampled_from(["widgets", "gadgets"])))
        obj["spec"].update(draw(st.dictionaries(st.sampled_from(WORDS), JSON, max_size=1)))
        return obj
    obj = {"metadata": {"name": draw(st.sampled_from("ab")), **draw(METADATA)}, **draw(PARTS)}
    if kind == "Pod" and isinstance(obj.get("spec", {}), dict):
        obj["spec"] = {**CONTAINERS, **obj.get("spec", {})}
    return obj


def checked() -> ObjectRegistry:
    api = registry.in_memory(FixedClock())
    paths = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    crd = definition(subresources={"status": {}, "scale": paths})
    api.seed(api.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions"), "", crd)
    api.definitions.restore()
    return api


async def send(api: ObjectRegistry, data: st.DataObject) -> None:
    """One request of any kind."""
    kinds = st.sampled_from(["Pod", "Service", "Namespace", "Job", "Widget", "CustomResourceDefinition"])
    served = list(api.resources())
    wanted = data.draw(kinds | st.sampled_from([resource.kind for resource in BUILT_IN]))
    resource = next((one for one in served if one.kind == wanted), served[0])
    namespace = "default" if resource.namespaced else ""
    name = data.draw(st.sampled_from(["a", "b", "widgets.example.com"]))
    obj = data.draw(objects(resource.kind))
    options = WriteOptions(
        field_manager=data.draw(st.sampled_from(["", "me"])),
        field_validation=data.draw(st.sampled_from(["", "Strict", "Ignore"])),
    )
    subresource = data.draw(st.sampled_from(["", "", "status", "scale", "finalize"]))
    match data.draw(st.integers(0, 5)):
        case 0 | 1:
            await api.create(resource, namespace, obj, options)
        case 2:
            await api.update(resource, namespace, name, obj, options, subresource)
        case 3:
            patch_type = data.draw(st.sampled_from(PatchType))
            patch = obj
            if patch_type is PatchType.APPLY:
                patch = {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
            elif patch_type is PatchType.JSON:
                verbs = st.sampled_from(["add", "replace", "remove", "test", "move", "copy", "spin"])
                patch = [{"op": data.draw(verbs), "path": data.draw(POINTERS), "value": data.draw(JSON)}]
            await api.patch(resource, namespace, name, patch, patch_type, options, subresource)
        case 4:
            grace_s = data.draw(st.sampled_from([None, 0, 5, -1]))
            policy = data.draw(st.sampled_from(["", "Foreground", "Orphan", "x"]))
            await api.delete(
                resource, namespace, name, DeleteRequest(grace_period_s=grace_s, propagation=policy)
            )
        case _:
            action = data.draw(st.sampled_from(["binding", "eviction", "exec"]))
            await api.connect(api.resolve("", "v1", "pods"), "default", name, action, obj, options)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_request_breaks_the_registry(data: st.DataObject) -> None:
    async def run() -> None:
        api = checked()
        for _ in range(12):
            try:
                await send(api, data)
            except ApiError as refused:
                assert refused.code < 500, refused

    asyncio.run(run())


@given(
    label=st.text("ab=!,()<> in\\", max_size=12),
    field=st.text("ab=!,.\\", max_size=12),
    token=st.text("ab=", max_size=6),
    version=st.text("019x-", max_size=4),
    match=st.sampled_from(["", "Exact", "NotOlderThan", "x"]),
    limit=st.integers(-1, 3),
)
def test_no_query_breaks_the_registry(
    label: str, field: str, token: str, version: str, match: str, limit: int
) -> None:
    options = ListOptions(
        label_selector=label,
        field_selector=field,
        continue_token=token,
        resource_version=version,
        resource_version_match=match,
        limit=limit,
    )
    pods = QUIET.resolve("", "v1", "pods")
    for ask in (QUIET.list, QUIET.watch):
        try:
            answer = ask(pods, "default", options)
        except ApiError as refused:
            assert refused.code < 500 or refused.reason == "Timeout"
        else:
            assert answer is not None


QUIET = registry.in_memory(FixedClock(), checks=False)
