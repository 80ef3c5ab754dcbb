"""Strategies that go by where pods are. Pure. Source: behaviour/descheduler 12.

RemovePodsViolatingNodeAffinity evicts pods that would be placed elsewhere now, RemovePodsViolatingNodeTaints those that
no longer bear their node, RemovePodsViolatingInterPodAntiAffinity those next to pods that they want to be away from
(only a pod's own required terms count), RemoveDuplicates those of one owner that crowd a node; `balance` is the core of
RemovePodsViolatingTopologySpreadConstraint: how many pods each topology domain gives up.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from koordinator.api import node_affinity, tolerations
from koordinator.api.affinity import LabelSelector, PodAffinityTerm, Taint, term_holds
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.descheduler import facts, node_fit, pod_filter
from koordinator.descheduler.plugin import EvictAction, Evictions
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import CommonArgs
from koordinator.descheduler.pod_filter import PodPredicate

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Fits = Callable[[Pod, Node], bool]


class NodeAffinityArgs(common.CommonArgs, frozen=True, kw_only=True):
    """The options that say which kinds of affinity count."""

    node_affinity_type: list[str] = []


def check_node_affinity(args: NodeAffinityArgs) -> None:
    """Raises: ProtocolError."""
    name = "RemovePodsViolatingNodeAffinity"
    if not args.node_affinity_type:
        raise ProtocolError(name, "nodeAffinityType", "is empty")
    if unknown := [kind for kind in args.node_affinity_type if kind not in (REQUIRED, PREFERRED)]:
        raise ProtocolError(name, "nodeAffinityType", f"{unknown[0]!r} is unknown")


def misplaced_by_affinity(
    args: NodeAffinityArgs,
    node: Node,
    pods: Sequence[Pod],
    elsewhere: "Preferences",
    fits: Fits,
    may_evict: PodPredicate,
) -> list[Pod]:
    """Return the active pods of `node` to evict; `fits`: the node fit of the stock strategies. `args` are checked."""
    nodes = elsewhere.nodes
    selected = common.selection(args, may_evict)

    def violates(pod: Pod) -> bool:
        required = REQUIRED in args.node_affinity_type and (
            node_affinity.required(pod.spec) is not None and not node_affinity.selects(pod.spec, node)
        )
        preferred = PREFERRED in args.node_affinity_type and elsewhere.best(pod) > preference(pod, node)
        return required or preferred

    return [
        pod
        for pod in pods
        if facts.is_active(pod)
        and violates(pod)
        and any(fits(pod, other) for other in nodes)
        and selected(pod)
    ]


def preference(pod: Pod, node: Node) -> int:
    """Sum of the weights of the preferred terms that the node matches."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else []
    return sum(
        term.weight for term in terms if term_holds(term.preference, node.metadata.labels, node.metadata.name)
    )


class Preferences:
    """The preference of pods for the best of some nodes; pods of one workload share the answer."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._best: dict[bytes, int] = {}

    def best(self, pod: Pod) -> int:
        """Return the highest `preference` over the nodes."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else []
        if not terms:
            return 0
        key = msgspec.json.encode(terms)
        if key not in self._best:
            self._best[key] = max((preference(pod, node) for node in self.nodes), default=0)
        return self._best[key]


class NodeTaintsArgs(common.CommonArgs, frozen=True, kw_only=True):
    """Taints are told as `key` or `key=value`; only one of the two lists may be set."""

    include_prefer_no_schedule: bool = False
    excluded_taints: list[str] = []
    included_taints: list[str] = []


def check_node_taints(args: NodeTaintsArgs) -> None:
    """Raises: ProtocolError."""
    if args.excluded_taints and args.included_taints:
        name = "RemovePodsViolatingNodeTaints"
        raise ProtocolError(name, "includedTaints", "cannot be set together with excludedTaints")


def misplaced_by_taints(
    args: NodeTaintsArgs, node: Node, pods: Iterable[Pod], may_evict: PodPredicate
) -> list[Pod]:
    """Return the pods of the node to evict, also finished ones. `args` are checked."""
    selected = common.selection(args, may_evict)
    taints = [taint for taint in node.spec.taints if _counts(args, taint)]
    return [pod for pod in pods if not node_fit.tolerates_all(pod, taints) and selected(pod)]


def _counts(args: NodeTaintsArgs, taint: Taint) -> bool:
    effects = [tolerations.NO_SCHEDULE]
    if args.include_prefer_no_schedule:
        effects.append(tolerations.PREFER_NO_SCHEDULE)
    names = {taint.key, f"{taint.key}={taint.value}"} if taint.value else {taint.key}
    is_excluded = not names.isdisjoint(args.excluded_taints)
    is_included = not args.included_taints or not names.isdisjoint(args.included_taints)
    return taint.effect in effects and not is_excluded and is_included


def anti_affinity_evictions(
    args: CommonArgs, nodes: Sequence[Node], pods_of: Mapping[str, Sequence[Pod]], may_evict: PodPredicate
) -> Evictions[list[EvictAction]]:
    """Evict violating pods; one that is gone no longer counts, so one of a pair stays. Raises: ProtocolError for a
    selector that cannot be read."""
    selected = common.selection(args, lambda _: True)
    by_name = {node.metadata.name: node for node in nodes}
    present = [
        pod for name in by_name for pod in pods_of.get(name, ()) if facts.is_active(pod) and selected(pod)
    ]
    neighbours = _Neighbours(present, by_name)
    evicted: list[EvictAction] = []
    for name in by_name:
        own = [pod for pod in pods_of.get(name, ()) if node_fit.required_anti_affinity(pod)]
        for pod in sorted(filter(neighbours.has, own), key=common.priority_key):
            wanted = EvictAction(pod)
            if neighbours.disturb(pod) and may_evict(pod) and (yield wanted):
                neighbours.remove(pod)
                evicted.append(wanted)
    return evicted


_Domain = dict[str, str]
"""Names of pods by their keys."""


class _Neighbours:
    """Pods by what terms of anti-affinity are about, and by domain, so that each question is O(1)."""

    def __init__(self, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> None:
        self._pods = {pod.key: pod for pod in pods}
        self._by_label = common.PodsByLabel(self._pods.values())
        self._nodes = nodes
        self._known: dict[bytes, defaultdict[str, _Domain]] = {}

    def has(self, pod: Pod) -> bool:
        return pod.key in self._pods

    def disturb(self, pod: Pod) -> bool:
        """Return whether another pod in the same domain is one that the pod wants to be away from."""
        here = self._nodes[pod.spec.node_name].metadata.labels
        return any(
            any(
                name != pod.metadata.name
                for name in self._domains(pod, term)[here[term.topology_key]].values()
            )
            for term in node_fit.required_anti_affinity(pod)
            if term.topology_key in here
        )

    def remove(self, pod: Pod) -> None:
        """Forget a pod that is evicted."""
        del self._pods[pod.key]
        labels = self._nodes[pod.spec.node_name].metadata.labels
        for domains in self._known.values():
            for domain in filter(domains.__contains__, labels.values()):
                domains[domain].pop(pod.key, None)

    def _domains(self, pod: Pod, term: PodAffinityTerm) -> defaultdict[str, _Domain]:
        """Return the pods that a term of `pod` is about, by the value of its topology key."""
        namespaces = term.namespaces or [pod.metadata.namespace]
        key = msgspec.json.encode((term.topology_key, sorted(namespaces), term.label_selector))
        if (found := self._known.get(key)) is None:
            found = self._known[key] = defaultdict(dict)
            matches = node_fit.term_matcher(pod, term)
            selector = term.label_selector or LabelSelector()
            for other in chain.from_iterable(self._by_label.candidates(one, selector) for one in namespaces):
                if other.key not in self._pods:
                    continue
                domain = self._nodes[other.spec.node_name].metadata.labels.get(term.topology_key)
                if domain is not None and matches(other):
                    found[domain][other.key] = other.metadata.name
        return found


OwnerKey = tuple[str, ...]


class RemoveDuplicatesArgs(common.CommonArgs, frozen=True, kw_only=True):
    """Pods with an owner of an excluded kind are left alone."""

    exclude_owner_kinds: list[str] = []


def surplus(count: int, pods: int, feasible_nodes: int) -> int:
    """Return how many of the `count` pods of one owner on a node to evict, when the owner has `pods` in all."""
    if feasible_nodes < 2:
        return 0
    limit = -(-pods // feasible_nodes)
    return max(count - limit, 0)


def duplicates(
    args: RemoveDuplicatesArgs,
    nodes: Sequence[Node],
    pods_of: Mapping[str, Sequence[Pod]],
    may_evict: PodPredicate,
) -> list[Pod]:
    """Return the pods to evict, by node. Raises: ProtocolError for namespaces both included and excluded."""
    pod_filter.check_namespaces(args.namespaces, "namespaces")
    selected = common.selection(args, may_evict)
    owners = _Owners(args.exclude_owner_kinds)
    present: list[defaultdict[OwnerKey, list[Pod]]] = []
    crowded: set[OwnerKey] = set()
    for node in nodes:
        own: defaultdict[OwnerKey, list[Pod]] = defaultdict(list)
        for pod in pods_of.get(node.metadata.name, ()):
            if (key := owners.key(pod)) and facts.is_active(pod):
                own[key].append(pod)
        crowded.update(key for key, pods in own.items() if len(pods) > 1)
        present.append(own)
    # The filters are dear: they are asked about owners only that have two pods on some node.
    groups = [
        {key: list(filter(selected, pods)) for key, pods in own.items() if key in crowded} for own in present
    ]
    total: Counter[OwnerKey] = Counter()
    movable: defaultdict[OwnerKey, list[Pod]] = defaultdict(list)
    for group in groups:
        for key, pods in group.items():
            total[key] += len(pods)
            movable[key] += pods[1:]  # the first of a node stays, so where it could go counts for nothing
    places = _Places(nodes)
    feasible = {key: places.count(pods) for key, pods in movable.items()}
    found: list[Pod] = []
    for group in groups:
        for key, pods in group.items():
            count = surplus(len(pods), total[key], feasible[key])
            found += pods[len(pods) - count :]
    return found


class _Places:
    """Nodes that pods may be on, worked out once for each shape of pods."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._known: dict[bytes, frozenset[str]] = {}

    def count(self, pods: Iterable[Pod]) -> int:
        """Return how many nodes some shape of the pods may be on; a shape with only one adds none."""
        found: set[str] = set()
        alike = {
            (id(pod.spec.tolerations), id(pod.spec.node_selector), id(pod.spec.affinity)): pod for pod in pods
        }
        for own in {self._of(pod) for pod in alike.values()}:
            if len(own) > 1:
                found |= own
        return len(found)

    def _of(self, pod: Pod) -> frozenset[str]:
        shape = (pod.spec.tolerations, pod.spec.node_selector, node_affinity.required(pod.spec))
        key = msgspec.json.encode(shape)
        if key not in self._known:
            self._known[key] = frozenset(
                node.metadata.name
                for node in self._nodes
                if node_fit.bears_taints(pod, node) and node_affinity.selects(pod.spec, node)
            )
        return self._known[key]


class _Owners:
    """The keys of pods, worked out once for those that share their owners and containers, as cached ones do."""

    def __init__(self, excluded: Iterable[str]) -> None:
        self._excluded = frozenset(excluded)
        self._known: dict[tuple[int, int, str], tuple[Pod, OwnerKey]] = {}

    def key(self, pod: Pod) -> OwnerKey:
        """Return sorted namespace/kind/name/image entries, equal for pods that stand in for each other; none for one
        without an owner, or with one that is excluded."""
        shape = (id(pod.metadata.owner_references), id(pod.spec.containers), pod.metadata.namespace)
        if (found := self._known.get(shape)) is None:
            found = self._known[shape] = pod, self._of(pod)  # the pod, so that what has these ids stays
        return found[1]

    def _of(self, pod: Pod) -> OwnerKey:
        owners, namespace = pod.metadata.owner_references, pod.metadata.namespace
        if not self._excluded.isdisjoint(owner.kind for owner in owners):
            return ()
        images = [container.image for container in pod.spec.containers]
        return tuple(
            sorted(f"{namespace}/{owner.kind}/{owner.name}/{image}" for owner in owners for image in images)
        )


class Balanced(msgspec.Struct, frozen=True):
    """Per domain, in the order given: how many pods it holds afterwards, and how many it gave up."""

    sizes: list[int]
    moved: list[int]


def balance(sizes: Sequence[int], max_skew: int) -> Balanced:
    """Move pods from large to small domains until sizes differ by at most `max_skew`.

    `moved` counts what each domain gave up. A domain above the average never gets any, so what was moved
    once is not moved again.
    """
    after, moved = list(sizes), [0] * len(sizes)
    if not sizes or max(sizes) - min(sizes) <= max_skew:
        return Balanced(after, moved)
    total, count = sum(sizes), len(sizes)
    order = sorted(range(count), key=after.__getitem__)
    small, large = 0, count - 1
    while small < large:
        if after[order[large]] * count <= total:
            large -= 1
        low, high = order[small], order[large]
        skew = after[high] - after[low]
        above, below = after[high] * count - total, total - after[low] * count
        move = min(-(-above // count), -(-below // count), -(-(skew - max_skew) // 2))
        if skew <= max_skew or move <= 0:
            small += 1
            continue
        after[high] -= move
        after[low] += move
        moved[high] += move
    return Balanced(after, moved)
