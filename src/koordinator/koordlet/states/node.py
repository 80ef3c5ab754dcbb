"""Keep what the API server says of our node: its Node, its policies, the NodeMetric that asks for reports, and which
volume is bound to which claim (block I/O control needs it).

The policies are its NodeSLO over the defaults, the last good one. Source: behaviour/koordlet-observe 7.1, 7.3 and 8.2.
"""

import abc
import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import msgspec

from koordinator.api import decode, quantity, resources, slo, slo_qos
from koordinator.api.core import Node
from koordinator.api.meta import Object, ObjectMeta, ObjectReference, Resource
from koordinator.api.node_metric import NodeMetric, NodeMetricSpec
from koordinator.api.quantity import QuantityError
from koordinator.api.slo import NodeSLO, NodeSLOSpec
from koordinator.api.slo_qos import NO_QOS, ResourceQOS, ResourceQOSStrategy
from koordinator.api.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.informer import Informer
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

UNITS = {
    resources.BATCH_CPU: "integer",
    resources.BATCH_MEMORY: "byte",
    resources.MID_CPU: "integer",
    resources.MID_MEMORY: "byte",
}
"""Units of the batch resources in metrics, 0 where there is none; CPU counts in thousandths of a core."""
NODE_UNITS = {resources.CPU: "core", resources.MEMORY: "byte"}
"""Units of the node itself, so that what is lent can be seen beside it."""


V = TypeVar("V", bound=Object)


class FollowedState(abc.ABC, Generic[V]):
    """Follows the objects of one kind that have the name of this node, or all of them."""

    name: str
    is_required = False
    view: type[V]
    is_of_this_node = True

    def __init__(self, shared: Shared, transform: Callable[[V], V] | None = None) -> None:
        """`transform` leaves out what nobody reads."""
        self._shared = shared
        own = f"metadata.name={shared.config.node_name}" if self.is_of_this_node else ""
        self._informer = Informer(
            shared.cluster, self.view, rng=new_rng(shared.rng), field_selector=own, transform=transform
        )
        self.synced = self._informer.synced
        self._informer.add_handler(self._seen, lambda _, found: self._seen(found), self._deleted)

    @property
    def trouble(self) -> str:
        """Return why the API server tells nothing."""
        return "" if self.synced.is_set() else str(self._informer.guard.last_error or "no answer yet")

    async def run(self) -> NoReturn:
        """Follow the objects."""
        await self._informer.run()

    @abc.abstractmethod
    def _seen(self, found: V) -> None:
        """Take in an object that came or changed."""

    def _deleted(self, found: V) -> None:
        """Most states keep what was said last."""


class NodeState(FollowedState[Node]):
    """Keeps `view.node`, the last one also after it was deleted; changes of labels and annotations are told."""

    name = "node"
    is_required = True
    view = Node

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, _without_images)
        self.synced = asyncio.Event()  # not before there is a Node

    @property
    def trouble(self) -> str:
        """Return why there is no Node."""
        if self.synced.is_set():
            return ""
        if self._informer.synced.is_set():
            return f"there is no Node {self._shared.config.node_name} (NODE_NAME says which is ours)"
        return super().trouble

    def _seen(self, found: Node) -> None:
        view = self._shared.view
        old, view.node = view.node, found
        self._set_metrics(found)
        self.synced.set()
        if old is None or _described(old) != _described(found):
            view.changed(Topic.NODE)

    def _set_metrics(self, node: Node) -> None:
        gauge = self._shared.metrics.allocatable
        gauge.reset()
        allocatable = node.status.allocatable
        for name, unit in (UNITS | NODE_UNITS).items():
            raw = allocatable.get(name, 0 if name in UNITS else None)
            if raw is None:
                continue
            try:
                gauge.set(quantity.milli(raw) / 1000 if unit == "core" else quantity.value(raw), name, unit)
            except QuantityError as error:
                log.debug(
                    "allocatable not reported in metrics", extra={"resource": name, "problem": str(error)}
                )


def _described(node: Node) -> tuple[dict[str, str], dict[str, str]]:
    return node.metadata.labels, node.metadata.annotations


def _without_images(node: Node) -> Node:
    """Images fill most of a Node, and nobody here reads them."""
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, images=[]))


class NodeMetricPolicy(Object, frozen=True, kw_only=True):
    """A NodeMetric without its status, which is our own and large."""

    resource: ClassVar[Resource] = NodeMetric.resource

    spec: NodeMetricSpec = NodeMetricSpec()


class NodeMetricState(FollowedState[NodeMetricPolicy]):
    """Keeps `view.metric_spec`; None while there is no NodeMetric, also after it was deleted."""

    name = "NodeMetric"
    view = NodeMetricPolicy

    def _seen(self, found: NodeMetricPolicy) -> None:
        self._shared.view.metric_spec = found.spec

    def _deleted(self, found: NodeMetricPolicy) -> None:
        self._shared.view.metric_spec = None


GATE = "BlkIOReconcile"


class VolumesState(FollowedState[PersistentVolumeClaim]):
    """Keeps `view.volumes`."""

    name = "PersistentVolumeClaim"
    view = PersistentVolumeClaim
    is_of_this_node = False

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, _binding)
        shared.view.volumes = self._volumes = dict[str, str]()

    def _seen(self, found: PersistentVolumeClaim) -> None:
        if found.spec.volume_name:
            self._volumes[found.key] = found.spec.volume_name
        else:
            self._volumes.pop(found.key, None)

    def _deleted(self, found: PersistentVolumeClaim) -> None:
        self._volumes.pop(found.key, None)


def _binding(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return all that is read of a claim: there may be many thousands in the cluster."""
    meta = claim.metadata
    identity = ObjectMeta(
        namespace=meta.namespace, name=meta.name, uid=meta.uid, resource_version=meta.resource_version
    )
    return PersistentVolumeClaim(
        metadata=identity, spec=PersistentVolumeClaimSpec(volume_name=claim.spec.volume_name)
    )


T = TypeVar("T", bound=msgspec.Struct)

DELETED_S = 60.0
"""A NodeSLO that was deleted and has not come back for so long switches everything off: managers make it anew within
seconds, and protection must not flap meanwhile; who takes it away for good wants the defaults."""
INVALID = "InvalidNodeSLO"


def with_defaults(spec: NodeSLOSpec) -> NodeSLOSpec:
    """Return the policies in force: each block over its default, switched-off class sections with neutral values.

    Neutral values are written to the kernel, which is how switching a feature off undoes it.
    """
    strategy = overlaid(slo_qos.DEFAULT_QOS_STRATEGY, spec.resource_qos_strategy)
    return msgspec.structs.replace(
        spec,
        resource_used_threshold_with_be=overlaid(
            slo.DEFAULT_THRESHOLD_STRATEGY, spec.resource_used_threshold_with_be
        ),
        resource_qos_strategy=_neutralised(strategy),
        cpu_burst_strategy=overlaid(slo.DEFAULT_CPU_BURST_STRATEGY, spec.cpu_burst_strategy),
        system_strategy=overlaid(slo.DEFAULT_SYSTEM_STRATEGY, spec.system_strategy),
    )


def overlaid(default: T, given: T | None) -> T:
    """`given` where it says something, `default` elsewhere, at any depth; a list replaces a list."""
    if given is None:
        return default
    said: dict[str, Any] = {}
    for name in given.__struct_fields__:
        own, fallback = getattr(given, name), getattr(default, name)
        if own is None:
            continue
        if isinstance(own, msgspec.Struct) and isinstance(fallback, msgspec.Struct):
            said[name] = overlaid(fallback, own)
        elif isinstance(own, dict) and isinstance(fallback, dict):
            said[name] = {**fallback, **own}
        else:
            said[name] = own
    return msgspec.structs.replace(default, **said)


def _neutralised(strategy: ResourceQOSStrategy) -> ResourceQOSStrategy:
    """SYSTEM keeps its values: the reference leaves it out here, too."""
    return msgspec.structs.replace(
        strategy,
        lsr_class=_neutral_sections(strategy.lsr_class),
        ls_class=_neutral_sections(strategy.ls_class),
        be_class=_neutral_sections(strategy.be_class),
    )


def _neutral_sections(settings: ResourceQOS | None) -> ResourceQOS | None:
    if settings is None:
        return None
    off = {
        name: getattr(NO_QOS, name)
        for name in ("cpu_qos", "memory_qos", "resctrl_qos")
        if (section := getattr(settings, name)) is not None and not section.enable
    }
    return msgspec.structs.replace(settings, **off)


class AnyNodeSLO(Object, frozen=True, kw_only=True):
    """A NodeSLO with a spec of any form, so that a malformed one is seen and told, not skipped."""

    resource: ClassVar[Resource] = NodeSLO.resource

    spec: Any = None


class NodeSLOState(FollowedState[AnyNodeSLO]):
    """Keeps `view.slo`, which is None while there never was a NodeSLO."""

    name = "NodeSLO"
    is_required = True
    view = AnyNodeSLO

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._ending: asyncio.TimerHandle | None = None

    async def run(self) -> NoReturn:
        """Follow the NodeSLO."""
        try:
            await self._informer.run()
        finally:
            self._stay()

    def _seen(self, found: AnyNodeSLO) -> None:
        self._stay()
        try:
            spec = decode.from_builtins(found.spec if found.spec is not None else {}, NodeSLOSpec)
            merged = with_defaults(spec)
        except msgspec.ValidationError as error:
            self._refuse(str(error))
            return
        self._use(merged)

    def _use(self, spec: NodeSLOSpec) -> None:
        view = self._shared.view
        if spec != view.slo:
            view.slo = spec
            log.info("node policies changed", extra={"node": self._shared.config.node_name})
            view.changed(Topic.NODE_SLO)

    def _refuse(self, problem: str) -> None:
        kept = (
            "the last good one stays in force" if self._shared.view.slo is not None else "there is none yet"
        )
        why, found, field = problem.rpartition(" - at ")
        where = field.strip("`").replace("$", "spec", 1) if found else "spec"
        message = f"NodeSLO {self._shared.config.node_name}: {where}: {why or problem}; {kept}"
        log.warning("node policies rejected", extra={"problem": message})
        self._shared.events.warning(self._node(), INVALID, message)

    def _deleted(self, found: AnyNodeSLO) -> None:
        self._stay()
        log.warning("NodeSLO deleted: its policies apply for a while longer", extra={"seconds": DELETED_S})
        self._ending = asyncio.get_running_loop().call_later(DELETED_S, self._end)

    def _end(self) -> None:
        self._ending = None
        self._use(with_defaults(NodeSLOSpec()))

    def _stay(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _node(self) -> ObjectReference:
        node = self._shared.view.node
        name = self._shared.config.node_name
        return ObjectReference(
            api_version="v1", kind="Node", name=name, uid="" if node is None else node.metadata.uid
        )
