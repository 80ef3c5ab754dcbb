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
from koordinator.api.meta import ViewPart
from koordinator.descheduler import facts, node_fit, pod_filter
from koordinator.descheduler.plugin import EvictAction, Evictions
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import CommonArgs
from koordinator.descheduler.pod_filter import Namespaces, PodPredicate

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
    kind: str, node: Node, pods: Sequence[Pod], elsewhere: "Preferences", fits: Fits, selected: PodPredicate
) -> list[Pod]:
    """Return the active pods of `node` to evict because of their affinity of this kind; `fits`: the node fit of the
    stock strategies."""

    def violates(pod: Pod) -> bool:
        if kind == PREFERRED:
            return elsewhere.best(pod) > preference(pod, node)
        return node_affinity.required(pod.spec) is not None and not node_affinity.selects(pod.spec, node)

    return [
        pod
        for pod in pods
        if facts.is_active(pod)
        and violates(pod)
        and any(fits(pod, other) for other in elsewhere.nodes)
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
    """Taints are told as `key` or `key=value`; only one of the two lists may be set. An empty `included_taints`
    includes none."""

    include_prefer_no_schedule: bool = False
    excluded_taints: list[str] = []
    included_taints: list[str] | None = None


def check_node_taints(args: NodeTaintsArgs) -> None:
    """Raises: ProtocolError."""
    if args.excluded_taints and args.included_taints:
        name = "RemovePodsViolatingNodeTaints"
        raise ProtocolError(name, "includedTaints", "cannot be set together with excludedTaints")


def misplaced_by_taints(
    args: NodeTaintsArgs, node: Node, pods: Iterable[Pod], may_evict: PodPredicate
) -> list[Pod]:
    """Return the active pods of the node to evict. `args` are checked."""
    selected = common.selection(args, may_evict)
    taints = [taint for taint in node.spec.taints if _counts(args, taint)]
    active = filter(facts.is_active, pods)
    return [pod for pod in active if not node_fit.tolerates_all(pod, taints) and selected(pod)]


def _counts(args: NodeTaintsArgs, taint: Taint) -> bool:
    effects = [tolerations.NO_SCHEDULE]
    if args.include_prefer_no_schedule:
        effects.append(tolerations.PREFER_NO_SCHEDULE)
    names = {taint.key, f"{taint.key}={taint.value}"} if taint.value else {taint.key}
    is_excluded = not names.isdisjoint(args.excluded_taints)
    is_included = args.included_taints is None or not names.isdisjoint(args.included_taints)
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
_Place = tuple[str | None, str]
"""A value of a topology key; None with the name of a node that has none."""


class _Neighbours:
    """Pods by what terms of anti-affinity are about, and by domain, so that each question is O(1)."""

    def __init__(self, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> None:
        self._pods = {pod.key: pod for pod in pods}
        self._by_label = common.PodsByLabel(self._pods.values())
        self._nodes = nodes
        self._known: dict[tuple[str, bytes], defaultdict[_Place, _Domain]] = {}

    def has(self, pod: Pod) -> bool:
        return pod.key in self._pods

    def disturb(self, pod: Pod) -> bool:
        """Return whether another pod in the same domain is one that the pod wants to be away from."""
        own = pod.metadata.name
        return any(
            any(
                name != own for name in self._domains(pod, term)[self._place(pod, term.topology_key)].values()
            )
            for term in node_fit.required_anti_affinity(pod)
        )

    def _place(self, pod: Pod, topology_key: str) -> _Place:
        """Return the domain that the pod is in; a node without the label is one of its own."""
        domain = self._nodes[pod.spec.node_name].metadata.labels.get(topology_key)
        return (domain, "") if domain is not None else (None, pod.spec.node_name)

    def remove(self, pod: Pod) -> None:
        """Forget a pod that is evicted."""
        del self._pods[pod.key]
        for (topology_key, _), domains in self._known.items():
            domains[self._place(pod, topology_key)].pop(pod.key, None)

    def _domains(self, pod: Pod, term: PodAffinityTerm) -> defaultdict[_Place, _Domain]:
        """Return the pods that a term of `pod` is about, by domain."""
        namespaces = term.namespaces or [pod.metadata.namespace]
        key = term.topology_key, msgspec.json.encode((sorted(namespaces), term.label_selector))
        if (found := self._known.get(key)) is None:
            found = self._known[key] = defaultdict(dict)
            matches = node_fit.term_matcher(pod, term)
            selector = term.label_selector or LabelSelector()
            for other in chain.from_iterable(self._by_label.candidates(one, selector) for one in namespaces):
                if other.key in self._pods and matches(other):
                    found[self._place(other, term.topology_key)][other.key] = other.metadata.name
        return found


OwnerKeys = tuple[str, ...]
"""Sorted namespace/kind/name/images, one for each owner; equal for pods that stand in for each other. Each owner's pods
are spread evenly."""


class RemoveDuplicatesArgs(ViewPart, frozen=True, kw_only=True):
    """Pods with an owner of an excluded kind are left alone."""

    namespaces: Namespaces | None = None
    exclude_owner_kinds: list[str] = []


def check_duplicates(args: RemoveDuplicatesArgs) -> None:
    """Raises: ProtocolError for namespaces both included and excluded."""
    pod_filter.check_namespaces(args.namespaces, "namespaces")


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
    """Return the pods to evict, each once, by owner. `args` are checked."""
    selected = pod_filter.compose(args.namespaces, (), may_evict)
    owners = _Owners(args.exclude_owner_kinds)
    present: list[list[tuple[Pod, OwnerKeys]]] = []
    crowded: set[str] = set()
    for node in nodes:
        own = [(pod, owners.of(pod)) for pod in pods_of.get(node.metadata.name, ()) if facts.is_active(pod)]
        crowded.update(*(keys for keys, count in Counter(keys for _, keys in own).items() if count > 1))
        present.append(own)
    # The filters are dear: they are asked about owners only that have two pods on some node.
    total: Counter[str] = Counter()
    surpluses: defaultdict[str, list[list[Pod]]] = defaultdict(list)
    for own in present:
        further: defaultdict[str, list[Pod]] = defaultdict(list)
        first: set[OwnerKeys] = set()
        for pod, keys in own:
            if crowded.isdisjoint(keys) or not selected(pod):
                continue
            for owner in keys:
                total[owner] += 1
                if keys in first:
                    further[owner].append(pod)
            first.add(keys)
        for owner, pods in further.items():
            surpluses[owner].append(pods)
    places = _Places(nodes)
    found: dict[str, Pod] = {}
    for owner, groups in surpluses.items():
        feasible = places.count(
            chain.from_iterable(groups)
        )  # the first of a node stays: it counts for nothing
        for pods in groups:
            count = surplus(len(pods) + 1, total[owner], feasible)
            found.update((pod.key, pod) for pod in pods[len(pods) - count :])
    return list(found.values())


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
        self._known: dict[tuple[int, int, str], tuple[Pod, OwnerKeys]] = {}

    def of(self, pod: Pod) -> OwnerKeys:
        """Return the keys of the pod's owners; none for one without an owner, or with one that is excluded."""
        shape = (id(pod.metadata.owner_references), id(pod.spec.containers), pod.metadata.namespace)
        if (found := self._known.get(shape)) is None:
            found = self._known[shape] = pod, self._of(pod)  # the pod, so that what has these ids stays
        return found[1]

    def _of(self, pod: Pod) -> OwnerKeys:
        owners, namespace = pod.metadata.owner_references, pod.metadata.namespace
        if not self._excluded.isdisjoint(owner.kind for owner in owners):
            return ()
        images = "#".join(sorted(container.image for container in pod.spec.containers))
        return tuple(sorted(f"{namespace}/{owner.kind}/{owner.name}/{images}" for owner in owners))


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
