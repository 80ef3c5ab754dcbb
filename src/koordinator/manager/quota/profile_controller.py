"""Controller `quotaprofile`: one root quota per ElasticQuotaProfile, as large as the nodes it selects.

Source: behaviour/manager 19.

Sums follow the nodes as they change, so that a pass over a profile does not look at nodes: a change of one node costs
one look per selector, asking for a sum costs what the sum has, and only a new selector looks at all nodes. A quota
outlives its profile: pods may use it.
"""

import logging
from collections.abc import Callable, Iterable

import msgspec

from koordinator.api import label_selector, quantity, resource_list
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ElasticQuotaProfile
from koordinator.api.label_selector import Predicate
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.manager.parts import ManagerContext
from koordinator.manager.quota import profile
from koordinator.manager.quota.profile import WantedQuota, is_schedulable
from koordinator.manager.quota.tree import RunningTotal

log = logging.getLogger(__name__)


class _Share(msgspec.Struct, frozen=True):
    """The share of a node in the sums of the selectors that choose it."""

    labels: dict[str, str]
    allocatable: Amounts
    is_schedulable: bool


class _Selection:
    """The sums of one selector."""

    __slots__ = ("chosen", "matches", "selector", "total", "unschedulable")

    def __init__(self, selector: LabelSelector) -> None:
        self.selector = selector
        self.matches: Predicate = label_selector.compile_selector(selector)
        self.chosen: dict[str, _Share] = {}
        self.total = RunningTotal()
        self.unschedulable = RunningTotal()

    def take(self, node: str) -> bool:
        share = self.chosen.pop(node, None)
        if share is None:
            return False
        self.total.take(share.allocatable)
        if not share.is_schedulable:
            self.unschedulable.take(share.allocatable)
        return True

    def add(self, node: str, share: _Share) -> bool:
        if not self.matches(share.labels):
            return False
        self.chosen[node] = share
        self.total.add(share.allocatable)
        if not share.is_schedulable:
            self.unschedulable.add(share.allocatable)
        return True


class NodeTotals:
    """Sums of allocatable by key, where each key has a selector. `on_change` hears the keys whose sums change."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._shares: dict[str, _Share] = {}
        self._selections: dict[str, _Selection] = {}

    def select(self, key: str, selector: LabelSelector) -> None:
        """Keep sums for the key from now on. Raises: ProtocolError when the selector is invalid."""
        known = self._selections.get(key)
        if known is not None and known.selector == selector:
            return
        self._selections.pop(key, None)
        selection = _Selection(selector)
        for node, share in self._shares.items():
            selection.add(node, share)
        self._selections[key] = selection

    def drop(self, key: str) -> None:
        """Keep no sums for the key any more."""
        self._selections.pop(key, None)

    def sums(self, key: str) -> tuple[Amounts, Amounts]:
        """Return all that the selected nodes have, and what of it is on nodes that take no pods."""
        selection = self._selections[key]
        return selection.total.amounts(), selection.unschedulable.amounts()

    def put(self, node: Node) -> None:
        """Note that a node appeared or changed. Most changes of nodes are heartbeats, which concern nobody here."""
        name = node.metadata.name
        try:
            allocatable = resource_list.of(node.status.allocatable)
        except quantity.QuantityError as error:
            log.warning("node not counted for quota profiles", extra={"node": name, "error": str(error)})
            self.remove(name)
            return
        share = _Share(node.metadata.labels, allocatable, is_schedulable(node))
        if self._shares.get(name) == share:
            return
        self._shares[name] = share
        for key, selection in self._selections.items():
            was_chosen = selection.take(name)
            if selection.add(name, share) or was_chosen:
                self._on_change(key)

    def remove(self, name: str) -> None:
        """Note that a node is gone."""
        if self._shares.pop(name, None) is None:
            return
        for key, selection in self._selections.items():
            if selection.take(name):
                self._on_change(key)


def is_heartbeat(old: Node, new: Node) -> bool:
    """Return whether nothing has changed between two states of a node that quota profiles look at."""
    return (
        old.status.allocatable == new.status.allocatable
        and old.metadata.labels == new.metadata.labels
        and is_schedulable(old) == is_schedulable(new)
    )


def totals_of(nodes: Iterable[Node], selector: LabelSelector) -> tuple[Amounts, Amounts]:
    """`sums` for nodes that are there now. Raises: ProtocolError when the selector is invalid."""
    totals = NodeTotals(lambda _: None)
    totals.select("", selector)
    for node in nodes:
        totals.put(node)
    return totals.sums("")


DEBOUNCE_S = 1.0
"""Nodes come and go in droves: a quota follows at most this often."""

_BY_QUOTA = "quota"


def _quotas_of(found: ElasticQuotaProfile) -> Iterable[str]:
    return (f"{found.metadata.namespace}/{found.spec.quota_name}",)


class QuotaProfileController(ControllerLoop):
    """Creates and corrects the quotas of profiles, and notes their tree ids."""

    def __init__(self, shared: ManagerContext) -> None:
        self._cluster = shared.cluster
        self._events = shared.events
        self._profiles = shared.factory.informer(ElasticQuotaProfile)
        self._quotas = shared.factory.informer(ElasticQuota)
        self._nodes = shared.factory.informer(Node)
        self._controller: Controller[str] = Controller("quotaprofile", self._reconcile)
        shared.metrics.queues.watch("quotaprofile", self._controller.queue)
        self._totals = NodeTotals(lambda key: self._controller.queue.add_after(key, DEBOUNCE_S))
        self._profiles.add_index(_BY_QUOTA, _quotas_of)
        self._profiles.add_handler(self._on_profile, self._on_profile_changed, self._on_profile_gone)
        self._quotas.add_handler(None, self._on_quota_changed, self._on_quota_gone)
        self._nodes.add_handler(
            self._totals.put, self._on_node_changed, lambda node: self._totals.remove(node.metadata.name)
        )
        self._informers = [self._profiles, self._quotas, self._nodes]

    def _on_profile(self, found: ElasticQuotaProfile) -> None:
        self._controller.queue.add(found.key)

    def _on_profile_changed(self, old: ElasticQuotaProfile, new: ElasticQuotaProfile) -> None:
        before, after = old.metadata, new.metadata
        if (old.spec, before.labels, before.annotations) != (new.spec, after.labels, after.annotations):
            self._on_profile(new)
            self._add_profiles_of(f"{before.namespace}/{old.spec.quota_name}")

    def _on_profile_gone(self, found: ElasticQuotaProfile) -> None:
        self._on_profile(found)
        self._add_profiles_of(f"{found.metadata.namespace}/{found.spec.quota_name}")

    def _on_quota_changed(self, old: ElasticQuota, new: ElasticQuota) -> None:
        before, after = old.metadata, new.metadata
        if (old.spec, before.labels, before.annotations) != (new.spec, after.labels, after.annotations):
            self._add_profiles_of(new.key)

    def _on_quota_gone(self, quota: ElasticQuota) -> None:
        self._add_profiles_of(quota.key)

    def _add_profiles_of(self, quota: str) -> None:
        for found in self._profiles.by_index(_BY_QUOTA, quota):
            self._on_profile(found)

    def _on_node_changed(self, old: Node, new: Node) -> None:
        if not is_heartbeat(old, new):
            self._totals.put(new)

    async def _reconcile(self, key: str) -> float | None:
        namespace, _, name = key.partition("/")
        found = self._profiles.get(name, namespace)
        if found is None:
            self._totals.drop(key)
            return None
        try:
            wanted = self._wanted(found)
        except (ProtocolError, QuantityError) as error:
            self._events.warning(found, profile.REASON_INVALID, f"no quota is kept: {error}")
            return profile.RESYNC_S
        if (owner := self._owner_of(wanted)) is not found:
            message = (
                f"no quota is kept: ElasticQuotaProfile {owner.metadata.name} keeps {wanted.name} already"
            )
            self._events.warning(found, profile.REASON_TAKEN, message)
            return profile.RESYNC_S
        if patch := profile.profile_patch(found):
            await self._cluster.patch(ElasticQuotaProfile, name, patch, namespace)
        return await self._keep(found, wanted)

    def _wanted(self, found: ElasticQuotaProfile) -> WantedQuota:
        """Raises: ProtocolError when the profile names no quota or its selector is invalid; QuantityError."""
        obj = f"ElasticQuotaProfile {found.key}"
        if not found.spec.quota_name:
            raise ProtocolError(obj, "spec.quotaName", "name the ElasticQuota to keep")
        try:
            self._totals.select(found.key, found.spec.node_selector)
        except ProtocolError as error:
            raise ProtocolError(obj, f"spec.nodeSelector {error.field}".strip(), error.reason) from error
        return profile.wanted_quota(found, *self._totals.sums(found.key))

    def _owner_of(self, wanted: WantedQuota) -> ElasticQuotaProfile:
        """Return the profile that keeps a quota, the oldest of several: else they would overwrite each other for
        ever."""
        rivals = self._profiles.by_index(_BY_QUOTA, f"{wanted.namespace}/{wanted.name}")
        return min(rivals, key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name))

    async def _keep(self, found: ElasticQuotaProfile, wanted: WantedQuota) -> float:
        """Write what differs; the seconds until the next look."""
        quota = self._quotas.get(wanted.name, wanted.namespace)
        reason = profile.REASON_CREATE_FAILED if quota is None else profile.REASON_UPDATE_FAILED
        try:
            if quota is None:
                await self._cluster.create(ElasticQuota, profile.new_quota(wanted), wanted.namespace)
            elif patch := profile.quota_patch(wanted, quota):
                await self._cluster.patch(ElasticQuota, wanted.name, patch, wanted.namespace)
        except errors.ApiError as error:
            if not await self._is_behind(wanted, quota, error):
                self._events.warning(found, reason, f"ElasticQuota {wanted.namespace}/{wanted.name}: {error}")
            return profile.RETRY_S
        return profile.RESYNC_S

    async def _is_behind(
        self, wanted: WantedQuota, quota: ElasticQuota | None, error: errors.ApiError
    ) -> bool:
        """Return whether it is our cache that is late, and will tell soon. That a new quota is there already may
        be told by the webhook for quotas, in words of its own."""
        if quota is not None:
            return isinstance(error, errors.NotFound)
        try:
            await self._cluster.get(ElasticQuota, wanted.name, wanted.namespace)
        except errors.ApiError:
            return False
        return True
