"""Typed views of PriorityClass and RuntimeClass."""

from typing import ClassVar

from koordinator.api.affinity import Toleration
from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import ResourceList


class PriorityClass(Object, frozen=True, kw_only=True):
    """`preemption_policy` is PreemptLowerPriority or Never; None means the former."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.k8s.io",
        version="v1",
        kind="PriorityClass",
        plural="priorityclasses",
        namespaced=False,
        short_names=("pc",),
    )

    value: int = 0
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None


class Overhead(ViewPart, frozen=True, kw_only=True):
    pod_fixed: ResourceList = {}


class RuntimeClassScheduling(ViewPart, frozen=True, kw_only=True):
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []


class RuntimeClass(Object, frozen=True, kw_only=True):
    """The resources that a container runtime costs per pod, and the nodes that have the runtime."""

    resource: ClassVar[Resource] = Resource(
        group="node.k8s.io", version="v1", kind="RuntimeClass", plural="runtimeclasses", namespaced=False
    )

    handler: str = ""
    overhead: Overhead | None = None
    scheduling: RuntimeClassScheduling | None = None
