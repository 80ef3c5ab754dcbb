"""The quota tree of the webhooks, kept up to date by a watch and by what they have just allowed."""

import logging
from collections.abc import Iterable, Sequence

from koordinator.api import labels, quantity
from koordinator.api.core import Pod
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.manager.quota.tree import QuotaTree, quota_info

log = logging.getLogger(__name__)

_BY_QUOTA = "quota label"
_BY_NAMESPACE = "namespace"


def _quota_of(pod: Pod) -> Iterable[str]:
    named = pod.metadata.labels.get(labels.QUOTA_NAME)
    return (named,) if named else ()


def _namespace_of(pod: Pod) -> Iterable[str]:
    return (pod.metadata.namespace,)


class QuotaTopology:
    """Tree and pods as the rules want them. `tree` takes every object of the watch without checks.

    An allowed request is noted at once, so that a burst of them is checked against itself; the watch later
    says the same, or corrects it where another webhook refused.
    """

    def __init__(self, factory: InformerFactory) -> None:
        self.tree = QuotaTree()
        self._quotas: Informer[ElasticQuota] = factory.informer(ElasticQuota)
        self._pods: Informer[Pod] = factory.informer(Pod)
        self._pods.add_index(_BY_QUOTA, _quota_of)
        self._pods.add_index(_BY_NAMESPACE, _namespace_of)
        self._quotas.add_handler(self.note, lambda _, new: self.note(new), self._forget)

    def note(self, quota: ElasticQuota) -> None:
        """The quota is, or will be, as given. One whose amounts are none is left as it was."""
        try:
            self.tree.put(quota_info(quota))
        except quantity.QuantityError as error:
            log.warning("quota not counted", extra={"quota": quota.key, "error": str(error)})

    def _forget(self, quota: ElasticQuota) -> None:
        self.tree.remove(quota.metadata.name)

    def find(self, name: str) -> ElasticQuota | None:
        """The object of that name, as the tree knows it: names are unique."""
        info = self.tree.get(name)
        return None if info is None else self._quotas.get(name, info.namespace)

    def find_bound(self, namespace: str) -> ElasticQuota | None:
        """The object that the namespace is bound to."""
        info = self.tree.bound_to(namespace)
        return None if info is None else self.find(info.name)

    def labelled(self, quota: str) -> Sequence[str]:
        """Names of the pods whose label names the quota."""
        return [pod.metadata.name for pod in self._pods.by_index(_BY_QUOTA, quota)]

    def is_any_in(self, namespace: str) -> bool:
        """Whether any pod lives in the namespace."""
        return bool(self._pods.by_index(_BY_NAMESPACE, namespace))
