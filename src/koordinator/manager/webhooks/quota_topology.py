"""The quota tree of the webhooks, kept up to date by a watch and by what they have just learned themselves."""

import enum
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api import labels, quantity
from koordinator.api.core import Pod
from koordinator.api.sigs import ElasticQuota
from koordinator.clock import Clock
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.manager.quota.tree import BY_NAME, QuotaInfo, QuotaTree, names_of, quota_info

log = logging.getLogger(__name__)

NOTE_S = 40.0
"""Time that an allowed request may take to show in the watch: above what other webhooks may take (30 s)."""
_BY_QUOTA = "quota label"
_BY_NAMESPACE = "namespace"


def _quota_of(pod: Pod) -> Iterable[str]:
    named = pod.metadata.labels.get(labels.QUOTA_NAME)
    return (named,) if named else ()


def _namespace_of(pod: Pod) -> Iterable[str]:
    return (pod.metadata.namespace,)


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """The tree knows something about a quota that the watch has not told yet."""

    key: str  # namespace/name
    at_s: float
    after: int | None
    """Only later versions of the object can confirm it; None when any can."""
    is_new: bool = False
    is_own: bool = False  # this instance allowed it

    def is_later_than(self, version: int | None) -> bool:
        """Return whether news of that version are from before what is noted."""
        return version is not None and self.after is not None and version <= self.after


class Learned(enum.Enum):
    """The news about an object that a request showed."""

    KNOWN = enum.auto()
    UNREADABLE = enum.auto()  # its amounts are none
    NAME_TAKEN = enum.auto()  # a quota of that name in another namespace is the one that counts


class QuotaTopology:
    """Tree and pods as the rules want them. The tree takes every object of the watch without checks.

    An allowed request is noted at once, so that a burst of them is checked against itself; so is the state of a
    quota that a request about it shows, which may be newer than the watch. The watch says the same soon; where
    it does not, since the request was refused later on, the note is taken back.
    """

    def __init__(self, factory: InformerFactory, clock: Clock) -> None:
        self._tree = QuotaTree()
        self._clock = clock
        self._newest = 0
        """The highest version that any quota has had: one that is created now gets a higher one."""
        self._notes: dict[str, _Note] = {}  # oldest first; as many as quotas asked about within NOTE_S
        self._quotas: Informer[ElasticQuota] = factory.informer(ElasticQuota)
        self._pods: Informer[Pod] = factory.informer(Pod)
        self._quotas.add_index(BY_NAME, names_of)
        self._pods.add_index(_BY_QUOTA, _quota_of)
        self._pods.add_index(_BY_NAMESPACE, _namespace_of)
        self._on_confirmed: list[Callable[[ElasticQuota, QuotaInfo], None]] = []
        self._quotas.add_handler(self._on_quota, lambda _, new: self._on_quota(new), self._on_deleted)

    @property
    def tree(self) -> QuotaTree:
        """Return the tree as far as it is known now."""
        oldest_s = self._clock.now() - NOTE_S
        while self._notes:
            name, note = next(iter(self._notes.items()))
            if note.at_s > oldest_s:
                break
            self.forget(name)
        return self._tree

    def on_confirmed(self, listener: Callable[[ElasticQuota, QuotaInfo], None]) -> None:
        """Call `listener` when the watch shows a quota as this instance has allowed it."""
        self._on_confirmed.append(listener)

    # What requests tell

    def note(self, quota: ElasticQuota, old: ElasticQuota | None) -> None:
        """Note that an allowed request makes the quota this; `old` is what it changes, None when it creates it."""
        self._put(quota)
        after = self._newest if old is None else self._observed(old)
        self._add_note(quota, after=after, is_new=old is None, is_own=True)

    def note_deleted(self, quota: ElasticQuota) -> None:
        """Note that an allowed request deletes the quota."""
        self._tree.remove(quota.metadata.name)
        self._add_note(quota, after=self._observed(quota))

    def learn(self, quota: ElasticQuota) -> Learned:
        """Note that the API server has the quota like this: what is known is replaced unless it is newer."""
        name, version = quota.metadata.name, self._observed(quota)
        known, note = self._tree.get(name), self._notes.get(name)
        if known is not None and known.key != quota.key:
            return Learned.NAME_TAKEN
        if known is not None:
            cached = self._quotas.get(name, quota.metadata.namespace)
            seen = _version(cached) if cached is not None else None
            noted = note.after if note is not None else None
            if version is None or max(seen or 0, noted or 0) >= version:
                return Learned.KNOWN
        if self._put(quota) is None:
            return Learned.UNREADABLE
        after = None if version is None else version - 1
        self._add_note(quota, after=after, is_own=note is not None and note.is_own)
        return Learned.KNOWN

    def is_phantom(self, quota: ElasticQuota) -> bool:
        """Return whether a quota that is being created is known only from an earlier request to create it.

        That one has failed after it was allowed, or the API server will refuse this one itself.
        """
        note = self._notes.get(quota.metadata.name)
        return note is not None and note.is_new and note.key == quota.key

    def _add_note(
        self, quota: ElasticQuota, *, after: int | None, is_new: bool = False, is_own: bool = False
    ) -> None:
        name = quota.metadata.name
        self._notes.pop(name, None)  # the newest stands last
        self._notes[name] = _Note(
            key=quota.key, at_s=self._clock.now(), after=after, is_new=is_new, is_own=is_own
        )

    def forget(self, name: str) -> None:
        """Take back what is noted about the quota: what the watch says counts again."""
        self._notes.pop(name, None)
        self._tree.remove(name)
        for quota in self._quotas.by_index(BY_NAME, name):
            self._put(quota)

    # What the watch tells

    def _on_quota(self, quota: ElasticQuota) -> None:
        name, version = quota.metadata.name, self._observed(quota)
        note = self._notes.get(name)
        if note is not None and note.key == quota.key:
            if note.is_later_than(version):
                return
            del self._notes[name]
        elif note is not None and note.is_new:
            self.forget(name)  # one that exists comes before one that may never
        info = self._put(quota)
        if note is not None and note.is_own and info is not None:
            for listener in self._on_confirmed:
                listener(quota, info)

    def _on_deleted(self, quota: ElasticQuota) -> None:
        name = quota.metadata.name
        version = self._observed(quota)
        note, known = self._notes.get(name), self._tree.get(name)
        is_earlier = note is not None and (note.is_new or note.is_later_than(version))
        if is_earlier or (known is not None and known.key != quota.key):
            return  # another object of that name is known by now
        self.forget(name)

    def _observed(self, quota: ElasticQuota) -> int | None:
        """Return the version of the object, from now on known to have been."""
        version = _version(quota)
        self._newest = max(self._newest, version or 0)
        return version

    def _put(self, quota: ElasticQuota) -> QuotaInfo | None:
        """Return what the tree knows now; None for a quota whose amounts are none, or whose name is taken."""
        try:
            info = quota_info(quota)
        except quantity.QuantityError as error:
            log.warning("quota not counted", extra={"quota": quota.key, "error": str(error)})
            return None
        known = self._tree.get(info.name)
        if known is not None and known.key != info.key:
            log.info("quota not counted", extra={"quota": quota.key, "error": f"{known.key} has its name"})
            return None
        self._tree.put(info)
        return info

    # Reading

    def labelled(self, quota: str) -> Sequence[str]:
        """Return names of the pods whose label names the quota."""
        return [pod.metadata.name for pod in self._pods.by_index(_BY_QUOTA, quota)]

    def is_any_in(self, namespace: str) -> bool:
        """Return whether any pod lives in the namespace."""
        return bool(self._pods.by_index(_BY_NAMESPACE, namespace))


def _version(quota: ElasticQuota) -> int | None:
    """Return the version as a number, None where the API server's are none."""
    text = quota.metadata.resource_version
    return int(text) if text.isdecimal() else None
