"""Write a running cluster into a dump: one object a line, so that files of any size can be read.

Nobody needs all of it offline: values of environment variables, field owners, what kubectl applied last stay
there; of ConfigMaps only Koordinator's own come along, of Secrets none.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.device import Device
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.slo import NodeSLO
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.simulate import descheduling
from koordinator.simulate import dump as dumps

Json = dict[str, Any]

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_OWN = (Node, Pod, NodeMetric, NodeSLO, NodeResourceTopology, Device)


class DumpedObject(msgspec.Struct, frozen=True):
    """An object of a dump: its kind, and its line."""

    kind: str
    line: bytes


def views(of_scheduler: Sequence[type[Object]]) -> list[type[Object]]:
    """Return the kinds of a dump: all that a command with `--dump` looks at. `of_scheduler` are those of a snapshot."""
    wanted: list[type[Object]] = [*_OWN, *of_scheduler, *descheduling.VIEWS]
    found = dict.fromkeys(wanted)
    found.pop(ConfigMap, None)  # one is taken by its name
    return list(found)


async def objects(cluster: Cluster, kinds: Sequence[type[Object]]) -> AsyncIterator[DumpedObject]:
    """Yield the objects of these kinds of a cluster; kinds that it does not serve are left out. Raises: ApiError."""
    for view in kinds:
        resource = view.resource
        async for page in dumps.pages(cluster, view):
            for item in page["items"]:
                yield _dumped({"apiVersion": resource.api_version, "kind": resource.kind, **item})
    path = ConfigMap.resource.path(slo_config.CONFIG_NAMESPACE, slo_config.CONFIG_NAME)
    try:
        config = await cluster.request("GET", path)
    except errors.NotFound:
        return
    yield _dumped({"apiVersion": "v1", "kind": "ConfigMap", **config})


def _dumped(obj: Json) -> DumpedObject:
    return DumpedObject(obj["kind"], msgspec.json.encode(_bare(obj)) + b"\n")


def _bare(obj: Json) -> Json:
    meta = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
    if _APPLIED in (meta.get("annotations") or {}):
        meta["annotations"] = {k: v for k, v in meta["annotations"].items() if k != _APPLIED}
    found = {**obj, "metadata": meta}
    if obj["kind"] == "Pod":
        found["spec"] = _without_values(obj.get("spec") or {})
    elif "template" in (obj.get("spec") or {}):
        template = obj["spec"]["template"] or {}
        found["spec"] = {
            **obj["spec"],
            "template": {**template, "spec": _without_values(template.get("spec") or {})},
        }
    return found


def _without_values(spec: Json) -> Json:
    """Return a pod's spec without what its containers' environment says."""
    kept = dict(spec)
    for name in ("containers", "initContainers", "ephemeralContainers"):
        if spec.get(name):
            kept[name] = [{k: v for k, v in each.items() if k != "env"} for each in spec[name]]
    return kept
