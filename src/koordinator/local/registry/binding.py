"""The `binding` subresource of pods: which node a pod goes to, said once. Pure.

Source: `BindingREST` of the API server.
"""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.local.registry import metadata, refusals
from koordinator.local.schema import errors as fields

_BINDING = Resource(group="", version="v1", kind="Binding", plural="bindings")


def bound(pod: dict[str, Any], resource: Resource, binding: dict[str, Any], now: str) -> dict[str, Any]:
    """Return the pod on its node, with the labels and annotations of the binding merged in.

    Raises: Invalid (the binding names no node), Conflict (the pod is another one, going away or taken).
    """
    node = _target(binding)
    meta, name = dict(pod["metadata"]), pod["metadata"]["name"]
    sent = metadata.of(binding)
    why = _objection(pod, metadata.name_of(sent, "uid"), metadata.name_of(sent, "resourceVersion"))
    if why:
        raise refusals.conflict(resource, name, why, "binding")
    for field in ("labels", "annotations"):
        if sent.get(field):
            meta[field] = {**(meta.get(field) or {}), **sent[field]}
    status = dict(pod.get("status") or {})
    status["conditions"] = with_condition(
        status.get("conditions") or [],
        {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now},
    )
    return {**pod, "metadata": meta, "spec": {**pod["spec"], "nodeName": node}, "status": status}


def _target(binding: dict[str, Any]) -> str:
    target = binding.get("target")
    target = target if isinstance(target, dict) else {}
    name = metadata.name_of(metadata.of(binding))
    causes = []
    if target.get("kind") not in (None, "", "Node"):
        causes.append(fields.not_supported("target.kind", target["kind"], ("Node", "<empty>")))
    node = target.get("name")
    if not isinstance(node, str) or not node:
        causes.append(fields.required("target.name", ""))
    if causes:
        raise fields.invalid_object(_BINDING, name, causes)
    return str(node)


def _objection(pod: dict[str, Any], uid: str, version: str) -> str:
    meta, spec, name = pod["metadata"], pod.get("spec") or {}, pod["metadata"]["name"]
    if uid and uid != meta["uid"]:
        return f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
    if version and version != meta["resourceVersion"]:
        return (
            f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object "
            f"meta: {meta['resourceVersion']}"
        )
    if "deletionTimestamp" in meta:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def with_condition(conditions: list[dict[str, Any]], condition: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions with one of them set; its transition time moves only with its status."""
    kept = [one for one in conditions if one.get("type") != condition["type"]]
    was = next((one for one in conditions if one.get("type") == condition["type"]), None)
    if was is not None and was.get("status") == condition["status"] and "lastTransitionTime" in was:
        condition = {**condition, "lastTransitionTime": was["lastTransitionTime"]}
    return [*kept, condition]
