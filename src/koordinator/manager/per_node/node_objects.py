"""Objects of which each node has exactly one of its name, which lives and dies with it (behaviour/manager 4, 11).

What such an object should say is the matter of its `Rules`; here are the caches, the queue and the writes.

A change of the configuration may mean another object for each of ten thousand nodes. `NodeSweep` compares nodes in
slices of a few milliseconds; only those that differ are queued, and only as fast as the queue empties: a node that
joins meanwhile waits for `WAITING_MAX` others at most, not for the whole cluster.

A NodeMetric tells the node agent what to report (behaviour/manager 4), its status is the agent's alone; a NodeSLO which
policies to run (behaviour/manager 11), each section that differs is replaced as a whole. Both live and die with their
node.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koordinator.api import duration, labels, slo_config
from koordinator.api.core import Node
from koordinator.api.meta import Object
from koordinator.api.node_metric import AggregatePolicy, MetricCollectPolicy, NodeMetric, NodeMetricSpec
from koordinator.api.slo import NodeSLO, NodeSLOSpec
from koordinator.api.slo_config import ColocationConfig, ColocationStrategy
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, WorkQueue
from koordinator.cluster.protocol import PatchType
from koordinator.cluster.supervise import Guard
from koordinator.manager.config import colocation_config, node_slo_spec
from koordinator.manager.config.addons import LayeredAddon
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.config.node_entries import REMEMBERED_MAX
from koordinator.manager.config.slo_configs import ConfigSection
from koordinator.manager.metrics import FAILED, SUCCEEDED
from koordinator.manager.parts import ManagerContext
from koordinator.prometheus import Counter

T = TypeVar("T", bound=Object)
R = TypeVar("R", bound=Object, contravariant=True)

WORKERS = 4
"""Writes at a time: enough to fill the API's limit of the manager, few enough to leave room for others."""
UNSEEN_TRIES_MAX = 3
"""An object that exists and does not come by watch so often does not fit its view: its spec is replaced."""


class ObjectUpdate(msgspec.Struct, frozen=True):
    """A patch of exactly what differs."""

    patch: Mapping[str, Any] | Sequence[Any]
    type: PatchType = PatchType.MERGE


class ObjectRules(Protocol[R]):
    """The rules for the object of a node."""

    def matters(self, old: Node, new: Node) -> bool:
        """Return whether a change of a node may change its object."""

    def spec(self, node: Node) -> dict[str, Any]:
        """Return the whole spec of an object that is not known, as JSON."""

    def update(self, node: Node, obj: R) -> ObjectUpdate | None:
        """Return what is to be written, None when the object says what it should."""

    def worked_out(self, node: Node, obj: R | None) -> None:
        """Count that the object of a node was worked out in a reconcile."""


class NodeObjects(Generic[T]):
    """Creates, corrects and deletes the objects of one kind, by `section` of the configuration.

    `reconciles` counts (status, reason); the reason of a write is like `createNodeSLO`.
    """

    def __init__(
        self,
        shared: ManagerContext,
        view: type[T],
        rules: ObjectRules[T],
        section: ConfigSection,
        *,
        name: str,
        reconciles: Counter,
    ) -> None:
        self._cluster = shared.cluster
        self._view = view
        self._rules = rules
        self._configs = shared.configs
        self._reconciles = reconciles
        self._nodes = shared.factory.informer(Node)
        self._objects = shared.factory.informer(view)
        self._controller: Controller[str] = Controller(name, self._reconcile, workers=WORKERS)
        self.queue = self._controller.queue
        shared.metrics.queues.watch(name, self.queue)
        self.sweep = NodeSweep(self.queue, self._node_names, self._differs)
        self._nodes.add_handler(self._add, self._on_node, self._add)
        self._objects.add_handler(self._add, self._on_object, self._add)
        shared.configs.on_change(section, self.sweep.begin)

    def _add(self, obj: Object) -> None:
        self.queue.add(obj.metadata.name)

    def _on_node(self, old: Node, new: Node) -> None:
        if old is new or self._rules.matters(old, new):
            self._add(new)

    def _on_object(self, old: T, new: T) -> None:
        if old.metadata.generation != new.metadata.generation or not new.metadata.generation:
            self._add(new)

    def _node_names(self) -> list[str]:
        return [name for _, name in self._nodes.objects]

    def _differs(self, name: str) -> bool:
        node, obj = self._nodes.get(name), self._objects.get(name)
        return node is not None and (obj is None or self._rules.update(node, obj) is not None)

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._nodes, self._objects):
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._controller.run(), name=self._controller.guard.name)
            group.create_task(self.sweep.run(), name=f"{self._controller.guard.name} sweep")

    async def _reconcile(self, name: str) -> None:
        try:
            await self._bring_about(name)
        finally:
            self.sweep.key_done()

    async def _bring_about(self, name: str) -> None:
        node, obj = self._nodes.get(name), self._objects.get(name)
        if node is None:
            if obj is not None:
                await self._delete(obj)
            return
        if not self._configs.is_known:
            return  # every node is looked at again once a configuration is known
        self._rules.worked_out(node, obj)
        if obj is None:
            await self._create(name, node)
        elif update := self._rules.update(node, obj):
            patching = self._cluster.patch(self._view, name, update.patch, patch_type=update.type)
            await self._counted("update", patching)
        else:
            self._reconciles.inc(SUCCEEDED, "")

    async def _create(self, name: str, node: Node) -> None:
        spec = self._rules.spec(node)
        if self.queue.failures(name) >= UNSEEN_TRIES_MAX:
            patch = [{"op": "add", "path": "/spec", "value": spec}]
            patching = self._cluster.patch(self._view, name, patch, patch_type=PatchType.JSON)
            try:
                await self._counted("update", patching)
            except errors.NotFound:
                self.queue.forget(name)  # it did not exist: the next try creates it
                raise
            return
        await self._counted(
            "create", self._cluster.create(self._view, {"metadata": {"name": name}, "spec": spec})
        )

    async def _delete(self, obj: T) -> None:
        """Unless the node exists and merely cannot be read: the agent's reports would be lost with it."""
        name = obj.metadata.name
        try:
            await self._cluster.get(Node, name)
        except errors.NotFound:
            pass
        except errors.ApiError:
            self._reconciles.inc(FAILED, "reconcileNodeGetError")
            raise
        else:
            return  # it came back, which the watch will tell
        with contextlib.suppress(errors.NotFound):
            await self._counted("delete", self._cluster.delete(self._view, name, uid=obj.metadata.uid))

    async def _counted(self, verb: str, write: Awaitable[Any]) -> None:
        reason = f"{verb}{self._view.resource.kind}"
        try:
            await write
        except errors.ApiError as error:
            if not (verb == "delete" and isinstance(error, errors.NotFound)):
                self._reconciles.inc(FAILED, reason)
            raise
        self._reconciles.inc(SUCCEEDED, reason)


SLICE = 256  # nodes compared before others get their turn: some 5 ms
WAITING_MAX = 64  # keys that may wait; the API's own limit decides how fast they leave


class NodeSweep:
    """Queues the names among `names()` for which `differs` holds, once after each `begin`."""

    def __init__(
        self, queue: WorkQueue[str], names: Callable[[], Iterable[str]], differs: Callable[[str], bool]
    ) -> None:
        self.guard = Guard("sweep over nodes")
        self.queued_count = 0
        self._queue = queue
        self._names = names
        self._differs = differs
        self._wanted = asyncio.Event()
        self._has_room = asyncio.Event()

    def begin(self) -> None:
        """Look at all nodes, again if that is being done already."""
        self._wanted.set()

    def key_done(self) -> None:
        """Note that a worker has finished with a key, so that there may be room for another."""
        self._has_room.set()

    async def run(self) -> None:
        """Sweep whenever that is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            # A change in the middle is seen by the nodes that come after it, the others come again.
            for number, name in enumerate(list(self._names()), 1):
                await self._check(name)
                if number % SLICE == 0:
                    await asyncio.sleep(0)

    async def _check(self, name: str) -> None:
        # A node for which that cannot be told is worked on, too: whoever does says why.
        if self.guard.answer(self._differs, name, otherwise=lambda _: True):
            while len(self._queue) >= WAITING_MAX:
                self._has_room.clear()
                await self._has_room.wait()
            self._queue.add(name)
            self.queued_count += 1


_PARSED = "getNodeMetricCollectPolicy"


def wanted_spec(state: ColocationState, node: Node, old: NodeMetricSpec | None) -> NodeMetricSpec:
    """Return the collect policy of a node: that of its strategy, or the defaults while co-location is off.

    While the last configuration could not be used, an existing policy stays as it is.
    """
    if state.error and old is not None:
        return old
    return policy_spec(colocation_config.node_strategy(state.config, node))


def is_usable(strategy: ColocationStrategy) -> bool:
    """Return whether a node's strategy says how to measure: its values are valid, and it is on, also where the
    cluster's is off and nothing is lent."""
    return bool(strategy.enable) and not slo_config.colocation_problems(strategy)


def policy_spec(strategy: ColocationStrategy) -> NodeMetricSpec:
    """Return the spec under a strategy, or under the defaults if that is not usable."""
    if not is_usable(strategy):
        strategy = slo_config.DEFAULT_COLOCATION_STRATEGY
    policy = strategy.metric_aggregate_policy
    return NodeMetricSpec(
        metric_collect_policy=MetricCollectPolicy(
            aggregate_duration_seconds=strategy.metric_aggregate_duration_seconds,
            report_interval_seconds=strategy.metric_report_interval_seconds,
            node_aggregate_policy=None
            if policy is None
            else AggregatePolicy(durations=[duration.text_of(s) for s in policy.durations]),
            node_memory_collect_policy=strategy.metric_memory_collect_policy,
        )
    )


class NodeMetricController(NodeObjects[NodeMetric]):
    """Creates, corrects and deletes NodeMetric objects."""

    def __init__(self, shared: ManagerContext) -> None:
        rules, counter = _NodeMetricRules(shared), shared.metrics.nodemetric_reconciles
        section = ConfigSection.COLOCATION
        super().__init__(shared, NodeMetric, rules, section, name="nodemetric", reconciles=counter)


class _NodeMetricRules:
    """The rules for the NodeMetric of a node."""

    def __init__(self, shared: ManagerContext) -> None:
        self._configs = shared.configs
        self._parses = shared.metrics.nodemetric_parses
        self._known: dict[int, tuple[ColocationStrategy, NodeMetricSpec]] = {}
        """By the identity of the strategy, which nodes share; it is kept so that no other can have it."""
        self._known_config: ColocationConfig | None = None

    def matters(self, old: Node, new: Node) -> bool:
        before, after = old.metadata, new.metadata
        return before.labels != after.labels or _override(old) != _override(new)

    def spec(self, node: Node) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self._wanted(node))
        return found

    def update(self, node: Node, obj: NodeMetric) -> ObjectUpdate | None:
        """While the last configuration could not be used, an existing policy stays as it is."""
        if self._configs.colocation.error and obj.spec.metric_collect_policy is not None:
            return None
        wanted = self._wanted(node)
        return None if wanted == obj.spec else ObjectUpdate({"spec": msgspec.to_builtins(wanted)})

    def worked_out(self, node: Node, obj: NodeMetric | None) -> None:
        strategy = self._configs.strategies.of(node)
        is_good = not self._configs.colocation.error and not slo_config.colocation_problems(strategy)
        self._parses.inc(SUCCEEDED if is_good else FAILED, _PARSED)

    def _wanted(self, node: Node) -> NodeMetricSpec:
        strategies = self._configs.strategies
        if self._known_config is not strategies.config or len(self._known) > REMEMBERED_MAX:
            self._known_config = strategies.config
            self._known.clear()
        strategy = strategies.of(node)
        known = self._known.get(id(strategy))
        if known is None:
            known = self._known[id(strategy)] = (strategy, policy_spec(strategy))
        return known[1]


def _override(node: Node) -> str | None:
    return node.metadata.annotations.get(slo_config.NODE_COLOCATION_STRATEGY.key)


_SECTIONS_PARSED = {
    "getResourceThresholdSpec": slo_config.RESOURCE_THRESHOLD.key,
    "getResourceQOSSpec": slo_config.RESOURCE_QOS.key,
    "getCPUBurstConfigSpec": slo_config.CPU_BURST.key,
    "getSystemConfigSpec": slo_config.SYSTEM.key,
    "getHostApplicationConfig": slo_config.HOST_APPLICATION.key,
}
_EXTENSIONS_PARSED = "getNodeSLOExtension"


class NodeSLOController(NodeObjects[NodeSLO]):
    """Creates, corrects and deletes NodeSLO objects."""

    def __init__(self, shared: ManagerContext) -> None:
        rules, counter = _NodeSLORules(shared), shared.metrics.nodeslo_reconciles
        super().__init__(shared, NodeSLO, rules, ConfigSection.NODE_SLO, name="nodeslo", reconciles=counter)


class _NodeSLORules:
    """The rules for the NodeSLO of a node."""

    def __init__(self, shared: ManagerContext) -> None:
        self._configs = shared.configs
        self._addons = shared.configs.addons.node_slo
        # A layered policy depends on labels only; what a stranger's depends on is not known.
        self._follows_annotations = not all(isinstance(each, LayeredAddon) for each in self._addons)
        self._parses = shared.metrics.nodeslo_parses

    def matters(self, old: Node, new: Node) -> bool:
        before, after = old.metadata, new.metadata
        if before.labels != after.labels or _bandwidth(old) != _bandwidth(new):
            return True
        return self._follows_annotations and before.annotations != after.annotations

    def spec(self, node: Node) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self._wanted(node, None))
        return found

    def update(self, node: Node, obj: NodeSLO) -> ObjectUpdate | None:
        changes = changed_sections(obj.spec, self._wanted(node, obj))
        return ObjectUpdate(changes, PatchType.JSON) if changes else None

    def worked_out(self, node: Node, obj: NodeSLO | None) -> None:
        problems = self._configs.problems
        for reason, key in _SECTIONS_PARSED.items():
            self._parses.inc(FAILED if key in problems else SUCCEEDED, reason)
        if self._addons:
            is_good = all(addon.name in self._configs.extensions for addon in self._addons)
            self._parses.inc(SUCCEEDED if is_good else FAILED, _EXTENSIONS_PARSED)

    def _wanted(self, node: Node, obj: NodeSLO | None) -> NodeSLOSpec:
        """Extensions of add-ons that are not installed here stay as they are, and so do sections of keys that this
        process could never read."""
        configs = self._configs
        found = obj.spec.extensions if obj is not None else {}
        if found or self._addons:
            found = node_slo_spec.node_extensions(found, self._addons, configs.extensions, node)
        wanted = configs.node_specs.of(node, found)
        if obj is None or not configs.unread:
            return wanted
        sections = (node_slo_spec.SECTIONS[key][1] for key in configs.unread)
        return msgspec.structs.replace(wanted, **{name: getattr(obj.spec, name) for name in sections})


def changed_sections(old: NodeSLOSpec, new: NodeSLOSpec) -> list[dict[str, Any]]:
    """Return the JSON patch that replaces the sections that differ; none when both mean the same."""
    if node_slo_spec.is_same(old, new):
        return []
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    changes: list[dict[str, Any]] = [
        {"op": "add", "path": f"/spec/{key}", "value": value}
        for key, value in after.items()
        if before.get(key) != value
    ]
    changes += [{"op": "remove", "path": f"/spec/{key}"} for key in before if key not in after]
    if changes and not before:
        return [{"op": "add", "path": "/spec", "value": after}]
    return changes


def _bandwidth(node: Node) -> str | None:
    return node.metadata.annotations.get(labels.NODE_NETWORK_BANDWIDTH)
