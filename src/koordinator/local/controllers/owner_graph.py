"""Keep who owns whom: the pure part of the garbage collector."""

from collections.abc import Iterable

import msgspec

from koordinator.api.meta import Object, OwnerReference, Resource

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


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
    """The entry of an object as it is now."""
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
