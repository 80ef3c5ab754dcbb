"""Find which objects belong to a workload: those that name it as controller, and strays that its selector wants.

An owned object that the selector no longer matches is released, a stray that it matches is adopted. Both are looked up
by index, so that a workload costs what it owns, not what the cluster holds.

`Expectations` remember what we wrote and the cache does not show yet: a controller must not decide again before it
does. Creates and deletes are remembered by uid, so that a cache that is behind never costs a second create.

Sources: the controller reference managers and the UID-tracking expectations of kube-controller-manager.
"""

import logging
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import Object, OwnerReference, controller_of, controller_reference
from koordinator.cluster.controller import Controller
from koordinator.cluster.informer import Informer, InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, get_if_there, patch_if_there

log = logging.getLogger(__name__)

_SPEC_SELECTOR = attrgetter("spec.selector")

C = TypeVar("C", bound=Object)

# As upstream: an event that was lost for good must not stop a controller for ever.
TIMEOUT_S = 300.0
# Objects that went while the answer to their own create was under way; a handful at any moment.
GONE_MAX = 4_096


class _Pending(msgspec.Struct, frozen=True):
    """A write: of the object `uid` under `name`, a delete or a create."""

    namespace: str
    name: str
    uid: str
    is_delete: bool
    since_s: float


class Expectations(Generic[C]):
    """Writes that wait for the cache, by the uid of the object on whose behalf they were made."""

    def __init__(self, informer: Informer[C]) -> None:
        self._informer = informer
        self._pending: dict[str, list[_Pending]] = {}
        self._gone: dict[str, None] = {}

    def created(self, owner_uid: str, obj: C, now_s: float) -> None:
        """We created `obj`."""
        self._add(owner_uid, obj, now_s, is_delete=False)

    def deleted(self, owner_uid: str, obj: C, now_s: float) -> None:
        """We asked for the deletion of `obj`: the cache must show it marked, or no more."""
        self._add(owner_uid, obj, now_s, is_delete=True)

    def left_s(self, owner_uid: str, now_s: float) -> float | None:
        """None when the cache shows all writes; else the seconds after which we stop waiting for it."""
        pending = self._pending.get(owner_uid)
        if pending is None:
            return None
        waiting = [one for one in pending if now_s - one.since_s < TIMEOUT_S and not self._is_seen(one)]
        if not waiting:
            del self._pending[owner_uid]
            return None
        self._pending[owner_uid] = waiting
        return TIMEOUT_S - (now_s - waiting[0].since_s)

    def forget(self, owner_uid: str) -> None:
        """Note that the owner is gone."""
        self._pending.pop(owner_uid, None)

    def saw_deletion(self, obj: C) -> None:
        """Note that the cache lost `obj`; to be called for all objects whose owner is one of ours."""
        self._gone[obj.metadata.uid] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def _add(self, owner_uid: str, obj: C, now_s: float, *, is_delete: bool) -> None:
        meta = obj.metadata
        one = _Pending(meta.namespace, meta.name, meta.uid, is_delete, now_s)
        if not self._is_seen(one):
            self._pending.setdefault(owner_uid, []).append(one)

    def _is_seen(self, one: _Pending) -> bool:
        if one.uid in self._gone:
            return True
        cached = self._informer.get(one.name, one.namespace)
        is_there = cached is not None and cached.metadata.uid == one.uid
        if not one.is_delete:
            return is_there
        return not is_there or (cached is not None and cached.metadata.deletion_timestamp is not None)


P = TypeVar("P", bound=Object)

BY_CONTROLLER = "controller uid"
STRAYS = "strays by label"


def owner_reference(owner: Object) -> dict[str, Any]:
    """Return the entry of `ownerReferences` by which `owner` controls an object and waits for its deletion."""
    wire: dict[str, Any] = msgspec.to_builtins(controller_reference(owner))
    return wire


def controller_uid(obj: Object) -> list[str]:
    """Values of the index `BY_CONTROLLER`."""
    owner = controller_of(obj)
    return [owner.uid] if owner is not None else []


def stray_labels(obj: Object) -> list[str]:
    """Values of the index `STRAYS`: one per label and one for the namespace, of objects nobody controls."""
    if controller_of(obj) is not None:
        return []
    meta = obj.metadata
    return [_place(meta.namespace), *(_place(meta.namespace, label) for label in meta.labels.items())]


def is_deleting(obj: Object) -> bool:
    return obj.metadata.deletion_timestamp is not None


def compiled(selector: LabelSelector) -> label_selector.Predicate:
    """`label_selector.compile_selector`, quicker for the common selector that names labels only.

    Raises: ProtocolError.
    """
    if selector.match_expressions:
        return label_selector.compile_selector(selector)
    wanted = selector.match_labels.items()
    return lambda labels: wanted <= labels.items()


class Children(Generic[P, C]):
    """The objects of one kind that belong to parents of another; wakes `controller` when they change.

    `selector_of` gives the parent's selector, None when it selects nothing. Changes of children within
    `batch_s` wake the parent once.
    """

    def __init__(
        self,
        cluster: Cluster,
        factory: InformerFactory,
        parents: Informer[P],
        child: type[C],
        controller: Controller[Key],
        selector_of: Callable[[P], LabelSelector | None] = _SPEC_SELECTOR,
        *,
        batch_s: float = 0.0,
    ) -> None:
        self.informer = factory.informer(child)
        self.expectations: Expectations[C] = Expectations(self.informer)
        self._cluster = cluster
        self._parents = parents
        self._queue = controller.queue
        self._selector_of = selector_of
        self._batch_s = batch_s
        self._by_selector = f"selector of {child.resource.qualified}"
        self.informer.add_index(BY_CONTROLLER, controller_uid)
        self.informer.add_index(STRAYS, stray_labels)
        parents.add_index(self._by_selector, self._selector_place)
        self.informer.add_handler(self._changed, self._updated, self._gone)

    def of(self, parent: P) -> list[C]:
        """Everything that names `parent` as its controller, whatever its labels."""
        return list(self.informer.by_index(BY_CONTROLLER, parent.metadata.uid))

    async def claim(self, parent: P, is_wanted: Callable[[C], bool] = lambda _: True) -> list[C]:
        """Return the parent's own objects among those that are wanted, after releases and adoptions.

        Raises: ProtocolError (the selector), ApiError.
        """
        selector = self._selector_of(parent)
        owned = [child for child in self.of(parent) if is_wanted(child)]
        if selector is None:
            return owned
        matches = compiled(selector)
        kept: list[C] = []
        foreign: list[C] = []
        for child in owned:
            (kept if matches(child.metadata.labels) else foreign).append(child)
        if is_deleting(parent):
            return kept
        for child in foreign:
            await self._release(parent, child)
        strays = [
            child
            for child in self._strays(parent, selector)
            if matches(child.metadata.labels) and not is_deleting(child) and is_wanted(child)
        ]
        if strays and await self._may_adopt(parent):
            for child in strays:
                adopted = await self._adopt(parent, child)
                if adopted is not None:
                    kept.append(adopted)
        return kept

    # Adoption

    def _strays(self, parent: P, selector: LabelSelector) -> Iterable[C]:
        namespace = parent.metadata.namespace
        label = next(iter(sorted(selector.match_labels.items())), None)
        return self.informer.by_index(STRAYS, _place(namespace, label))

    async def _may_adopt(self, parent: P) -> bool:
        """Return whether the parent is alive now: a cache that is behind must not give it anything."""
        meta = parent.metadata
        fresh = await get_if_there(self._cluster, type(parent), meta.name, meta.namespace)
        return fresh is not None and fresh.metadata.uid == meta.uid and not is_deleting(fresh)

    async def _adopt(self, parent: P, child: C) -> C | None:
        others = [msgspec.to_builtins(owner) for owner in child.metadata.owner_references]
        adopted = await self._set_owners(child, [*others, owner_reference(parent)])
        if adopted is not None:
            log.info("object adopted", extra={"owner": parent.key, "object": child.key})
        return adopted

    async def _release(self, parent: P, child: C) -> None:
        uid = parent.metadata.uid
        others = [msgspec.to_builtins(o) for o in child.metadata.owner_references if o.uid != uid]
        if await self._set_owners(child, others or None) is not None:
            log.info("object released", extra={"owner": parent.key, "object": child.key})

    async def _set_owners(self, child: C, owners: list[Any] | None) -> C | None:
        return await patch_if_there(self._cluster, child, {"metadata": {"ownerReferences": owners}})

    # Waking parents

    def _changed(self, child: C) -> None:
        owner = controller_of(child)
        if owner is None:
            self._wake_selecting(child)
        else:
            self._wake(child, owner)

    def _updated(self, old: C, new: C) -> None:
        before = controller_of(old)
        if before is not None and before != controller_of(new):
            self._wake(old, before)
        self._changed(new)

    def _gone(self, child: C) -> None:
        owner = controller_of(child)
        if owner is not None and self._wake(child, owner):
            self.expectations.saw_deletion(child)

    def _wake(self, child: C, owner: OwnerReference) -> bool:
        resource = self._parents.view.resource
        if owner.kind != resource.kind or owner.api_version.rpartition("/")[0] != resource.group:
            return False
        self._queue.add_after((child.metadata.namespace, owner.name), self._batch_s)
        return True

    def _wake_selecting(self, child: C) -> None:
        meta = child.metadata
        if is_deleting(child):
            return
        for value in (
            _place(meta.namespace),
            *(_place(meta.namespace, item) for item in meta.labels.items()),
        ):
            for parent in self._parents.by_index(self._by_selector, value):
                selector = self._selector_of(parent)
                try:
                    if selector is not None and label_selector.matches(selector, meta.labels):
                        self._queue.add_after(key_of(parent), self._batch_s)
                except ProtocolError:
                    continue  # told about when the parent itself is looked at

    def _selector_place(self, parent: P) -> list[str]:
        """Return one label that every child must have, for finding the parent from a stray child."""
        selector = self._selector_of(parent)
        if selector is None:
            return []
        return [_place(parent.metadata.namespace, next(iter(sorted(selector.match_labels.items())), None))]


def _place(namespace: str, label: tuple[str, str] | None = None) -> str:
    return f"{namespace}/{label[0]}={label[1]}" if label is not None else f"{namespace}/"
