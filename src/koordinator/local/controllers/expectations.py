"""Remember what we wrote and the cache does not show yet: a controller must not decide again before it does.

Creates and deletes are remembered by uid, so that a cache that is behind never costs a second create.
Source: the UID-tracking expectations of kube-controller-manager.
"""

from typing import Generic, TypeVar

import msgspec

from koordinator.api.meta import Object
from koordinator.cluster.informer import Informer

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
        """The owner is gone."""
        self._pending.pop(owner_uid, None)

    def saw_deletion(self, obj: C) -> None:
        """The cache lost `obj`; to be called for all objects whose owner is one of ours."""
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
