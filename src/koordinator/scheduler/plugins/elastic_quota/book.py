"""The quotas of a cluster with the pods in them, kept by events: what the plugin asks, and what it never has to search
for. No I/O. Source: behaviour/elastic-quota 9 to 11."""

import heapq
import logging
from collections.abc import Iterable, Iterator

from koordinator.api import labels, pod_resources, quota_labels, resource_list
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.pod_labels import is_terminated
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.clock import Clock, parse_rfc3339
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugins.elastic_quota import forest
from koordinator.scheduler.plugins.elastic_quota.forest import (
    DEFAULT_TREE,
    NO_QUOTA,
    QuotaForest,
    QuotaRef,
    TerminatingPolicy,
    TreeRoot,
)
from koordinator.scheduler.plugins.elastic_quota.hooks import NO_HOOKS, QuotaHooks
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    SYSTEM,
    Quota,
    QuotaPodRequest,
    QuotaSpec,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from koordinator.scheduler.table.columns import discard


class Capacity:
    """Sum of what pods may use of the known nodes, ready or not."""

    def __init__(self) -> None:
        self._nodes: dict[str, Amounts] = {}
        self.total: Amounts = {}

    def update(self, node: str, allocatable: Amounts) -> None:
        """Note that a node has changed, or is new."""
        known = self._nodes.get(node)
        delta = allocatable if known is None else resource_list.sub(allocatable, known)
        self._nodes[node] = allocatable
        self.total = resource_list.add(self.total, delta)

    def remove(self, node: str) -> None:
        """Note that a node is gone; an unknown one is ignored."""
        if node in self._nodes:
            self.total = resource_list.sub(self.total, self._nodes.pop(node))


log = logging.getLogger(__name__)


class QuotaBook:
    """Trees, and where each pod is counted.

    A pod finds its quota by its label, by a quota named like and inside its namespace, by a binding of its namespace,
    or in the default quota; it moves by itself when quotas come, go or change their namespaces.
    """

    def __init__(
        self, args: ElasticQuotaArgs, gates: FeatureGates, clock: Clock, hooks: QuotaHooks = NO_HOOKS
    ) -> None:
        self._clock = clock
        self._hooks = hooks
        self._has_hooks = bool(hooks)
        self._has_trees = gates.is_on("MultiQuotaTree")
        self._has_default = not gates.is_on("DisableDefaultQuota")
        self._ignores_overhead = gates.is_on("ElasticQuotaIgnorePodOverhead")
        self._terminating = _policy_of(gates)
        self.forest = QuotaForest(
            {
                SYSTEM: resource_list.of(args.system_quota_group_max),
                DEFAULT: resource_list.of(args.default_quota_group_max),
            },
            scales_min=args.enable_min_quota_scale,
            keeps_guarantee=gates.is_on("ElasticQuotaGuaranteeUsage"),
        )
        self._capacity = Capacity()
        self.objects: dict[str, ElasticQuota] = {}
        """By name: names are unique, the first object of a name counts."""
        self._namesakes: dict[str, dict[str, ElasticQuota]] = {}
        """Name → later objects of that name by namespace: the first of them counts once the one before is gone."""
        self._bound: dict[str, list[str]] = {}
        """Namespace → quotas that list it, in order of their names."""
        self._pods: dict[str, Pod] = {}
        self._refs: dict[str, QuotaRef] = {}
        self._by_label: dict[str, set[str]] = {}
        self._by_namespace: dict[str, set[str]] = {}
        self._leaving: list[tuple[float, str]] = []
        """Pods that are being deleted, by the end of their grace period: a heap."""
        self._rewritten: set[str] = set()
        self.moves = 0
        """Grows whenever pods may belong to other quotas than before."""
        self.revision = 0
        """Grows whenever a quota came, went or changed."""

    # What is known

    def quota_of(self, pod: Pod) -> QuotaRef:
        """Return where a pod belongs now; `NO_QUOTA` when nowhere."""
        label, namespace = pod.metadata.labels.get(labels.QUOTA_NAME, ""), pod.metadata.namespace
        name = label
        if not name and self._has_default:
            named = self.objects.get(namespace)
            if named is not None and named.metadata.namespace == namespace:
                name = namespace
            else:
                name = next(iter(self._bound.get(namespace, ())), "")
        tree_id = self.forest.tree_ids.get(name) if name else None
        if tree_id is not None:
            return QuotaRef(name, tree_id)
        return QuotaRef(DEFAULT) if self._has_default else NO_QUOTA

    def tree_of(self, ref: QuotaRef) -> GroupQuotaTree | None:
        """Return the tree of a quota; None when there is none (any more)."""
        return self.forest.tree(ref.tree_id) if ref.name else None

    def quota_at(self, ref: QuotaRef) -> Quota | None:
        """Return the quota of that name; None when there is none (any more)."""
        tree = self.tree_of(ref)
        return tree.get(ref.name) if tree is not None else None

    def counted_in(self, key: str) -> QuotaRef:
        """Return where a pod (`namespace/name`) is counted."""
        return self._refs.get(key, NO_QUOTA)

    def pod(self, key: str) -> Pod | None:
        """Return the pod as it was seen last."""
        return self._pods.get(key)

    def quotas(self) -> Iterator[tuple[str, GroupQuotaTree, Quota]]:
        """Yield all quotas of all trees, with the id of their tree and the tree; roots are left out."""
        for tree_id, tree in self.forest.trees():
            for quota in tree.quotas():
                if quota.spec.name != labels.ROOT_QUOTA_NAME:
                    yield tree_id, tree, quota

    def names(self) -> set[str]:
        """Return all quotas of all trees."""
        return {name for _, tree in self.forest.trees() for name in tree.names()}

    def find(self, name: str) -> tuple[GroupQuotaTree, Quota] | None:
        """Return a quota and its tree; the root is that of the default tree."""
        tree = self.forest.tree(self.forest.tree_ids.get(name, DEFAULT_TREE))
        quota = tree.get(name) if tree is not None else None
        return (tree, quota) if tree is not None and quota is not None else None

    def take_touched(self) -> set[str]:
        """Quotas whose figures, or whose objects, changed since the last call."""
        names, self._rewritten = self._rewritten, set()
        for _, tree in self.forest.trees():
            names |= tree.take_touched()
        return names

    def settle(self) -> set[str]:
        """Brings up to date whatever runtimes changed since the last call; whose."""
        return set().union(*(tree.settle() for _, tree in self.forest.trees()))

    # Quotas

    def set_quota(self, quota: ElasticQuota) -> bool:
        """Note that a quota came or changed; return whether it did in anything that counts."""
        name = quota.metadata.name
        known = self.objects.get(name)
        self._rewritten.add(name)
        if quota.metadata.deletion_timestamp is not None:
            return False
        if known is not None and known.metadata.namespace != quota.metadata.namespace:
            log.warning(
                "quota ignored: another quota has its name", extra={"quota": quota.key, "by": known.key}
            )
            self._namesakes.setdefault(name, {})[quota.metadata.namespace] = quota
            return False
        if name == labels.ROOT_QUOTA_NAME or (
            known is not None and _is_same(known, quota) and not self._hooks.see_change(known, quota)
        ):
            self.revision += known is None
            self.objects[name] = quota
            return False
        try:
            spec = QuotaSpec.of(quota)
        except (QuantityError, ProtocolError) as error:
            log.warning("quota keeps its last valid state", extra={"quota": quota.key, "error": str(error)})
            return False
        self.objects[name] = quota
        own = quota.metadata.labels
        tree_id = quota_labels.tree_id(own) if self._has_trees else DEFAULT_TREE
        with self._hooks.notifying(self.spec_of(name), spec, quota):
            self.forest.set_quota(spec, tree_id, _root_of(quota) if tree_id else None)
        affected = self._bind(known, quota)
        self.revision += 1
        if known is None:
            self.moves += 1
            affected |= self._by_label.get(name, set()) | self._by_namespace.get(name, set())
        self._place(affected)
        return True

    def remove_quota(self, quota: ElasticQuota) -> None:
        """Note that a quota is gone; its pods go where they belong without it."""
        name = quota.metadata.name
        known = self.objects.get(name)
        if known is None or known.metadata.namespace != quota.metadata.namespace:
            self._namesakes.get(name, {}).pop(quota.metadata.namespace, None)
            return
        tree_id = self.forest.tree_ids.get(name, DEFAULT_TREE)
        place = self.find(name)
        tree, affected = (place[0], set(place[1].pods)) if place is not None else (None, set[str]())
        is_root = bool(tree_id) and quota_labels.is_tree_root(known.metadata.labels)
        lost = tree.names() if tree is not None and is_root else [name]
        counted = [each for one in lost if tree is not None and (each := tree.get(one)) is not None]
        self._rewritten.update(lost)
        assumed = {key for each in counted for key, its in each.pods.items() if its.is_assigned}
        for key in affected:
            self._uncount(key)
        del self.objects[name]
        self.moves += 1
        if name != labels.ROOT_QUOTA_NAME:  # no namespaces are bound to the root
            affected |= self._bind(known, None)
        with self._hooks.notifying(self.spec_of(name), None, quota):
            self.forest.remove_quota(name)
        if tree_id and self.forest.tree(tree_id) is None:
            affected |= self._replant(tree_id)
        self.revision += 1
        self._place(affected)
        for key in assumed:
            self.reserve(key)
        for namesake in self._namesakes.pop(name, {}).values():
            self.set_quota(namesake)

    def spec_of(self, name: str) -> QuotaSpec | None:
        """Return what the owner of a quota wrote; None when it is not known."""
        place = self.find(name)
        return place[1].spec if place is not None else None

    def _replant(self, tree_id: str) -> set[str]:
        """Note that the root of a tree is gone: what is left of the tree has nothing to share until there is another;
        return the pods that have to be counted again."""
        for quota in self.objects.values():
            if quota_labels.tree_id(quota.metadata.labels) == tree_id:
                self.forest.set_quota(QuotaSpec.of(quota), tree_id)
        lost = {key for key, ref in self._refs.items() if ref.tree_id == tree_id}
        for key in lost:
            del self._refs[key]
        return lost

    def _bind(self, old: ElasticQuota | None, new: ElasticQuota | None) -> set[str]:
        """Follows the namespaces that a quota lists; the pods in those that changed."""
        before = set(quota_labels.namespaces(old.metadata.annotations)) if old is not None else set()
        after = set(quota_labels.namespaces(new.metadata.annotations)) if new is not None else set()
        changed: set[str] = set()
        self.moves += before != after
        for namespace in before ^ after:
            names = self._bound.setdefault(namespace, [])
            if namespace in before and old is not None:
                names.remove(old.metadata.name)
            elif new is not None:
                names.append(new.metadata.name)
                names.sort()
            if not names:
                del self._bound[namespace]
            changed |= self._by_namespace.get(namespace, set())
        return changed

    def _place(self, keys: Iterable[str]) -> None:
        """Counts pods where they belong now."""
        for key in sorted(keys):
            pod = self._pods.get(key)
            if pod is not None and self.quota_of(pod) != self._refs.get(key):
                self._count(pod)

    # Pods

    def set_pod(self, pod: Pod) -> None:
        """Note that a pod came or changed; one that has ended counts no more."""
        key = pod.key
        if is_terminated(pod):
            self.remove_pod(pod)
            return
        known = self._pods.get(key)
        if known is not None and self._is_no_news(known, pod):
            self._pods[key] = pod
            return
        if known is not None:
            self._unindex(known)
        self._pods[key] = pod
        if label := pod.metadata.labels.get(labels.QUOTA_NAME):
            self._by_label.setdefault(label, set()).add(key)
        self._by_namespace.setdefault(pod.metadata.namespace, set()).add(key)
        self._count(pod, known)

    def _is_no_news(self, known: Pod, pod: Pod) -> bool:
        """Return whether nothing that counts differs, as when a pod starts, or is bound where Reserve counted it. Hooks
        may look at all of a spec, and at the phase."""
        if not _counts_alike(known, pod):
            return False
        if self._has_hooks:
            return known.spec == pod.spec and known.status.phase == pod.status.phase
        is_where_it_was = bool(known.spec.node_name) == bool(pod.spec.node_name)
        return is_where_it_was or self._counted(self._refs.get(pod.key, NO_QUOTA), pod.key)

    def remove_pod(self, pod: Pod) -> None:
        """Note that a pod is gone."""
        known = self._pods.get(pod.key)
        if known is not None:
            self._unindex(known)
            self._uncount(pod.key)
            del self._pods[pod.key]

    def reserve(self, key: str) -> None:
        """Note that the pod takes up room on a node from now on. One that is not counted stays so."""
        ref = self._refs.get(key, NO_QUOTA)
        tree = self.forest.tree(ref.tree_id)
        if tree is not None and tree.reserve(ref.name, key) and self._has_hooks:
            self._hooks.pod_updated(ref.name, None, self._pods[key])

    def unreserve(self, key: str) -> None:
        """Note that the pod takes up room no more."""
        ref = self._refs.get(key, NO_QUOTA)
        if self._has_hooks and self._counted(ref, key):
            self._hooks.pod_updated(ref.name, self._pods[key], None)
        tree = self.forest.tree(ref.tree_id)
        if tree is not None:
            tree.unreserve(ref.name, key)

    @property
    def next_expiry_s(self) -> float | None:
        """Return when the next grace period is over; None when none is waited for."""
        return self._leaving[0][0] if self._leaving else None

    def expire(self) -> None:
        """Pods whose grace period is over count no more (gate ElasticQuotaIgnoreTerminatingPod)."""
        now_s = self._clock.now()
        while self._leaving and self._leaving[0][0] < now_s:
            _, key = heapq.heappop(self._leaving)
            pod = self._pods.get(key)
            if pod is not None and self._is_ignored(pod):
                self._count(pod)

    def _unindex(self, pod: Pod) -> None:
        key, label = pod.key, pod.metadata.labels.get(labels.QUOTA_NAME)
        for index, value in ((self._by_label, label), (self._by_namespace, pod.metadata.namespace)):
            if value:
                discard(index, value, key)

    def _count(self, pod: Pod, old: Pod | None = None) -> None:
        """Counts a pod where it belongs now; `old`: how it was before."""
        key, was_in, now_in = pod.key, self._refs.get(pod.key, NO_QUOTA), self.quota_of(pod)
        try:
            ask = self.ask_of(pod)
        except QuantityError as error:
            log.warning("pod not counted", extra={"pod": key, "error": str(error)})
            self._uncount(key)
            return
        text = pod.metadata.deletion_timestamp
        if text is not None and self._terminating is TerminatingPolicy.AFTER_GRACE and not ask.is_ignored:
            grace_s = pod.metadata.deletion_grace_period_seconds or 0
            heapq.heappush(self._leaving, (parse_rfc3339(text) + grace_s, key))
        known = self._counted(was_in, key)
        self.forest.move_pod(ask, was_in, now_in)
        self._refs[key] = now_in
        if known and not ask.is_ignored and was_in != now_in:
            tree = self.tree_of(now_in)
            if tree is not None:
                tree.reserve(now_in.name, key)  # assumed, and the API does not say so yet
        if self._hooks:
            self._notify_hooks(old or pod, pod, was_in if known else None, now_in)

    def _notify_hooks(self, old: Pod, new: Pod, was_in: QuotaRef | None, now_in: QuotaRef) -> None:
        """Tell hooks of a pod that used a quota before (None: it did not), or does now."""
        uses_now = self._counted(now_in, new.key)
        if was_in == now_in and uses_now:
            self._hooks.pod_updated(now_in.name, old, new)
            return
        if was_in is not None:
            self._hooks.pod_updated(was_in.name, old, None)
        if uses_now:
            self._hooks.pod_updated(now_in.name, None, new)

    def _counted(self, ref: QuotaRef, key: str) -> bool:
        """Return whether the pod takes up room where it is counted."""
        quota = self.quota_at(ref)
        known = quota.pods.get(key) if quota is not None else None
        return known is not None and known.is_assigned

    def _uncount(self, key: str) -> None:
        ref = self._refs.pop(key, NO_QUOTA)
        tree = self.tree_of(ref)
        if tree is None:
            return
        if self._hooks and self._counted(ref, key) and (pod := self._pods.get(key)) is not None:
            self._hooks.pod_updated(ref.name, pod, None)
        tree.remove_pod(ref.name, key)

    def request_of(self, pod: Pod) -> Amounts:
        """Return what the pod asks of its quota. Raises: QuantityError."""
        return pod_resources.requests(pod, with_overhead=not self._ignores_overhead)

    def ask_of(self, pod: Pod) -> QuotaPodRequest:
        """Return the pod as its quota sees it. Raises: QuantityError."""
        return QuotaPodRequest(
            key=pod.key,
            request=self.request_of(pod),
            is_on_node=bool(pod.spec.node_name),
            is_preemptible=not quota_labels.is_pod_non_preemptible(pod.metadata.labels),
            is_ignored=self._is_ignored(pod),
        )

    def _is_ignored(self, pod: Pod) -> bool:
        text = pod.metadata.deletion_timestamp
        deleted_s = parse_rfc3339(text) if text is not None else None
        grace_s = pod.metadata.deletion_grace_period_seconds
        return forest.is_ignored(self._terminating, self._clock.now(), deleted_s, grace_s)

    # Nodes

    def set_node(self, node: Node) -> None:
        """Note that a node came or changed; one that is being deleted no longer does."""
        if node.metadata.deletion_timestamp is not None:
            return
        try:
            self._capacity.update(node.metadata.name, resource_list.of(node.status.allocatable))
        except QuantityError as error:
            log.warning("node keeps its last valid amounts", extra={"node": node.key, "error": str(error)})
            return
        self.forest.set_capacity(self._capacity.total)

    def remove_node(self, node: Node) -> None:
        """Note that a node is gone."""
        self._capacity.remove(node.metadata.name)
        self.forest.set_capacity(self._capacity.total)


def _policy_of(gates: FeatureGates) -> TerminatingPolicy:
    if gates.is_on("ElasticQuotaImmediateIgnoreTerminatingPod"):
        return TerminatingPolicy.IMMEDIATE
    if gates.is_on("ElasticQuotaIgnoreTerminatingPod"):
        return TerminatingPolicy.AFTER_GRACE
    return TerminatingPolicy.COUNT


def _root_of(quota: ElasticQuota) -> TreeRoot | None:
    """Return what the root quota of a tree says of it; None for other quotas, and where that is not readable."""
    own = quota.metadata.labels
    if not quota_labels.is_tree_root(own):
        return None
    try:
        total = quota_labels.TOTAL_RESOURCE.read(quota.metadata.annotations, f"ElasticQuota {quota.key}")
        if total is None:
            return None
        return TreeRoot(resource_list.of(total), not quota_labels.ignores_default_tree(own))
    except (ProtocolError, QuantityError) as error:
        log.warning("quota tree keeps its last total", extra={"quota": quota.key, "error": str(error)})
        return None


_READ = (labels.QUOTA_SHARED_WEIGHT, labels.QUOTA_NAMESPACES, labels.QUOTA_TOTAL_RESOURCE)


def _is_same(a: ElasticQuota, b: ElasticQuota) -> bool:
    """Return whether nothing that users write differs (the scheduler itself writes annotations and status)."""
    before, after = a.metadata, b.metadata
    return (
        a.spec == b.spec
        and before.labels == after.labels
        and all(before.annotations.get(key) == after.annotations.get(key) for key in _READ)
    )


def _counts_alike(a: Pod, b: Pod) -> bool:
    """Return whether nothing that quotas look at differs between two states of a pod, its node left aside."""
    try:
        is_same = pod_resources.have_same_amounts(a, b)
    except QuantityError:
        return False  # whoever counts it says so
    return (
        is_same
        and a.metadata.uid == b.metadata.uid
        and (a.metadata.labels is b.metadata.labels or a.metadata.labels == b.metadata.labels)
        and a.metadata.deletion_timestamp == b.metadata.deletion_timestamp
    )
