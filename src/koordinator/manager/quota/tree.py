"""The quotas of the cluster as a tree, as admission knows it (spec 02 §17).

Keyed by name only: quota names are unique in the cluster. It takes what it is given, since the objects of a
cluster may contradict each other; the checks are in `validation`.
"""

import logging
from collections.abc import Iterator

import msgspec

from koordinator.api import labels, normalization, quota_labels, resource_list
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.errors import ProtocolError
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota

log = logging.getLogger(__name__)

ROOT = labels.ROOT_QUOTA_NAME


class QuotaInfo(msgspec.Struct, frozen=True):
    """What the rules need of an ElasticQuota."""

    name: str
    namespace: str
    parent: str  # empty for the root quota only
    is_parent: bool
    tree_id: str
    is_tree_root: bool
    allows_forced_update: bool
    allows_lending: bool
    min: Amounts
    max: Amounts
    guaranteed: Amounts
    namespaces: tuple[str, ...]

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def quota_info(quota: ElasticQuota) -> QuotaInfo:
    """The facts of a quota, resource names in their current spelling.

    A malformed list of namespaces, or `guaranteed` (which the scheduler writes), counts as absent.

    Raises: quantity.QuantityError.
    """
    quota = normalization.normalize_quota(quota)
    metadata = quota.metadata
    own = metadata.labels
    return QuotaInfo(
        name=metadata.name,
        namespace=metadata.namespace,
        parent=quota_labels.parent_name(metadata.name, own),
        is_parent=quota_labels.is_parent(own),
        tree_id=quota_labels.tree_id(own),
        is_tree_root=quota_labels.is_tree_root(own),
        allows_forced_update=quota_labels.allows_forced_update(own),
        allows_lending=quota_labels.allows_lending(own),
        min=resource_list.of(quota.spec.min),
        max=resource_list.of(quota.spec.max),
        guaranteed=_guaranteed(quota),
        namespaces=tuple(quota_annotations.namespaces(metadata.annotations)),
    )


def _guaranteed(quota: ElasticQuota) -> Amounts:
    try:
        found = quota_annotations.GUARANTEED.read(quota.metadata.annotations, quota.key)
    except ProtocolError as error:
        log.warning("quota annotation ignored", extra={"quota": quota.key, "error": str(error)})
        found = None
    return resource_list.of(found or {})


class QuotaTree:
    """Quotas by name, children by parent (also of parents that nobody knows), quotas by bound namespace."""

    def __init__(self) -> None:
        self._quotas: dict[str, QuotaInfo] = {}
        self._children: dict[str, set[str]] = {}
        self._by_namespace: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._quotas)

    def __iter__(self) -> Iterator[QuotaInfo]:
        return iter(self._quotas.values())

    def get(self, name: str) -> QuotaInfo | None:
        """The quota of that name."""
        return self._quotas.get(name)

    def children(self, name: str) -> list[QuotaInfo]:
        """The quotas that name it as their parent, by name."""
        return [self._quotas[child] for child in sorted(self._children.get(name, ()))]

    def siblings(self, info: QuotaInfo) -> list[QuotaInfo]:
        """The other children of the quota's parent."""
        return [child for child in self.children(info.parent) if child.name != info.name]

    def bound_to(self, namespace: str) -> QuotaInfo | None:
        """The quota whose list of namespaces has this one."""
        return self._quotas.get(self._by_namespace.get(namespace, ""))

    def ancestors(self, info: QuotaInfo) -> Iterator[QuotaInfo]:
        """Known quotas from the parent up to below the root quota; ends where a circle would close."""
        seen = {info.name}
        current = self._quotas.get(info.parent)
        while current is not None and current.name not in seen and current.name != ROOT:
            yield current
            seen.add(current.name)
            current = self._quotas.get(current.parent)

    def put(self, info: QuotaInfo) -> None:
        """Add the quota, or replace the one of that name."""
        self.remove(info.name)
        self._quotas[info.name] = info
        if info.parent:
            self._children.setdefault(info.parent, set()).add(info.name)
        for namespace in info.namespaces:
            self._by_namespace[namespace] = info.name

    def remove(self, name: str) -> None:
        """Forget the quota, if it is known; its children keep naming it."""
        old = self._quotas.pop(name, None)
        if old is None:
            return
        family = self._children.get(old.parent, set())
        family.discard(name)
        if not family:
            self._children.pop(old.parent, None)
        for namespace in old.namespaces:
            if self._by_namespace.get(namespace) == name:
                del self._by_namespace[namespace]

    def debug_view(self) -> dict[str, object]:
        """What `/elasticQuota` shows: facts by name, and children by parent."""
        return {
            "quotaInfoMap": {
                info.name: {
                    "name": info.name,
                    "parentName": info.parent,
                    "isParent": info.is_parent,
                    "allowLentResource": info.allows_lending,
                    "max": resource_list.to_wire(info.max),
                    "min": resource_list.to_wire(info.min),
                }
                for info in sorted(self._quotas.values(), key=lambda info: info.name)
            },
            "quotaHierarchyInfo": {parent: sorted(names) for parent, names in sorted(self._children.items())},
        }
