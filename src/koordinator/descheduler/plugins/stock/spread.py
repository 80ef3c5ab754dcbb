"""RemovePodsViolatingTopologySpreadConstraint: which pods leave domains that hold too many. Pure.
Source: behaviour/descheduler 12. How many each domain gives up is decided in `placement.balance`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordinator.api import node_affinity
from koordinator.api.affinity import LabelSelector, LabelSelectorRequirement, TopologySpreadConstraint
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import compile_selector
from koordinator.descheduler import facts, node_fit
from koordinator.descheduler.node_fit import Rooms
from koordinator.descheduler.plugins.stock import common, placement
from koordinator.descheduler.pod_filter import PodPredicate

DO_NOT_SCHEDULE = "DoNotSchedule"
KINDS = (DO_NOT_SCHEDULE, "ScheduleAnyway")
IGNORE, HONOR = "Ignore", "Honor"


class SpreadArgs(common.CommonArgs, frozen=True, kw_only=True):
    """The kinds of constraints that count, and whether pods need a place to go."""

    constraints: tuple[str, ...] = (DO_NOT_SCHEDULE,)
    topology_balance_node_fit: bool = True


def check(args: SpreadArgs) -> None:
    """Raises: ProtocolError."""
    if unknown := [kind for kind in args.constraints if kind not in KINDS]:
        name = "RemovePodsViolatingTopologySpreadConstraint"
        raise ProtocolError(name, "constraints", f"{unknown[0]!r} is none of {', '.join(KINDS)}")


class _Rule(msgspec.Struct, frozen=True):
    """A constraint with the pods it is about, and the pod that brought it, whose affinity and tolerations say which
    nodes count."""

    constraint: TopologySpreadConstraint
    selector: LabelSelector
    pod: Pod


def surplus_pods(
    args: SpreadArgs, nodes: Sequence[Node], pods_of: Mapping[str, Sequence[Pod]], may_evict: PodPredicate
) -> list[Pod]:
    """Return the pods to evict, each once. Raises: ProtocolError for a selector that cannot be read."""
    selected = common.selection(args, may_evict)
    kinds = frozenset(args.constraints)
    by_namespace: defaultdict[str, list[Pod]] = defaultdict(list)
    for node in nodes:
        for pod in pods_of.get(node.metadata.name, ()):
            if facts.is_active(pod):
                by_namespace[pod.metadata.namespace].append(pod)
    rooms = Rooms(nodes, pods_of)
    found: dict[str, Pod] = {}
    for _, pods in sorted(by_namespace.items()):
        # A pod that goes anyway brings its constraints, and counts for none.
        by_label = common.PodsByLabel(pod for pod in pods if pod.metadata.deletion_timestamp is None)
        for rule in _rules(pods, kinds, selected):
            alike = by_label.candidates(rule.pod.metadata.namespace, rule.selector)
            for pod in _surplus(rule, alike, nodes, rooms, selected, args.topology_balance_node_fit):
                found[pod.key] = pod
    return list(found.values())


def _rules(pods: Iterable[Pod], kinds: frozenset[str], selected: PodPredicate) -> list[_Rule]:
    """Return the distinct constraints of pods that may go. One without a selector is about no pods."""
    found: dict[bytes, _Rule] = {}
    for pod in pods:
        for constraint in pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable in kinds and constraint.label_selector is not None:
                selector = _with_label_keys(constraint.label_selector, constraint, pod)
                shape = (
                    constraint,
                    selector,
                    pod.spec.node_selector,
                    node_affinity.required(pod.spec),
                    pod.spec.tolerations,
                )
                key = msgspec.json.encode(shape)
                if key not in found and selected(pod):
                    found[key] = _Rule(constraint, selector, pod)
    return list(found.values())


def _with_label_keys(
    selector: LabelSelector, constraint: TopologySpreadConstraint, pod: Pod
) -> LabelSelector:
    """Return the constraint's selector with the pod's own values of `matchLabelKeys`."""
    own = pod.metadata.labels
    extra = [
        LabelSelectorRequirement(key=key, operator="In", values=[own[key]])
        for key in constraint.match_label_keys
        if key in own
    ]
    return msgspec.structs.replace(selector, match_expressions=[*selector.match_expressions, *extra])


def _surplus(
    rule: _Rule,
    pods: Iterable[Pod],
    nodes: Sequence[Node],
    rooms: Rooms,
    selected: PodPredicate,
    needs_fit: bool,
) -> list[Pod]:
    constraint = rule.constraint
    key = constraint.topology_key
    domain_of = {n.metadata.name: n.metadata.labels[key] for n in nodes if key in n.metadata.labels}
    nodes_of: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node.metadata.name in domain_of and _is_eligible(node, rule):
            nodes_of[domain_of[node.metadata.name]].append(node.metadata.name)
    domains: dict[str, list[Pod]] = {domain: [] for domain in nodes_of}
    matches = compile_selector(rule.selector)
    for pod in pods:
        if pod.spec.node_name in domain_of and matches(pod.metadata.labels):
            domains.setdefault(domain_of[pod.spec.node_name], []).append(pod)
    names = sorted(domains)
    sizes = [len(domains[name]) for name in names]
    balanced = placement.balance(sizes, constraint.max_skew)
    below = [
        node
        for name, size in zip(names, sizes, strict=True)
        if size * len(sizes) < sum(sizes)
        for node in nodes_of[name]
    ]

    def fits(pod: Pod) -> bool:
        return any(node_fit.fits_as_upstream(pod, rooms[node]) for node in below)

    found: list[Pod] = []
    for name, moved in zip(names, balanced.moved, strict=True):
        if moved:
            ordered = sorted(domains[name], key=lambda pod: _place(pod, selected))
            ordered.sort(key=fits)
            taken = filter(selected, ordered[-moved:])
            found += [pod for pod in taken if not needs_fit or fits(pod)]
    return found


def _is_eligible(node: Node, rule: _Rule) -> bool:
    constraint, pod = rule.constraint, rule.pod
    if (constraint.node_affinity_policy or HONOR) == HONOR and not node_affinity.selects(pod.spec, node):
        return False
    return (constraint.node_taints_policy or IGNORE) == IGNORE or node_fit.bears_taints(pod, node)


def _place(pod: Pod, selected: PodPredicate) -> tuple[bool, bool, tuple[bool, int, int, bool], str]:
    """Order inside a domain; the back goes first: pods that may go, free to go anywhere, of the highest priority
    (as upstream, where the lowest was meant)."""
    affinity = pod.spec.affinity
    is_bound = bool(pod.spec.node_selector) or (affinity is not None and affinity.node_affinity is not None)
    return selected(pod), not is_bound, common.priority_key(pod), pod.key
