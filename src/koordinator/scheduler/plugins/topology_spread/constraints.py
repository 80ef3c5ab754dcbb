"""Read what a pod says about how it spreads, or what follows for it from the defaults: the plugin's arguments, the pods
that belong together (those of the services and the controller that select a pod), and the nodes that count for a
constraint: those with all keys that the pod may use and whose taints it bears."""

from collections.abc import Hashable, Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from koordinator.api import node_affinity
from koordinator.api.affinity import LabelSelector, LabelSelectorRequirement
from koordinator.api.affinity import TopologySpreadConstraint as WireConstraint
from koordinator.api.apps import ReplicaSet, ReplicationController, StatefulSet
from koordinator.api.core import Pod, Service
from koordinator.api.meta import Object
from koordinator.scheduler.plugin.framework import Mask, Watch
from koordinator.scheduler.table.columns import Recent
from koordinator.scheduler.table.label_columns import ABSENT, LabelColumns, TaintColumns
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_counts import PodTerm

INCLUSIONS_MAX = 1_024
"""Sets of nodes kept; one per distinct node selector among pods that spread, 1 byte per node."""


class InclusionPolicy(msgspec.Struct, frozen=True):
    """The demands of a constraint on nodes: all of `keys`, and what its inclusion policies look at in the pod."""

    keys: tuple[str, ...]
    honors_affinity: bool
    honors_taints: bool


class Inclusion:
    """`mask` (rows,): nodes that count. `version` changes when some node does or does not any more.

    `keys` are the labels that decide about it.
    """

    def __init__(
        self, table: NodeTable, labels: LabelColumns, taints: TaintColumns, policy: InclusionPolicy, pod: Pod
    ) -> None:
        self._table = table
        self._labels = labels
        self._taints = taints
        self._policy = policy
        self._selector = tuple(pod.spec.node_selector.items()) if policy.honors_affinity else ()
        required = node_affinity.required(pod.spec) if policy.honors_affinity else None
        self._terms = None if required is None else required.node_selector_terms
        self._tolerations = tuple(pod.spec.tolerations)
        terms = (wanted.key for term in self._terms or () for wanted in term.match_expressions)
        self.keys = (*policy.keys, *(key for key, _ in self._selector), *terms)
        self._stamp: Hashable = None
        self._mask: Mask = np.zeros(0, np.bool_)
        self._version = 0

    @property
    def mask(self) -> Mask:
        self._refresh()
        return self._mask

    @property
    def version(self) -> int:
        self._refresh()
        return self._version

    def _refresh(self) -> None:
        stamp = (
            self._table.membership,
            self._taints.version if self._policy.honors_taints else 0,
            *[self._labels.column(key).version for key in self.keys],
        )
        if stamp == self._stamp:
            return
        self._stamp = stamp
        mask = self._computed()
        if not np.array_equal(mask, self._mask):
            self._mask = mask
            self._version += 1

    def _computed(self) -> Mask:
        rows = self._table.rows
        counts = np.ones(rows.size, np.bool_)
        for key in self._policy.keys:
            counts &= self._labels.ids(key, rows) != ABSENT
        if self._selector:
            counts &= self._labels.match_labels(self._selector, rows)
        if self._terms is not None:
            counts &= self._labels.match_terms(self._terms, rows)
        if self._policy.honors_taints:
            counts &= ~self._taints.keep_out(self._tolerations, rows)
        mask = np.zeros(self._table.capacity, np.bool_)
        mask[rows] = counts
        return mask


class Inclusions:
    """The sets of nodes of recently seen pods and constraints."""

    def __init__(self, table: NodeTable, labels: LabelColumns) -> None:
        self._table = table
        self._labels = labels
        self._taints = table.shared(TaintColumns)
        self._known: Recent[Inclusion] = Recent(INCLUSIONS_MAX)

    def of(self, pod: Pod, policy: InclusionPolicy) -> Inclusion:
        key = (policy, placement_key(pod, policy.honors_affinity, policy.honors_taints))
        return self._known.get(key, lambda: Inclusion(self._table, self._labels, self._taints, policy, pod))


def placement_key(pod: Pod, honors_affinity: bool, honors_taints: bool) -> bytes:
    """Return what the inclusion policies look at in a pod."""
    spec = pod.spec
    parts: list[object] = []
    if honors_affinity and (spec.node_selector or spec.affinity is not None):
        parts += [sorted(spec.node_selector.items()), node_affinity.required(spec)]
    if honors_taints and spec.tolerations:
        parts += ["taints", spec.tolerations]
    return msgspec.json.encode(parts) if parts else b""


SOFT: Final = "ScheduleAnyway"
HARD: Final = "DoNotSchedule"


class DefaultConstraint(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A constraint for pods that have none; which pods count follows from who owns the pod."""

    max_skew: Annotated[int, msgspec.Meta(gt=0)]
    topology_key: Annotated[str, msgspec.Meta(min_length=1)]
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"]
    label_selector: Any = None
    min_domains: None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None

    def __post_init__(self) -> None:
        if self.label_selector is not None:
            raise ValueError("labelSelector must not be set: pods assigned to the same owner count")


SYSTEM_DEFAULTS = (
    DefaultConstraint(3, "kubernetes.io/hostname", SOFT),
    DefaultConstraint(5, "topology.kubernetes.io/zone", SOFT),
)


class SpreadArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`defaulting_type` List uses `default_constraints`, System the built-in ones."""

    default_constraints: list[DefaultConstraint] = []
    defaulting_type: Literal["System", "List"] = "System"

    def __post_init__(self) -> None:
        if self.defaulting_type == "System" and self.default_constraints:
            raise ValueError('defaultConstraints needs defaultingType "List"')
        pairs = [(each.topology_key, each.when_unsatisfiable) for each in self.default_constraints]
        if len(set(pairs)) != len(pairs):
            raise ValueError("defaultConstraints: a topologyKey appears twice with one whenUnsatisfiable")

    @property
    def defaults(self) -> tuple[DefaultConstraint, ...]:
        return SYSTEM_DEFAULTS if self.defaulting_type == "System" else tuple(self.default_constraints)


Selectors = tuple[LabelSelector | None, ...]


class Constraint(msgspec.Struct, frozen=True, eq=False):
    """One constraint of a pod. `is_self` tells whether the pod itself counts, `policy` which nodes do."""

    key: str
    max_skew: int
    min_domains: int
    policy: InclusionPolicy
    term: PodTerm
    is_self: bool


class Constraints(msgspec.Struct, frozen=True, eq=False):
    """All constraints of pods that spread alike (equal `key`). `needs_keys`: nodes without one of the soft
    constraints' keys get no score."""

    hard: tuple[Constraint, ...]
    soft: tuple[Constraint, ...]
    needs_keys: bool
    key: Hashable

    @property
    def honors_taints(self) -> bool:
        return any(each.policy.honors_taints for each in (*self.hard, *self.soft))


UNCONSTRAINED = Constraints((), (), False, ())


def of_pod(pod: Pod) -> Constraints:
    """Return the constraints in the pod's spec."""
    wires = pod.spec.topology_spread_constraints
    return _constraints(pod, [(wire, _selectors(wire, pod)) for wire in wires], needs_keys=True)


def of_defaults(
    pod: Pod, defaults: tuple[DefaultConstraint, ...], selectors: Selectors, *, needs_keys: bool
) -> Constraints:
    """Return the constraints that hold for a pod without any of its own; `selectors` say which pods belong together."""
    return _constraints(pod, [(default, selectors) for default in defaults], needs_keys=needs_keys)


def _constraints(
    pod: Pod, pairs: list[tuple[WireConstraint | DefaultConstraint, Selectors]], *, needs_keys: bool
) -> Constraints:
    terms = {id(selectors): _counted(selectors, pod.metadata.namespace) for _, selectors in pairs}

    def made(*, is_hard: bool) -> tuple[Constraint, ...]:
        own = [(wire, sels) for wire, sels in pairs if (wire.when_unsatisfiable == HARD) is is_hard]
        keys = tuple(sorted({wire.topology_key for wire, _ in own})) if is_hard or needs_keys else ()
        return tuple(_constraint(pod, wire, sels, terms[id(sels)], keys) for wire, sels in own)

    hard, soft = made(is_hard=True), made(is_hard=False)
    found = Constraints(hard, soft, needs_keys, ())
    honors_affinity = any(each.policy.honors_affinity for each in (*hard, *soft))
    key = (
        tuple(_key(each) for each in hard),
        tuple(_key(each) for each in soft),
        needs_keys,
        placement_key(pod, honors_affinity, found.honors_taints),
    )
    return msgspec.structs.replace(found, key=key)


def _counted(selectors: Selectors, namespace: str) -> PodTerm:
    """Other pods that count. An empty selector means none of them, though it means the pod itself: so
    kube-scheduler counts (`countPodsMatchSelector`)."""
    return PodTerm.of((None,) if _are_empty(selectors) else selectors, (namespace,))


def _are_empty(selectors: Selectors) -> bool:
    return all(selector == LabelSelector() for selector in selectors)


def _constraint(
    pod: Pod,
    wire: WireConstraint | DefaultConstraint,
    selectors: Selectors,
    term: PodTerm,
    keys: tuple[str, ...],
) -> Constraint:
    return Constraint(
        key=wire.topology_key,
        max_skew=wire.max_skew,
        min_domains=wire.min_domains or 1,
        policy=InclusionPolicy(
            keys, wire.node_affinity_policy != "Ignore", wire.node_taints_policy == "Honor"
        ),
        term=term,
        is_self=_are_empty(selectors) or term.has_labels(pod.metadata.labels),
    )


def _key(constraint: Constraint) -> Hashable:
    policy = constraint.policy
    return (
        constraint.key,
        constraint.max_skew,
        constraint.min_domains,
        policy.honors_affinity,
        policy.honors_taints,
        constraint.term.key,
        constraint.is_self,
    )


def _selectors(wire: WireConstraint, pod: Pod) -> Selectors:
    """Return the constraint's selector and the pod's own values of its `matchLabelKeys`."""
    labels = pod.metadata.labels
    same = [
        LabelSelectorRequirement(key=key, operator="In", values=[labels[key]])
        for key in wire.match_label_keys
        if key in labels
    ]
    if wire.label_selector is None or not same:
        return (wire.label_selector,)
    return (wire.label_selector, LabelSelector(match_expressions=same))


_OWNERS: tuple[type[Object], ...] = (ReplicaSet, StatefulSet, ReplicationController)
_GROUP_OF_KIND = {view.resource.kind: view.resource.group for view in _OWNERS}


class OwnerSelectors:
    """Selectors of services and of the controllers that own pods."""

    def __init__(self) -> None:
        # Services by namespace and by the first of their labels, so that a pod need not ask all of them.
        self._services: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}
        self._versions: dict[str, int] = {}

    def watches(self) -> Iterable[Watch[Any]]:
        yield Watch(Service, on_add=self._add, on_update=self._update, on_delete=self._remove)
        for view in _OWNERS:
            yield Watch.newest(view, self.set, self.remove)

    def version(self, namespace: str) -> int:
        """Changes with any selector of the namespace."""
        return self._versions.get(namespace, 0)

    def _changed(self, namespace: str) -> None:
        self._versions[namespace] = self._versions.get(namespace, 0) + 1

    def set(self, owner: Any) -> None:
        meta, selector = owner.metadata, owner.spec.selector
        if isinstance(selector, dict):
            selector = LabelSelector(match_labels=selector)
        if selector is None:
            self.remove(owner)
            return
        key = (owner.resource.kind, meta.namespace, meta.name)
        if self._owners.get(key) != selector:
            self._owners[key] = selector
            self._changed(meta.namespace)

    def remove(self, owner: Any) -> None:
        meta = owner.metadata
        if self._owners.pop((owner.resource.kind, meta.namespace, meta.name), None) is not None:
            self._changed(meta.namespace)

    def _add(self, service: Service) -> None:
        if service.spec.selector:
            self._services.setdefault(_anchor(service), {})[service.metadata.name] = service.spec.selector
            self._changed(service.metadata.namespace)

    def _update(self, old: Service, new: Service) -> None:
        if old.spec.selector != new.spec.selector:
            self._remove(old)
            self._add(new)

    def _remove(self, service: Service) -> None:
        anchored = self._services.get(_anchor(service)) if service.spec.selector else None
        if anchored is not None and anchored.pop(service.metadata.name, None) is not None:
            self._changed(service.metadata.namespace)
            if not anchored:
                del self._services[_anchor(service)]

    def selectors_of(self, pod: Pod) -> tuple[LabelSelector, ...]:
        """Return what pods like this one have in common; () when nobody selects it.

        The conditions of all services that select the pod and of its controller, to be met together.
        """
        owned = self._owner_selector(pod) if self._owners else None
        labels = self._service_labels(pod) if self._services else {}
        found = [LabelSelector(match_labels=labels)] if labels else []
        if owned is not None and (owned.match_labels or owned.match_expressions):
            found.append(owned)
        return tuple(found)

    def _owner_selector(self, pod: Pod) -> LabelSelector | None:
        owner = next((ref for ref in pod.metadata.owner_references if ref.controller), None)
        if owner is None or _GROUP_OF_KIND.get(owner.kind) != owner.api_version.rpartition("/")[0]:
            return None
        return self._owners.get((owner.kind, pod.metadata.namespace, owner.name))

    def _service_labels(self, pod: Pod) -> dict[str, str]:
        found: dict[str, str] = {}
        labels = pod.metadata.labels
        for key, value in labels.items():
            for selector in self._services.get((pod.metadata.namespace, key, value), {}).values():
                if labels.items() >= selector.items():
                    found.update(selector)
        return found


def _anchor(service: Service) -> tuple[str, str, str]:
    return (service.metadata.namespace, *min(service.spec.selector.items()))
