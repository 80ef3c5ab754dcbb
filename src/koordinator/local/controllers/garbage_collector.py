"""Deletes what has lost all its owners; carries out foreground and orphan deletion.

An owner counts as gone only when the API says so for its exact uid: a cache that is behind must never cost an
object. Pure code keeps who owns whom. Source: the garbage collector of kube-controller-manager.
"""

import logging
from collections.abc import Callable, Iterable

import msgspec

from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.meta import Object, OwnerReference, Resource, metadata_view
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster, get_if_there
from koordinator.local.registry.metadata import FOREGROUND, ORPHAN

log = logging.getLogger(__name__)

WORKERS = 8
ABSENT_MAX = 5_000  # uids known to be gone; a few per deleted workload, asked for again when forgotten

# Objects that come and go by the thousands and own nothing.
IGNORED = frozenset({"events", "events.events.k8s.io"})


class GraphNode(msgspec.Struct, frozen=True):
    """The facts that the collector knows of an object."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    version: str
    owners: tuple[OwnerReference, ...]
    is_deleting: bool
    finalizers: tuple[str, ...]


def entry_of(resource: Resource, obj: Object) -> GraphNode:
    """Return the entry of an object as it is now."""
    meta = obj.metadata
    return GraphNode(
        resource=resource,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        owners=tuple(meta.owner_references),
        is_deleting=meta.deletion_timestamp is not None,
        finalizers=tuple(meta.finalizers),
    )


class OwnerGraph:
    """Objects by uid and the edges between them; an owner may be unknown (not seen yet, or gone)."""

    def __init__(self) -> None:
        self._entries: dict[str, GraphNode] = {}
        self._dependents: dict[str, dict[str, None]] = {}  # ordered, so that runs repeat

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uid: str) -> GraphNode | None:
        return self._entries.get(uid)

    def dependents(self, uid: str) -> Iterable[GraphNode]:
        """Objects that name `uid` as an owner."""
        return [self._entries[child] for child in self._dependents.get(uid, ())]

    def put(self, entry: GraphNode) -> None:
        """Add or replace an object."""
        old = self._entries.get(entry.uid)
        if old is not None:
            self._unlink(old)
        self._entries[entry.uid] = entry
        for owner in entry.owners:
            self._dependents.setdefault(owner.uid, {})[entry.uid] = None

    def remove(self, uid: str) -> GraphNode | None:
        """Forget an object; its dependents stay linked to its uid. The entry it had."""
        old = self._entries.pop(uid, None)
        if old is not None:
            self._unlink(old)
        return old

    def _unlink(self, entry: GraphNode) -> None:
        for owner in entry.owners:
            children = self._dependents.get(owner.uid)
            if children is not None:
                children.pop(entry.uid, None)
                if not children:
                    del self._dependents[owner.uid]

    def blocking(self, uid: str) -> list[GraphNode]:
        """Dependents that must be gone before a foreground deletion of `uid` may end."""
        return [
            child
            for child in self.dependents(uid)
            if any(owner.uid == uid and owner.block_owner_deletion for owner in child.owners)
        ]


class GarbageCollector:
    """Follows the metadata of every resource that `resources` names, custom ones as they appear."""

    def __init__(
        self, cluster: Cluster, factory: InformerFactory, resources: Callable[[], Iterable[Resource]]
    ) -> None:
        self._cluster = cluster
        self._factory = factory
        self._resources = resources
        self._graph = OwnerGraph()
        self._views: dict[tuple[str, str], type[Object]] = {}  # (group, kind)
        self._absent: dict[str, None] = {}
        self._controller: Controller[str] = Controller("garbage collector", self._process, workers=WORKERS)
        self._crds = factory.informer(CustomResourceDefinition)
        self._crds.add_handler(lambda _: self._follow_all(), lambda *_: self._follow_all())
        self._follow_all()

    async def run(self) -> None:
        """Work until cancelled."""
        await self._factory.wait_synced()
        await self._controller.run()

    def _follow_all(self) -> None:
        for resource in self._resources():
            identity = (resource.group, resource.kind)
            if identity in self._views or resource.qualified in IGNORED:
                continue
            view = metadata_view(resource)
            self._views[identity] = view
            informer = self._factory.informer(view)
            informer.add_handler(self._changed, lambda _, new: self._changed(new), self._gone)

    def _changed(self, obj: Object) -> None:
        entry = entry_of(obj.resource, obj)
        self._absent.pop(entry.uid, None)
        self._graph.put(entry)
        if entry.owners or (entry.is_deleting and {FOREGROUND, ORPHAN} & set(entry.finalizers)):
            self._controller.queue.add(entry.uid)

    def _gone(self, obj: Object) -> None:
        uid = obj.metadata.uid
        entry = self._graph.remove(uid)
        self._remember_absent(uid)
        for child in self._graph.dependents(uid):
            self._controller.queue.add(child.uid)
        if entry is not None:
            self._wake_owners(entry)

    def _wake_owners(self, entry: GraphNode) -> None:
        for owner in entry.owners:
            known = self._graph.get(owner.uid)
            if known is not None and known.is_deleting:
                self._controller.queue.add(owner.uid)

    def _remember_absent(self, uid: str) -> None:
        self._absent[uid] = None
        if len(self._absent) > ABSENT_MAX:
            del self._absent[next(iter(self._absent))]

    # One object

    async def _process(self, uid: str) -> None:
        entry = self._graph.get(uid)
        if entry is None:
            return
        if entry.is_deleting:
            if ORPHAN in entry.finalizers:
                await self._orphan(entry)
            elif FOREGROUND in entry.finalizers:
                await self._delete_foreground(entry)
            return
        if entry.owners:
            await self._collect(entry)

    async def _collect(self, entry: GraphNode) -> None:
        """Delete an object without a living owner; drop its references to dead ones otherwise."""
        dead: list[OwnerReference] = []
        waiting: list[OwnerReference] = []
        alive: list[OwnerReference] = []
        for owner in entry.owners:
            if not await self._exists(owner, entry):
                dead.append(owner)
                continue
            known = self._graph.get(owner.uid)
            is_waiting = known is not None and known.is_deleting and FOREGROUND in known.finalizers
            (waiting if is_waiting else alive).append(owner)
        if alive:
            if dead or waiting:
                await self._drop_references(entry, {owner.uid for owner in (*dead, *waiting)})
            return
        if waiting and any(True for _ in self._graph.dependents(entry.uid)):
            propagation = "Foreground"
        elif ORPHAN in entry.finalizers:
            propagation = "Orphan"
        elif FOREGROUND in entry.finalizers:
            propagation = "Foreground"
        else:
            propagation = "Background"
        if dead or waiting:
            await self._delete(entry, propagation)

    async def _exists(self, owner: OwnerReference, dependent: GraphNode) -> bool:
        if self._graph.get(owner.uid) is not None:
            return True
        if owner.uid in self._absent:
            return False
        group = owner.api_version.rpartition("/")[0]
        view = self._views.get((group, owner.kind))
        if view is None:
            return True  # not served (any more, or yet): nobody can tell, so it stays
        namespace = dependent.namespace if view.resource.namespaced else ""
        if view.resource.namespaced and not namespace:
            return True  # a cluster-scoped object cannot have a namespaced owner; not ours to mend
        found = await get_if_there(self._cluster, view, owner.name, namespace)
        if found is None or found.metadata.uid != owner.uid:
            self._remember_absent(owner.uid)
            return False
        return True

    async def _delete(self, entry: GraphNode, propagation: str) -> None:
        view = self._views[entry.resource.group, entry.resource.kind]
        try:
            await self._cluster.delete(
                view, entry.name, entry.namespace, uid=entry.uid, propagation=propagation
            )
        except (errors.NotFound, errors.Conflict):
            return  # gone, or another object of that name: its own events tell
        log.info("dependent deleted", extra={"object": f"{entry.resource.qualified} {entry.name}"})

    async def _drop_references(self, entry: GraphNode, uids: set[str]) -> None:
        kept = [owner for owner in entry.owners if owner.uid not in uids]
        await self._patch_metadata(entry, {"ownerReferences": msgspec.to_builtins(kept) or None})

    async def _delete_foreground(self, entry: GraphNode) -> None:
        for child in self._graph.dependents(entry.uid):
            if not child.is_deleting:
                self._controller.queue.add(child.uid)
        if not self._graph.blocking(entry.uid):
            await self._remove_finalizer(entry, FOREGROUND)

    async def _orphan(self, entry: GraphNode) -> None:
        for child in list(self._graph.dependents(entry.uid)):
            await self._drop_references(child, {entry.uid})
        await self._remove_finalizer(entry, ORPHAN)

    async def _remove_finalizer(self, entry: GraphNode, finalizer: str) -> None:
        kept = [name for name in entry.finalizers if name != finalizer]
        await self._patch_metadata(entry, {"finalizers": kept or None})

    async def _patch_metadata(self, entry: GraphNode, metadata: dict[str, object]) -> None:
        view = self._views[entry.resource.group, entry.resource.kind]
        # Lists are replaced whole, so only the very version that we read may change (Conflict: tried again).
        guard = {"uid": entry.uid, "resourceVersion": entry.version}
        try:
            await self._cluster.patch(view, entry.name, {"metadata": {**guard, **metadata}}, entry.namespace)
        except errors.NotFound:
            return
