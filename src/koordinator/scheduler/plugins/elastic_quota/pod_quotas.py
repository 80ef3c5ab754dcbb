"""Remember where pods belong: the quota of a label or a namespace is looked for once, and again when a quota came,
went or changed.
"""

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.scheduler.plugin.status import SKIP, Status, error
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import OUTSIDE_THE_SHARES, ROOT, Nanos, Quota
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree

REMEMBERED_MAX = 20_000
"""Labels and namespaces; pods may come with any number of them."""


def limit_of(quota: Quota, *, has_runtime: bool) -> Nanos:
    """Return what a quota may use now, as far as it is up to date. `has_runtime`: whether runtimes limit quotas."""
    return quota.runtime if has_runtime and quota.spec.name not in OUTSIDE_THE_SHARES else quota.max


class PodQuota(msgspec.Struct, frozen=True, eq=False):
    """A quota that pods belong to, with the ancestors that have a say."""

    ref: QuotaRef
    tree: GroupQuotaTree
    quota: Quota
    has_runtime: bool
    """Whether its runtime limits it, and not its max."""
    ancestors: tuple[Quota | str, ...] = ()
    """From the parent up, without the root; a name for one that is not known."""

    @property
    def limit(self) -> Nanos:
        """Return what the quota may use, as far as it is up to date."""
        return self.quota.runtime if self.has_runtime else self.quota.max

    @property
    def known(self) -> list[Quota]:
        """The quota and those of its ancestors that are known."""
        return [self.quota, *(each for each in self.ancestors if isinstance(each, Quota))]

    @property
    def path(self) -> tuple[str, ...]:
        """From the top down to the quota."""
        above = (each if isinstance(each, str) else each.spec.name for each in reversed(self.ancestors))
        return (*above, self.quota.spec.name)


def place_in(
    tree: GroupQuotaTree, ref: QuotaRef, *, has_runtime: bool, asks_ancestors: bool
) -> PodQuota | Status:
    """Return the quota of that name with the ancestors that have a say; an error where the tree does not know it."""
    quota = tree.get(ref.name)
    if quota is None:
        return error("Could not find the specified ElasticQuota")
    above = tree.path(ref.name)[1:] if asks_ancestors else ()
    return PodQuota(
        ref,
        tree,
        quota,
        has_runtime=has_runtime and ref.name not in OUTSIDE_THE_SHARES,
        ancestors=tuple(tree.get(name) or name for name in above if name != ROOT),
    )


class PodQuotaCache:
    """Place by pod. `has_runtime`: runtimes limit quotas; `asks_ancestors`: ancestors have a say."""

    def __init__(self, book: QuotaBook, *, has_runtime: bool, asks_ancestors: bool) -> None:
        self._book = book
        self._has_runtime = has_runtime
        self._asks_ancestors = asks_ancestors
        self._revision = book.revision
        self._by_label: dict[str, PodQuota | Status] = {}
        self._by_namespace: dict[str, PodQuota | Status] = {}
        """Of pods without a label."""

    def __len__(self) -> int:
        return len(self._by_label) + len(self._by_namespace)

    def of(self, pod: Pod) -> PodQuota | Status:
        """Return where a pod belongs; Skip for one without a quota, an error where its quota is out of reach."""
        if self._revision != self._book.revision:
            self._forget()
        meta = pod.metadata
        label = meta.labels.get(labels.QUOTA_NAME)
        known = self._by_label.get(label) if label else self._by_namespace.get(meta.namespace)
        if known is not None:
            return known
        ref = self._book.quota_of(pod)
        place = self.at(ref) if ref.name else SKIP
        if len(self) >= REMEMBERED_MAX:
            self._forget()
        if label:
            self._by_label[label] = place
        else:
            self._by_namespace[meta.namespace] = place
        return place

    def at(self, ref: QuotaRef) -> PodQuota | Status:
        """Return the quota of that name."""
        tree = self._book.tree_of(ref)
        if tree is None:
            return error(
                f"Could not find the specified ElasticQuotaManager for quota: {ref.name}, tree: {ref.tree_id}"
            )
        return place_in(tree, ref, has_runtime=self._has_runtime, asks_ancestors=self._asks_ancestors)

    def _forget(self) -> None:
        self._revision = self._book.revision
        self._by_label.clear()
        self._by_namespace.clear()
