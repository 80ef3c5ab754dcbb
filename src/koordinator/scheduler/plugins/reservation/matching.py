"""Decide which reservations a pod may use, and why not the others. Pure. Source: behaviour/reservations 5 and 9."""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordinator.api import label_selector, labels, pod_labels
from koordinator.api.affinity import NodeSelectorTerm, Taint, any_term_holds
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import Predicate
from koordinator.api.meta import ObjectReference, OwnerReference
from koordinator.api.reservation import (
    EXACT_MATCH_RESERVATION,
    RESERVATION_AFFINITY,
    Reservation,
    ReservationAffinity,
    ReservationController,
    ReservationOwner,
)
from koordinator.api.resource_list import Amounts
from koordinator.api.tolerations import NO_EXECUTE, NO_SCHEDULE, is_tolerated
from koordinator.scheduler.plugins.reservation import objects

UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
POD_API_VERSION = "v1"


class MatchOutcome(enum.Enum):
    """The relation of a reservation to a pod: the first test that fails names it."""

    IGNORED = "ignored"
    OWNER_UNMATCHED = "ownerUnmatched"
    NAME_UNMATCHED = "nameUnmatched"
    UNSCHEDULABLE = "unschedulable"
    TAINT_UNTOLERATED = "taintUntolerated"
    AFFINITY_UNMATCHED = "affinityUnmatched"
    NOT_EXACT_MATCHED = "notExactMatched"
    MATCHED = "matched"


class Match(msgspec.Struct, frozen=True):
    """The outcome; `taint` is the first that is not tolerated."""

    outcome: MatchOutcome
    taint: Taint | None = None


class ReservationOwners(msgspec.Struct, frozen=True, eq=False):
    """Parsed `spec.owners`; with an `error` nobody matches."""

    entries: tuple[tuple[ReservationOwner, Predicate | None], ...]
    error: str = ""

    @classmethod
    def of(cls, owners: Iterable[ReservationOwner]) -> "ReservationOwners":
        entries = []
        try:
            for owner in owners:
                selector = owner.label_selector
                matches = label_selector.compile_selector(selector) if selector is not None else None
                entries.append((owner, matches))
        except ProtocolError as error:
            return cls((), str(error))
        return cls(tuple(entries))

    def match(self, pod: Pod) -> bool:
        """Return whether one entry fits in all that it says; an empty one fits every pod."""
        return any(
            (owner.object is None or _is_object(owner.object, pod))
            and (owner.controller is None or _is_controlled(owner.controller, pod))
            and (matches is None or matches(pod.metadata.labels))
            for owner, matches in self.entries
        )


class RequiredReservations(msgspec.Struct, frozen=True):
    """The requirements of a pod on reservations; `affinity` None: it may do without one."""

    is_ignoring: bool
    affinity: ReservationAffinity | None
    exact_names: tuple[str, ...]

    @classmethod
    def of(cls, pod: Pod) -> "RequiredReservations":
        """Raises: ProtocolError for a malformed annotation or an invalid selector term."""
        affinity = RESERVATION_AFFINITY.read(pod.metadata.annotations, pod.key)
        required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
        for term in required.reservation_selector_terms if required is not None else ():
            _check(term, pod.key)
        exact = EXACT_MATCH_RESERVATION.read(pod.metadata.annotations, pod.key)
        return cls(
            pod_labels.is_reservation_ignored(pod.metadata.labels),
            affinity,
            tuple(exact.resource_names) if exact is not None else (),
        )

    @property
    def tolerates_unschedulable(self) -> bool:
        """Return whether reservations that take no new owners will do, too."""
        return self.affinity is not None and is_tolerated(self.affinity.tolerations, UNSCHEDULABLE_TAINT)


class Availability(msgspec.Struct, frozen=True):
    """The answer whether a reservation, or a pod that is one, can take owners."""

    is_available: bool
    is_unschedulable: bool
    is_terminating: bool
    is_matchable: bool


def match(
    pod: Pod,
    required: RequiredReservations,
    requests: Amounts,
    reservation: Reservation,
    owners: ReservationOwners,
    node_labels: Mapping[str, str] | None,
) -> Match:
    """Return what a matchable reservation is to a pod.

    `requests` are the pod's; `node_labels` None leaves the node's labels out (`OmitNodeLabelsForReservation`).

    Raises: QuantityError for malformed amounts of the reservation.
    """
    if required.is_ignoring:
        return Match(MatchOutcome.IGNORED)
    if not owners.match(pod):
        return Match(MatchOutcome.OWNER_UNMATCHED)
    return match_requirements(required, requests, reservation, node_labels)


def match_requirements(
    required: RequiredReservations,
    requests: Amounts,
    reservation: Reservation,
    node_labels: Mapping[str, str] | None,
) -> Match:
    """Return the same whoever the owners are: what the pod itself says of reservations. Raises: QuantityError."""
    affinity = required.affinity
    if affinity is not None and affinity.name:
        # A name is as good as a decision: nothing else but the amounts is looked at.
        if affinity.name != reservation.metadata.name:
            return Match(MatchOutcome.NAME_UNMATCHED)
    elif refusal := _refusal(required, reservation, node_labels):
        return refusal
    is_exact = is_exact_match(required.exact_names, requests, objects.requests(reservation))
    return Match(MatchOutcome.MATCHED if is_exact else MatchOutcome.NOT_EXACT_MATCHED)


def is_exact_match(names: Sequence[str], requests: Amounts, allocatable: Amounts) -> bool:
    """Return whether the pod asks for exactly what is reserved of the named resources.

    A name that neither side has ends the comparison as a match: so it has always been, and users rely on it.
    """
    for name in names:
        if name not in requests and name not in allocatable:
            return True
        if requests.get(name) != allocatable.get(name):
            return False
    return True


def availability(reservation: Reservation, owners: ReservationOwners, used_count: int) -> Availability:
    """Return whether a reservation that so many pods use can take another one."""
    is_deleted = reservation.metadata.deletion_timestamp is not None
    is_available = objects.is_available(reservation)
    is_barred = bool(owners.error) or (objects.is_once(reservation) and used_count > 0)
    return Availability(
        is_available,
        reservation.spec.unschedulable or is_deleted,
        is_deleted,
        is_available and not is_barred,
    )


def _refusal(
    required: RequiredReservations, reservation: Reservation, node_labels: Mapping[str, str] | None
) -> Match | None:
    """Return why a reservation that is not asked for by name is not for the pod."""
    is_closed = reservation.spec.unschedulable or reservation.metadata.deletion_timestamp is not None
    if is_closed and not required.tolerates_unschedulable:
        return Match(MatchOutcome.UNSCHEDULABLE)
    if required.affinity is None:
        return None
    for taint in reservation.spec.taints:
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not is_tolerated(
            required.affinity.tolerations, taint
        ):
            return Match(MatchOutcome.TAINT_UNTOLERATED, taint)
    if not _is_selected(required.affinity, reservation, node_labels or {}):
        return Match(MatchOutcome.AFFINITY_UNMATCHED)
    return None


def _is_selected(
    affinity: ReservationAffinity, reservation: Reservation, node_labels: Mapping[str, str]
) -> bool:
    """Return whether both selectors hold on the node's labels under the reservation's own."""
    found = {**node_labels, **reservation.metadata.labels}
    if any(found.get(key) != value for key, value in affinity.reservation_selector.items()):
        return False
    required = affinity.required_during_scheduling_ignored_during_execution
    return required is None or any_term_holds(
        required.reservation_selector_terms, found, reservation.metadata.name
    )


def _check(term: NodeSelectorTerm, obj: str) -> None:
    """Raises: ProtocolError for an operator or values that cannot be."""
    for each in (*term.match_expressions, *term.match_fields):
        match each.operator:
            case "In" | "NotIn":
                is_well = bool(each.values)
            case "Exists" | "DoesNotExist":
                is_well = not each.values
            case "Gt" | "Lt":
                is_well = len(each.values) == 1 and each.values[0].lstrip("+-").isdigit()
            case _:
                is_well = False
        if not is_well:
            reason = f"operator {each.operator!r} of key {each.key!r} cannot have values {each.values}"
            raise ProtocolError(obj, labels.RESERVATION_AFFINITY, reason)


def _is_object(wanted: ObjectReference, pod: Pod) -> bool:
    meta = pod.metadata
    return (
        wanted.uid in ("", meta.uid)
        and wanted.name in ("", meta.name)
        and wanted.namespace in ("", meta.namespace)
        and wanted.api_version in ("", POD_API_VERSION)
    )


def _is_controlled(wanted: ReservationController, pod: Pod) -> bool:
    in_namespace = wanted.namespace in ("", pod.metadata.namespace)
    return in_namespace and any(_is_owner(wanted, each) for each in pod.metadata.owner_references)


def _is_owner(wanted: ReservationController, owner: OwnerReference) -> bool:
    return (
        (wanted.controller is None or wanted.controller == owner.controller)
        and wanted.uid in ("", owner.uid)
        and wanted.name in ("", owner.name)
        and wanted.kind in ("", owner.kind)
        and wanted.api_version in ("", owner.api_version)
    )


_RESERVATION_LEVEL = "Reservation(s) "


class NodeCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Reservations of one node by outcome, and the texts with which filters refused the node.

    `owner_matched` includes all that follow; `taints` counts by `{key: value}`.
    """

    owner_matched: int = 0
    name_matched: int = 0
    name_unmatched: int = 0
    affinity_unmatched: int = 0
    unschedulable: int = 0
    not_exact_matched: int = 0
    ignored: int = 0
    taints: dict[str, int] = {}
    filter_reasons: list[str] = []

    @property
    def left(self) -> int:
        """Reservations that only the node itself can have kept out."""
        unmatched = (
            self.name_unmatched + self.affinity_unmatched + self.unschedulable + self.not_exact_matched
        )
        refused = sum(reason.startswith(_RESERVATION_LEVEL) for reason in self.filter_reasons)
        return self.owner_matched - unmatched - sum(self.taints.values()) - refused


def reasons(nodes: Mapping[str, NodeCounts], has_affinity: bool) -> list[str]:
    """Return the texts of the status; none when reservations had no part in the failure."""
    counts: Sequence[NodeCounts] = list(nodes.values())
    total = sum(each.owner_matched for each in counts)
    if total == 0 and not has_affinity:
        return []
    taints: Counter[str] = Counter()
    of_nodes: Counter[str] = Counter()
    for each in counts:
        taints.update(each.taints)
        for reason in each.filter_reasons:
            if not reason.startswith(_RESERVATION_LEVEL) and each.left > 0:
                of_nodes[reason] += each.left
    counted = [
        (sum(each.name_matched for each in counts), "exactly matches the requested reservation name"),
        (sum(each.name_unmatched for each in counts), "didn't match the requested reservation name"),
        (sum(each.affinity_unmatched for each in counts), "didn't match affinity rules"),
        (sum(each.unschedulable for each in counts), "is unschedulable"),
        (sum(each.not_exact_matched for each in counts), "is not exact matched"),
        *((taints[taint], f"had untolerated taint {taint}") for taint in sorted(taints)),
        *((of_nodes[reason], f"for node reason that {reason}") for reason in sorted(of_nodes)),
    ]
    texts = [f"{number} Reservation(s) {text}" for number, text in counted if number]
    return [*texts, f"{total} Reservation(s) matched owner total"]
