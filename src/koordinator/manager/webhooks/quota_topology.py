"""The quota tree of the webhooks, kept up to date by a watch and by what they have just allowed."""

import logging
from collections.abc import Iterable, Sequence

from koordinator.api import labels, quantity
from koordinator.api.core import Pod
from koordinator.api.sigs import ElasticQuota
from koordinator.clock import Clock
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.manager.quota.tree import QuotaTree, quota_info

log = logging.getLogger(__name__)

NOTE_S = 30.0
"""How long an allowed request may take to show in the watch: above the API server's own time-outs (10 s)."""

_BY_QUOTA = "quota label"
_BY_NAMESPACE = "namespace"


def _quota_of(pod: Pod) -> Iterable[str]:
    named = pod.metadata.labels.get(labels.QUOTA_NAME)
    return (named,) if named else ()


def _namespace_of(pod: Pod) -> Iterable[str]:
    return (pod.metadata.namespace,)


class QuotaTopology:
    """Tree and pods as the rules want them. `tree` takes every object of the watch without checks.

    An allowed request is noted at once, so that a burst of them is checked against itself. The watch says the
    same soon; where it does not, since the request was refused later on, the note is taken back.
    """

    def __init__(self, factory: InformerFactory, clock: Clock) -> None:
        self._tree = QuotaTree()
        self._clock = clock
        self._noted_s: dict[str, float] = {}  # as many as requests within NOTE_S
        self._quotas: Informer[ElasticQuota] = factory.informer(ElasticQuota)
        self._pods: Informer[Pod] = factory.informer(Pod)
        self._pods.add_index(_BY_QUOTA, _quota_of)
        self._pods.add_index(_BY_NAMESPACE, _namespace_of)
        self._quotas.add_handler(self._on_quota, lambda _, new: self._on_quota(new), self._on_deleted)

    @property
    def tree(self) -> QuotaTree:
        """The tree as far as it is known now."""
        now_s = self._clock.now()
        for name, noted_s in list(self._noted_s.items()):
            if now_s - noted_s > NOTE_S:
                self._take_back(name)
        return self._tree

    def note(self, quota: ElasticQuota) -> None:
        """An allowed request makes the quota this."""
        self._put(quota)
        self._noted_s[quota.metadata.name] = self._clock.now()

    def note_deleted(self, name: str) -> None:
        """An allowed request deletes the quota."""
        self._tree.remove(name)
        self._noted_s[name] = self._clock.now()

    def _take_back(self, name: str) -> None:
        """What the watch says counts again."""
        del self._noted_s[name]
        self._tree.remove(name)
        for quota in self._quotas.objects.values():
            if quota.metadata.name == name:
                self._put(quota)

    def _on_quota(self, quota: ElasticQuota) -> None:
        self._noted_s.pop(quota.metadata.name, None)
        self._put(quota)

    def _on_deleted(self, quota: ElasticQuota) -> None:
        name, namespace = quota.metadata.name, quota.metadata.namespace
        self._noted_s.pop(name, None)
        known = self._tree.get(name)
        if known is not None and known.namespace == namespace:
            self._tree.remove(name)

    def _put(self, quota: ElasticQuota) -> None:
        """One whose amounts are none is left as it was."""
        try:
            self._tree.put(quota_info(quota))
        except quantity.QuantityError as error:
            log.warning("quota not counted", extra={"quota": quota.key, "error": str(error)})

    def find(self, name: str) -> ElasticQuota | None:
        """The object of that name, as the tree knows it: names are unique."""
        info = self._tree.get(name)
        return None if info is None else self._quotas.get(name, info.namespace)

    def find_bound(self, namespace: str) -> ElasticQuota | None:
        """The object that the namespace is bound to."""
        info = self._tree.bound_to(namespace)
        return None if info is None else self.find(info.name)

    def labelled(self, quota: str) -> Sequence[str]:
        """Names of the pods whose label names the quota."""
        return [pod.metadata.name for pod in self._pods.by_index(_BY_QUOTA, quota)]

    def is_any_in(self, namespace: str) -> bool:
        """Whether any pod lives in the namespace."""
        return bool(self._pods.by_index(_BY_NAMESPACE, namespace))
