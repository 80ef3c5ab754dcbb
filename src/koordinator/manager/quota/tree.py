"""The quotas of the cluster as a tree, as admission knows it (behaviour/manager 17).

Keyed by name only: quota names are unique in the cluster. It takes what it is given, since the objects of a
cluster may contradict each other; the checks are in `validation`.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koordinator.api import labels, normalization, quota_labels, resource_list
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import Family, Quantity
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota

log = logging.getLogger(__name__)


class RunningTotal:
    """The sum. A name is in it as long as a list that counts has it, even with zero."""

    __slots__ = ("_families", "_lists", "_nanos")

    def __init__(self) -> None:
        self._nanos: dict[str, int] = {}
        self._lists: dict[str, int] = {}
        self._families: dict[str, Family] = {}

    def add(self, amounts: Mapping[str, Quantity]) -> None:
        """Count a list."""
        for name, amount in amounts.items():
            if name in self._nanos:
                self._nanos[name] += amount.nanos
                self._lists[name] += 1
            else:
                self._nanos[name] = amount.nanos
                self._lists[name] = 1
                self._families[name] = amount.family

    def take(self, amounts: Mapping[str, Quantity]) -> None:
        """Count a list no longer that was added before."""
        for name, amount in amounts.items():
            if self._lists[name] > 1:
                self._nanos[name] -= amount.nanos
                self._lists[name] -= 1
            else:
                del self._nanos[name], self._lists[name], self._families[name]

    def amounts(self) -> Amounts:
        """Return the sum as it is now, written as the first list that had the name wrote it."""
        families = self._families
        return {name: Quantity(nanos, families[name]) for name, nanos in self._nanos.items()}


ROOT = labels.ROOT_QUOTA_NAME
Keys = frozenset[str]
"""Names of resources."""


class QuotaInfo(msgspec.Struct, frozen=True):
    """The facts of an ElasticQuota that the rules need."""

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
    """Return the facts of a quota, resource names in their current spelling.

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
        namespaces=tuple(quota_labels.namespaces(metadata.annotations)),
    )


def _guaranteed(quota: ElasticQuota) -> Amounts:
    try:
        found = quota_labels.GUARANTEED.read(quota.metadata.annotations, quota.key)
    except ProtocolError as error:
        log.warning("quota annotation ignored", extra={"quota": quota.key, "error": str(error)})
        found = None
    return resource_list.of(found or {})


class _Family:
    """The children of one parent, and what the rules ask of all of them at once, kept as they come and go."""

    __slots__ = ("guaranteed", "max_keys", "members", "min", "min_keys", "tree_ids")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.min = RunningTotal()
        self.guaranteed = RunningTotal()
        self.max_keys: Counter[Keys] = Counter()
        self.min_keys: Counter[Keys] = Counter()
        self.tree_ids: Counter[str] = Counter()

    def add(self, info: QuotaInfo) -> None:
        self.members.add(info.name)
        self.min.add(info.min)
        self.guaranteed.add(info.guaranteed)
        for counter, fact in self._facts(info):
            counter[fact] += 1

    def take(self, info: QuotaInfo) -> None:
        self.members.discard(info.name)
        self.min.take(info.min)
        self.guaranteed.take(info.guaranteed)
        for counter, fact in self._facts(info):
            counter[fact] -= 1
            if not counter[fact]:
                del counter[fact]

    def _facts(self, info: QuotaInfo) -> tuple[tuple[Counter[Any], Any], ...]:
        return (
            (self.max_keys, frozenset(info.max)),
            (self.min_keys, frozenset(info.min)),
            (self.tree_ids, info.tree_id),
        )


_NOBODY = _Family()


class QuotaTree:
    """Quotas by name, children by parent (also of parents that nobody knows), quotas by bound namespace.

    The tree keeps what the rules ask about all children of a quota (their sums, the resources that they name), so
    that an answer does not depend on how many there are.
    """

    def __init__(self) -> None:
        self._quotas: dict[str, QuotaInfo] = {}
        self._families: dict[str, _Family] = {}
        self._by_namespace: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._quotas)

    def __iter__(self) -> Iterator[QuotaInfo]:
        return iter(self._quotas.values())

    def get(self, name: str) -> QuotaInfo | None:
        """Return the quota of that name."""
        return self._quotas.get(name)

    def children(self, name: str) -> list[QuotaInfo]:
        """Return the quotas that name it as their parent, by name (all are looked at: not for every request)."""
        return [self._quotas[child] for child in sorted(self._family(name).members)]

    def child_count(self, name: str) -> int:
        """Return how many quotas name it as their parent."""
        return len(self._family(name).members)

    def child_max_keys(self, name: str) -> Collection[Keys]:
        """Return the sets of resources that `max` of its children name, each once."""
        return self._family(name).max_keys.keys()

    def child_min_keys(self, name: str) -> Collection[Keys]:
        """Return the sets of resources that `min` of its children name, each once."""
        return self._family(name).min_keys.keys()

    def child_tree_ids(self, name: str) -> Collection[str]:
        """Return the trees that its children belong to, each once."""
        return self._family(name).tree_ids.keys()

    def children_min(self, name: str) -> Amounts:
        """Return what its children are sure of together."""
        return self._family(name).min.amounts()

    def siblings_min(self, info: QuotaInfo) -> Amounts:
        """Return what the other children of the quota's parent are sure of together."""
        total = self._family(info.parent).min.amounts()
        own = self._as_sibling(info)
        return total if own is None else resource_list.sub(total, own.min)

    def siblings_guaranteed(self, info: QuotaInfo) -> Amounts:
        """Return what the other children of the quota's parent are guaranteed together."""
        total = self._family(info.parent).guaranteed.amounts()
        own = self._as_sibling(info)
        return total if own is None else resource_list.sub(total, own.guaranteed)

    def bound_to(self, namespace: str) -> QuotaInfo | None:
        """Return the quota whose list of namespaces has this one: the first that had it, if several have."""
        for name in self._by_namespace.get(namespace, ()):
            return self._quotas[name]
        return None

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
            family = self._families.get(info.parent)
            if family is None:
                family = self._families[info.parent] = _Family()
            family.add(info)
        for namespace in info.namespaces:
            self._by_namespace.setdefault(namespace, {})[info.name] = None

    def remove(self, name: str) -> None:
        """Forget the quota, if it is known; its children keep naming it."""
        old = self._quotas.pop(name, None)
        if old is None:
            return
        family = self._families.get(old.parent)
        if family is not None:
            family.take(old)
            if not family.members:
                del self._families[old.parent]
        for namespace in old.namespaces:
            bound = self._by_namespace.get(namespace, {})
            bound.pop(name, None)
            if not bound:
                self._by_namespace.pop(namespace, None)

    def _family(self, name: str) -> _Family:
        return self._families.get(name, _NOBODY)

    def _as_sibling(self, info: QuotaInfo) -> QuotaInfo | None:
        """Return the quota as it counts among the children of `info.parent` now."""
        known = self._quotas.get(info.name)
        return known if known is not None and known.parent == info.parent else None

    def debug_view(self) -> dict[str, object]:
        """Return what `/elasticQuota` shows: facts by name, and children by parent."""
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
            "quotaHierarchyInfo": {
                parent: sorted(family.members) for parent, family in sorted(self._families.items())
            },
        }


BY_NAME = "name"


def names_of(quota: ElasticQuota) -> Iterable[str]:
    """Return the values of the index."""
    return (quota.metadata.name,)
