"""The quotas of a cluster as their objects tell: trees, figures, loans, and what is wrong with them. Pure.

Only ElasticQuota objects are read (and nodes, for what there is to share), so this works with any scheduler that
writes their annotations. Source: behaviour/elastic-quota 2, 9 and 16.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import labels, normalization, quota_labels, resource_list, resources
from koordinator.api.annotations.codec import Annotation
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import NANO, QuantityError, ResourceList
from koordinator.api.resource_list import Amounts
from koordinator.api.resource_vector import add_in_place
from koordinator.api.sigs import ElasticQuota
from koordinator.scheduler.plugins.elastic_quota import admission
from koordinator.scheduler.plugins.elastic_quota.admission import LendingReport
from koordinator.scheduler.plugins.elastic_quota.quota import Nanos, amounts_of, nanos_of

ROOT = labels.ROOT_QUOTA_NAME
RESERVED = (labels.SYSTEM_QUOTA_NAME, labels.DEFAULT_QUOTA_NAME)
"""Quotas of the default tree whose use is taken out of what the others share."""
DEFAULT_TREE = ""
WRITTEN = frozenset((labels.QUOTA_RUNTIME, labels.QUOTA_GUARANTEED))
"""Annotations that only schedulers write, the first things that they do."""
_UNREACHED = 10**18 * NANO
_MAX_OF_ROOTS = (2**63 - 1) // 2000 * NANO
SIBLINGS_MAX = 1_000
"""Beyond that it is not worked out who borrows from whom, only how much."""


def is_unreached(nanos: int) -> bool:
    """Return whether a max is none: that of the default quota is 2^63 / 5, whatever the resource, that of the roots of
    trees 2^63 / 2000."""
    return nanos >= _UNREACHED or nanos == _MAX_OF_ROOTS


class QuotaBorrowing(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a quota above its minimum, whose minima that is, and what others use of its own."""

    borrowed: int = 0
    lent: int = 0
    lenders: dict[str, int] = {}
    """Quota → how much of `borrowed` comes from it; the rest is nobody's minimum."""


NO_LOAN = QuotaBorrowing()


class QuotaResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of a quota in 10^-9 units; None where nobody has said."""

    used: int = 0
    runtime: int | None = None
    request: int | None = None
    min: int = 0
    max: int | None = None
    loan: QuotaBorrowing = NO_LOAN

    @property
    def above(self) -> int:
        """Return how much more is used than may be."""
        return max(self.used - self.runtime, 0) if self.runtime is not None else 0

    @property
    def waiting(self) -> int:
        """Return what is asked for and not used."""
        return max(self.request - self.used, 0) if self.request is not None else 0

    @property
    def is_settled(self) -> bool:
        """Return whether the figures can belong together. They are written one after the other, so that for a second
        after a change a runtime may stand above a lowered max, and more be used than is asked for."""
        if self.runtime is None or (self.max is not None and self.runtime > self.max):
            return False
        return self.request is None or self.used <= self.request


class QuotaNode(msgspec.Struct, kw_only=True):
    """A quota with all that is below it. `notes` say what is wrong with it, and what is special."""

    name: str
    namespace: str = ""
    path: tuple[str, ...] = ()
    """From the top, itself last."""
    is_parent: bool = False
    lends: bool = True
    figures: dict[str, QuotaResource] = {}
    notes: list[str] = []
    children: list["QuotaNode"] = []

    def walk(self) -> "Iterator[QuotaNode]":
        """This quota and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))


class TreeView(msgspec.Struct, kw_only=True):
    """One tree: `total` is what there is to share in all, {} when nothing says so, `source` who says it."""

    tree_id: str
    total: Nanos
    source: str
    tops: list[QuotaNode]


class Stray(msgspec.Struct, frozen=True, kw_only=True):
    """A quota in no tree, and why."""

    name: str
    namespace: str
    reason: str


class Forest(msgspec.Struct, kw_only=True):
    """All trees, the default one first, and quotas that are in none."""

    trees: list[TreeView]
    strays: list[Stray]

    def find(self, name: str) -> QuotaNode | None:
        """Return the quota of a name, wherever it stands."""
        return next((node for node in self.nodes() if node.name == name), None)

    def nodes(self) -> Iterator[QuotaNode]:
        """Yield all quotas that are in a tree."""
        for tree in self.trees:
            for top in tree.tops:
                yield from top.walk()

    def resources(self) -> list[str]:
        """Everything that some quota counts, CPU and memory first."""
        names = {name for node in self.nodes() for name in node.figures}
        return sorted(names, key=lambda name: (name != "cpu", name != "memory", name))


def forest(quotas: Iterable[ElasticQuota], nodes: Sequence[Node] = ()) -> Forest:
    """Return the trees that the objects make. Nothing is refused: what cannot be read is noted at its quota."""
    known, strays = _by_name(quotas)
    is_reported = any(not WRITTEN.isdisjoint(quota.metadata.annotations) for quota in known.values())
    read = {name: _read(quota, is_reported=is_reported) for name, quota in known.items()}
    children: defaultdict[str, list[str]] = defaultdict(list)
    for name, quota in sorted(known.items()):
        if name != ROOT:
            children[quota_labels.parent_name(name, quota.metadata.labels)].append(name)
    tree_ids = sorted({DEFAULT_TREE, *map(_tree_of, known.values())})
    trees = [_tree(tree_id, known, read, children, nodes) for tree_id in tree_ids]
    placed = {node.name for tree in trees for top in tree.tops for node in top.walk()}
    strays += [
        Stray(name=name, namespace=quota.metadata.namespace, reason=_why_stray(name, known))
        for name, quota in sorted(known.items())
        if name not in placed
    ]
    return Forest(trees=trees, strays=strays)


def _by_name(quotas: Iterable[ElasticQuota]) -> tuple[dict[str, ElasticQuota], list[Stray]]:
    """Names are unique in the cluster: of several objects the oldest counts."""
    known: dict[str, ElasticQuota] = {}
    strays: list[Stray] = []
    for quota in sorted(quotas, key=lambda each: (each.metadata.creation_timestamp or "", each.key)):
        meta = quota.metadata
        first = known.setdefault(meta.name, quota)
        if first is not quota:
            reason = f"the name is taken by {first.key}, which is older"
            strays.append(Stray(name=meta.name, namespace=meta.namespace, reason=reason))
    return known, strays


def _tree(
    tree_id: str,
    known: Mapping[str, ElasticQuota],
    read: Mapping[str, QuotaNode],
    children: Mapping[str, Sequence[str]],
    nodes: Sequence[Node],
) -> TreeView:
    tops = [read[name] for name in children.get(ROOT, ()) if _tree_of(known[name]) == tree_id]
    for top in tops:
        top.path = (top.name,)
        for node in top.walk():
            _hang_below(node, known, read, children)
    view = TreeView(tree_id=tree_id, total={}, source="", tops=tops)
    if tree_id != DEFAULT_TREE:
        roots = [
            known[top.name] for top in tops if quota_labels.is_tree_root(known[top.name].metadata.labels)
        ]
        _take_total_of(view, roots)
    else:
        _take_total(view, nodes, known)
        root = read.get(ROOT) or QuotaNode(name=ROOT)
        root.path, root.is_parent, root.children = (), True, tops
        root.figures = _root_figures(view, tops)
        view.tops = [root]
    _lend(view)
    return view


def _tree_of(quota: ElasticQuota) -> str:
    return quota_labels.tree_id(quota.metadata.labels)


def _hang_below(
    node: QuotaNode,
    known: Mapping[str, ElasticQuota],
    read: Mapping[str, QuotaNode],
    children: Mapping[str, Sequence[str]],
) -> None:
    """Hang the children of a quota under it; what is below the root cannot go round in a circle."""
    node.children = [read[name] for name in children.get(node.name, ())]
    if node.children and not node.is_parent:
        node.notes.append(f"has children, but not the label {labels.QUOTA_IS_PARENT}=true")
    for child in node.children:
        if _tree_of(known[child.name]) != _tree_of(known[node.name]):
            own, other = _tree_of(known[child.name]), _tree_of(known[node.name])
            child.notes.append(f"tree id {own!r} differs from {other!r} of its parent {node.name}")
        child.path = (*node.path, child.name)


def _why_stray(name: str, known: Mapping[str, ElasticQuota]) -> str:
    """Return why no way leads from a quota up to the root."""
    seen: list[str] = []
    each = name
    while each not in seen:
        seen.append(each)
        parent = quota_labels.parent_name(each, known[each].metadata.labels)
        if parent == ROOT:
            break
        if parent not in known:
            above = "" if each == name else f" of {each} above it"
            return f"the parent{above} is missing: {parent}"
        each = parent
    circle = [*seen[seen.index(each) :], each]
    return f"its parents go round in a circle: {' → '.join(circle)}"


# What a quota says


def _read(quota: ElasticQuota, *, is_reported: bool) -> QuotaNode:
    """Return the quota by itself; what is not readable counts as not said. `is_reported`: a scheduler writes runtimes
    here, and leaves those out that are zero."""
    quota = normalization.normalize_quota(quota)
    meta = quota.metadata
    notes: list[str] = []
    low, high = _amounts(quota.spec.min, "spec.min", notes), _amounts(quota.spec.max, "spec.max", notes)
    used = _amounts(quota.status.used, "status.used", notes)
    runtime = _annotation(quota, quota_labels.RUNTIME, notes)
    is_idle = is_reported and labels.QUOTA_RUNTIME not in meta.annotations and meta.name not in RESERVED
    request = _annotation(quota, quota_labels.REQUEST, notes)
    lends = quota_labels.allows_lending(meta.labels)
    is_own = meta.name != ROOT
    if is_own and not lends:
        notes.append("does not lend")
    if meta.deletion_timestamp is not None:
        notes.append("is being deleted")
    if is_own and meta.name not in RESERVED and not is_reported:
        notes.append("no scheduler has written a runtime yet")
    return QuotaNode(
        name=meta.name,
        namespace=meta.namespace,
        is_parent=quota_labels.is_parent(meta.labels),
        lends=lends,
        figures={
            name: QuotaResource(
                used=used.get(name, 0),
                runtime=runtime.get(name, 0 if is_idle else None),
                request=request.get(name),
                min=low.get(name, 0),
                max=high.get(name),
            )
            for name in (high if is_own else ())
        },
        notes=notes,
    )


def _amounts(wire: ResourceList, field: str, notes: list[str]) -> Nanos:
    try:
        return nanos_of(resource_list.of(wire))
    except QuantityError as error:
        notes.append(f"{field}: {error}")
        return {}


def _annotation(quota: ElasticQuota, codec: Annotation[ResourceList], notes: list[str]) -> Nanos:
    try:
        return nanos_of(resource_list.of(codec.read(quota.metadata.annotations) or {}))
    except (ProtocolError, QuantityError) as error:
        notes.append(str(error))
        return {}


# What there is in all


def _take_total(view: TreeView, nodes: Sequence[Node], known: Mapping[str, ElasticQuota]) -> None:
    """Take the total of the default tree: what the nodes have, less what belongs to other trees."""
    total: Nanos = {}
    for node in nodes:
        try:
            add_in_place(total, nanos_of(resource_list.of(node.status.allocatable)), 1)
        except QuantityError:
            continue  # the scheduler counts it without, too
    if not nodes:
        return
    view.source = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    for quota in known.values():
        own = quota.metadata.labels
        if not (quota_labels.is_tree_root(own) and quota_labels.tree_id(own)):
            continue
        if not quota_labels.ignores_default_tree(own):
            add_in_place(total, _annotation(quota, quota_labels.TOTAL_RESOURCE, []), -1)
            view.source = f"{view.source.removesuffix(' less other trees')} less other trees"
    view.total = total


def _take_total_of(view: TreeView, roots: Sequence[ElasticQuota]) -> None:
    """Take the total of another tree: what its root quota says."""
    for root in roots:
        notes: list[str] = []
        add_in_place(view.total, _annotation(root, quota_labels.TOTAL_RESOURCE, notes), 1)
        view.source = f"annotation total-resource of {root.metadata.name}"
    if not roots:
        view.source = f"no quota of the tree has the label {labels.QUOTA_IS_ROOT}=true"


def _root_figures(view: TreeView, tops: Sequence[QuotaNode]) -> dict[str, QuotaResource]:
    """Return what all quotas use together; the runtime is what they share."""
    names = {name for top in tops if top.name not in RESERVED for name in top.figures}
    names |= {name for top in tops for name, each in top.figures.items() if each.used}
    names = names or view.total.keys() & {resources.CPU, resources.MEMORY}
    found = {}
    for name in names:
        of_all = [top.figures[name] for top in tops if name in top.figures]
        outside = sum(top.figures[name].used for top in tops if top.name in RESERVED and name in top.figures)
        total = view.total.get(name)
        shared = [top.figures[name] for top in tops if top.name not in RESERVED and name in top.figures]
        found[name] = QuotaResource(
            used=sum(each.used for each in of_all),
            runtime=total - outside if total is not None else None,
            min=sum(each.min for each in shared),
            max=total,
        )
    return found


# Loans


def _lend(view: TreeView) -> None:
    """Tell each quota of a tree what it borrows and lends."""
    nodes = [node for top in view.tops for node in top.walk()]
    report = LendingReport(_reported(node, view.tree_id) for node in nodes)
    siblings = Counter(node.path[:-1] for node in nodes)
    rows = {row.figures.name: row for row in report.rows()}
    for node in nodes:
        row = rows[node.name]
        borrowed, lent = nanos_of(row.borrowed), nanos_of(row.lent)
        lenders = _lenders(report, node) if borrowed and siblings[node.path[:-1]] <= SIBLINGS_MAX else {}
        for name in borrowed.keys() | lent.keys():
            if name in node.figures:
                loan = QuotaBorrowing(
                    borrowed=borrowed.get(name, 0), lent=lent.get(name, 0), lenders=lenders.get(name, {})
                )
                node.figures[name] = msgspec.structs.replace(node.figures[name], loan=loan)


def _lenders(report: LendingReport, node: QuotaNode) -> dict[str, dict[str, int]]:
    """Resource → whose minimum → how much of it the quota uses."""
    found: dict[str, dict[str, int]] = {}
    for loan in report.loans(node.name)[0]:
        for name, nanos in nanos_of(loan.amounts).items():
            found.setdefault(name, {})[loan.lender.rpartition("/")[2]] = nanos
    return found


def _reported(node: QuotaNode, tree_id: str) -> admission.QuotaSummary:
    """Return the figures in the form in which loans are worked out."""
    each = node.figures

    def amounts(value: Callable[[QuotaResource], int | None]) -> Amounts:
        return amounts_of({name: number for name in each if (number := value(each[name])) is not None})

    return admission.QuotaSummary(
        name=node.name,
        parent="" if node.name == ROOT else node.path[-2] if len(node.path) > 1 else ROOT,
        tree_id=tree_id,
        lends=node.lends,
        min=amounts(lambda figures: figures.min),
        max=amounts(lambda figures: figures.max),
        runtime=amounts(lambda figures: figures.runtime),
        used=amounts(lambda figures: figures.used),
        request=amounts(lambda figures: figures.request),
    )


# For tools


def to_json(found: Forest) -> dict[str, Any]:
    """Return the forest as JSON values; amounts are quantity texts."""
    return {
        "trees": [
            {
                "treeID": tree.tree_id,
                "total": _texts(tree.total),
                "totalFrom": tree.source,
                "quotas": [_node_json(node) for top in tree.tops for node in top.walk()],
            }
            for tree in found.trees
        ],
        "inNoTree": [msgspec.to_builtins(each) for each in found.strays],
    }


def _node_json(node: QuotaNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "namespace": node.namespace,
        "path": list(node.path),
        "isParent": node.is_parent,
        "lends": node.lends,
        "notes": node.notes,
        "resources": {name: _figures_json(name, each) for name, each in sorted(node.figures.items())},
    }


def _figures_json(name: str, each: QuotaResource) -> dict[str, Any]:
    said = {
        "used": each.used,
        "runtime": each.runtime,
        "request": each.request,
        "min": each.min,
        "max": each.max,
        "borrowed": each.loan.borrowed,
        "lent": each.loan.lent,
    }
    body: dict[str, Any] = {key: text(name, nanos) for key, nanos in said.items() if nanos is not None}
    if not each.is_settled:
        body["isSettled"] = False
    body["lenders"] = {lender: text(name, nanos) for lender, nanos in sorted(each.loan.lenders.items())}
    return body


def _texts(nanos: Nanos) -> dict[str, str]:
    return {name: text(name, number) for name, number in sorted(nanos.items())}


def text(name: str, nanos: int) -> str:
    """Return an amount of a resource as quantity text."""
    return amounts_of({name: nanos})[name].text
