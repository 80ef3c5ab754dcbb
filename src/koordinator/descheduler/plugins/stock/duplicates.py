"""RemoveDuplicates: evicts pods of one owner that crowd a node. Pure. Source: behaviour/descheduler 12."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from koordinator.api.core import Node, Pod
from koordinator.descheduler import facts, node_fit, pod_filter
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import MayEvict

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


def victims(
    args: RemoveDuplicatesArgs,
    nodes: Sequence[Node],
    pods_of: Mapping[str, Sequence[Pod]],
    may_evict: MayEvict,
) -> list[Pod]:
    """Return the pods to evict, by node. Raises: ProtocolError for namespaces both included and excluded."""
    pod_filter.check_namespaces(args.namespaces, "namespaces")
    selected = common.selection(args, may_evict)
    groups: list[defaultdict[OwnerKey, list[Pod]]] = []
    for node in nodes:
        group: defaultdict[OwnerKey, list[Pod]] = defaultdict(list)
        for pod in pods_of.get(node.metadata.name, ()):
            kinds = {owner.kind for owner in pod.metadata.owner_references}
            if (
                kinds
                and kinds.isdisjoint(args.exclude_owner_kinds)
                and facts.is_active(pod)
                and selected(pod)
            ):
                group[_owner_key(pod)].append(pod)
        groups.append(group)
    total: defaultdict[OwnerKey, list[Pod]] = defaultdict(list)
    for group in groups:
        for key, pods in group.items():
            total[key] += pods
    feasible = {key: feasible_nodes(pods, nodes) for key, pods in total.items()}
    found: list[Pod] = []
    for group in groups:
        for key, pods in group.items():
            count = surplus(len(pods), len(total[key]), feasible[key])
            found += pods[len(pods) - count :]
    return found


def feasible_nodes(pods: Iterable[Pod], nodes: Sequence[Node]) -> int:
    """Return nodes that some shape of the pods may be on; a shape with only one adds none."""
    found: set[str] = set()
    shapes = {
        (
            tuple(pod.spec.tolerations),
            repr(pod.spec.node_selector),
            repr(node_fit.required_affinity(pod)),
        ): pod
        for pod in pods
    }
    for pod in shapes.values():
        own = {
            node.metadata.name
            for node in nodes
            if node_fit.bears_taints(pod, node) and node_fit.selects(pod, node)
        }
        if len(own) > 1:
            found |= own
    return len(found)


def _owner_key(pod: Pod) -> OwnerKey:
    """Sorted namespace/kind/name/image entries: equal for pods that stand in for each other."""
    images = [container.image for container in pod.spec.containers]
    return tuple(
        sorted(
            f"{pod.metadata.namespace}/{owner.kind}/{owner.name}/{image}"
            for owner in pod.metadata.owner_references
            for image in images
        )
    )
