"""Keep what reservations hold on nodes and which pods use them, in step with the node table.

In the table a reserve pod holds what its owners leave of it: so to strangers a node shows the larger of what is
reserved and what is used, without anybody having to work it out for them. For owners the rest is free again once
the reserve pod is taken off the row (`Trial.take`). Source: behaviour/reservations 3 and 6.

A running pod in operating mode Reservation is a record, too, with itself as reserve pod.

The ledger follows from API objects alone: Reservations, and pods that name the one that they use. Any of them may come
first.
"""

import logging
from collections.abc import Callable, Collection, Iterable

import msgspec

from koordinator.api import labels, node_reservation, pod_labels, resource_list, resource_vector
from koordinator.api.annotations.node import NODE_RESERVATION
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.reservation import (
    CURRENT_OWNER,
    RESERVATION_ALLOCATED,
    RESTRICTED_OPTIONS,
    Reservation,
)
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.plugins.reservation import fit, matching, objects, preallocation
from koordinator.scheduler.plugins.reservation.fit import Ints, ReservationAmounts
from koordinator.scheduler.plugins.reservation.owner_index import GroupNumbers, OwnerGroup, OwnerIndex
from koordinator.scheduler.table.columns import RowChange, discard, tally
from koordinator.scheduler.table.holdings import HoldingKeeper
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)


class ReservationTerms(msgspec.Struct, frozen=True):
    """All of a Reservation that does not depend on who uses it."""

    reservation: Reservation
    whole: PodInfo
    """The reserve pod with all that is reserved."""
    allocatable: Ints
    names: tuple[str, ...]
    """Resources that it accounts for."""
    kept: Ints
    """Amount that owners may not use."""
    order: int
    is_once: bool
    has_current_owner: bool = False
    """An operating pod says that somebody has taken it over."""

    @classmethod
    def of(cls, reservation: Reservation, registry: ResourceRegistry) -> "ReservationTerms":
        """Raises: ProtocolError, QuantityError."""
        annotations = reservation.metadata.annotations
        amounts = objects.requests(reservation)
        allocatable = fit.ints(resource_list.to_wire(amounts))
        names = sorted(allocatable)
        if reservation.spec.allocate_policy == RESTRICTED:
            options = RESTRICTED_OPTIONS.read(annotations, reservation.key)
            names = objects.restricted_names(names, options.resources if options is not None else None)
        keeps = NODE_RESERVATION.read(annotations, reservation.key)
        kept = node_reservation.amounts(keeps) if keeps is not None else {}
        return cls(
            reservation=reservation,
            whole=PodInfo.of(objects.reserve_pod(reservation), registry),
            allocatable=allocatable,
            names=tuple(names),
            kept=fit.ints(resource_list.to_wire(kept)),
            order=preallocation.order_of(reservation.metadata.labels.get(labels.RESERVATION_ORDER, "")),
            is_once=objects.is_once(reservation),
        )

    @classmethod
    def of_pod(cls, pod: Pod, registry: ResourceRegistry) -> "ReservationTerms":
        """A pod in operating mode Reservation. Raises: ProtocolError, QuantityError."""
        reservation = objects.operating_reservation(pod)
        allocatable = fit.ints(reservation.status.allocatable)
        return cls(
            reservation=reservation,
            whole=PodInfo.of(pod, registry),
            allocatable=allocatable,
            names=tuple(sorted(allocatable)),
            kept={},
            order=preallocation.order_of(pod.metadata.labels.get(labels.RESERVATION_ORDER, "")),
            is_once=True,
            has_current_owner=CURRENT_OWNER.read(pod.metadata.annotations, f"Pod {pod.key}") is not None,
        )


RESTRICTED = "Restricted"


class ReservationRecord:
    """A Reservation that holds room, and the pods that use it."""

    def __init__(self, terms: ReservationTerms, group: OwnerGroup) -> None:
        self.terms = terms
        self.group = group
        self.row: int | None = None
        self.owners: dict[str, PodInfo] = {}
        """Pods on its node that use it, by uid."""
        self.allocated: Ints = {}
        self.is_spent = False
        """A pod that has ended, or is gone, used it, and no status says so yet."""
        self.version = 0
        """Grows with every change."""

    @property
    def uid(self) -> str:
        return self.reservation.metadata.uid

    @property
    def name(self) -> str:
        return self.reservation.metadata.name

    @property
    def reservation(self) -> Reservation:
        return self.terms.reservation

    @property
    def availability(self) -> matching.Availability:
        """Return whether it can take another owner."""
        return matching.availability(self.reservation, self.group.owners, self.used_count)

    @property
    def used_count(self) -> int:
        """Return how many pods use it, one that has ended included where that was the last one it is for."""
        return len(self.owners) + (self.is_spent or self.terms.has_current_owner)

    @property
    def amounts(self) -> ReservationAmounts:
        """Return it as far as amounts go."""
        terms = self.terms
        return ReservationAmounts(
            name=self.name,
            is_restricted=self.reservation.spec.allocate_policy == RESTRICTED,
            allocatable=terms.allocatable,
            allocated=self.allocated,
            kept=terms.kept,
            names=terms.names,
            pods=len(self.owners),
        )

    def count(self, registry: ResourceRegistry) -> None:
        """Work out anew what owners use."""
        self.version += 1
        used = resource_list.sum_of(registry.named(owner.requests) for owner in self.owners.values())
        self.allocated = resource_list.mask(used, self.terms.names)

    def rest(self, registry: ResourceRegistry) -> PodInfo:
        """Return the reserve pod holding what owners leave."""
        if not self.owners:
            return self.terms.whole
        names, whole = registry.names, self.terms.whole
        left = {
            column: max(amount - self.allocated.get(names[column], 0), 0) for column, amount in whole.requests
        }
        used = [
            sum(column) for column in zip(*(o.nonzero_amounts for o in self.owners.values()), strict=True)
        ]
        columns = (resource_vector.CPU_COLUMN, resource_vector.MEMORY_COLUMN)
        nonzero = [
            max(amount - by_owners, 0) if names[column] in self.terms.names else amount
            for column, amount, by_owners in zip(columns, whole.nonzero_amounts, used, strict=True)
        ]
        return whole.holding(left, tuple(nonzero))


class ReservationLedger(HoldingKeeper[str, bool]):
    """Records by uid and by row, and the use of reservations by pods: what a pod holds is the uid of the one that it
    uses, and of a use that was decided here we know whether it is written on the pod."""

    annotations = (labels.RESERVATION_ALLOCATED,)

    def __init__(self, table: NodeTable) -> None:
        super().__init__(table)
        self.index = OwnerIndex()
        self._records: dict[str, ReservationRecord] = {}
        self._at: dict[int, dict[str, ReservationRecord]] = {}
        self._used: dict[str, str] = {}
        """Pod on a node → the reservation that it uses, known or not."""
        self._users: dict[str, dict[str, int]] = {}
        """Reservation → its pods, with their rows."""
        self.on_offer: Callable[[str], None] | None = None
        """Called with the uid of an operating pod whose room came or changed."""
        self._spent: set[str] = set()
        """Reservations for one owner whose owner has ended, known or not."""

    # Reading

    def __len__(self) -> int:
        return len(self._records)

    def find(self, uid: str) -> ReservationRecord | None:
        """Return the record of a Reservation that holds room."""
        return self._records.get(uid)

    def at(self, row: int) -> Collection[ReservationRecord]:
        """Return the reservations on a row."""
        found = self._at.get(row)
        return found.values() if found is not None else ()

    def rows_of(self, groups: GroupNumbers) -> set[int]:
        """Return the rows with reservations of some groups."""
        found = [self.index.group(number) for number in groups]
        return {row for group in found if group is not None for row in group.rows}

    @property
    def rows(self) -> Collection[int]:
        """Return the rows with reservations."""
        return self._at.keys()

    def tied_rows(self) -> Iterable[int]:
        return [row for row, there in self._at.items() if any(record.owners for record in there.values())]

    def used_by(self, pod_uid: str) -> str | None:
        """Return the uid of the reservation that a pod on a node uses."""
        return self._used.get(pod_uid)

    def users_of(self, uid: str) -> list[PodInfo]:
        """Return the pods on any node that use a reservation, known or not."""
        places = [self._table.place_of(each) for each in self._users.get(uid, ())]
        return [place.pod for place in places if place is not None]

    def is_placed(self, pod_uid: str) -> bool:
        """Return whether a pod counts on a node at this moment: within trials it may not."""
        return self._table.place_of(pod_uid) is not None

    # Reservations

    def put(self, reservation: Reservation) -> ReservationTerms:
        """Keep a Reservation that holds room, or its new state; the caller brings its reserve pod into the table after
        that. Raises: ProtocolError, QuantityError when it cannot be read; its last state stays."""
        terms = ReservationTerms.of(reservation, self._table.registry)
        self._put(terms)
        return terms

    def _put(self, terms: ReservationTerms) -> None:
        reservation = terms.reservation
        uid = reservation.metadata.uid
        record = self._records.get(uid)
        if record is None:
            record = self._records[uid] = ReservationRecord(terms, self.index.join(reservation.spec.owners))
            record.is_spent = uid in self._spent
            return
        is_regrouped = record.reservation.spec.owners != reservation.spec.owners
        row = record.row
        if is_regrouped and row is not None:
            self._leave_row(record)
        record.terms = terms
        if is_regrouped:
            self.index.leave(record.group)
            record.group = self.index.join(reservation.spec.owners)
            if row is not None:
                self._join_row(record, row)
        self._recount(record)

    def remove(self, uid: str) -> None:
        """Forget a Reservation; its pods become plain ones. Its reserve pod leaves the table after that."""
        record = self._records.pop(uid, None)
        if record is None:
            return
        if record.row is not None:
            row = record.row
            self._leave_row(record)
            self._table.changes.add(row, RowChange.PODS)
        self.index.leave(record.group)

    def spend(self, uid: str, is_spent: bool) -> None:
        """Say whether a pod that uses nothing any more has used up a reservation for one owner."""
        if is_spent == (uid in self._spent):
            return
        (self._spent.add if is_spent else self._spent.discard)(uid)
        record = self._records.get(uid)
        if record is not None:
            record.is_spent = is_spent
            self._recount(record)

    # Pods

    def use(self, pod: PodInfo, uid: str) -> None:
        """Let a pod that is assumed on a node use a reservation."""
        self._chosen[pod.uid] = False
        self._set_use(pod.uid, uid)

    def wrote(self, pod_uid: str) -> None:
        """The use is being written on the pod."""
        if pod_uid in self._chosen:
            self._chosen[pod_uid] = True

    def drop(self, pod_uid: str) -> str:
        """Undo `use`; return the uid of the reservation that is written on the pod all the same, empty for none."""
        is_written = self._chosen.pop(pod_uid, None)
        if is_written is None:
            return ""
        uid = self._used.get(pod_uid, "")
        self._set_use(pod_uid, None)
        return uid if is_written else ""

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if self._table.is_trial:
            if pod.uid not in self._aside and (record := self._records.get(pod.uid)) is not None:
                self._show(record)  # a reserve pod is back: everything is as before
        elif labels.RESERVE_POD in pod.pod.metadata.annotations:
            self._placed(row, pod.uid)
            return
        elif not self._is_assumed(pod.uid):
            self._follow_mode(row, pod)
        super().pod_assigned(row, pod)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if self._table.is_trial:
            return  # only amounts change in trials: those of reserve pods, by this ledger
        if labels.RESERVE_POD in new.pod.metadata.annotations:
            self._placed(row, new.uid)
        elif not self._is_assumed(new.uid):
            self._follow_mode(row, new)
            super().pod_changed(row, old, new)
            if not old.asks_like(new):
                self._recount_uid(self._used.get(new.uid, ""))

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        record = self._records.get(pod.uid)
        is_real = not self._table.is_trial
        if record is not None and is_real and pod_labels.is_operating_as_reservation(pod.pod.metadata.labels):
            self.remove(pod.uid)
        if labels.RESERVE_POD not in pod.pod.metadata.annotations:
            super().pod_unassigned(row, pod)
        elif is_real and record is not None and record.row is not None:
            self._leave_row(record)

    def _written(self, pod: PodInfo) -> str | None:
        annotations = pod.pod.metadata.annotations
        if labels.RESERVATION_ALLOCATED not in annotations:
            return None
        allocated = RESERVATION_ALLOCATED.read(annotations, f"Pod {pod.key}")
        return (allocated.uid or None) if allocated is not None else None

    def _held(self, row: int, pod: PodInfo) -> str | None:
        return self._used.get(pod.uid)

    def _hold(self, row: int, uid: str, held: str) -> bool:
        return self._set_use(uid, held)

    def _release(self, row: int, uid: str) -> bool:
        return self._set_use(uid, None, row)

    def _follow_mode(self, row: int, pod: PodInfo) -> None:
        """Keep a pod on a node as a reservation while its label says that it is one."""
        record = self._records.get(pod.uid)
        if record is not None and record.terms.whole.pod is pod.pod:
            self._placed(row, pod.uid)
            return
        terms = None
        if pod_labels.is_operating_as_reservation(pod.pod.metadata.labels):
            try:
                terms = ReservationTerms.of_pod(pod.pod, self._table.registry)
            except (ProtocolError, QuantityError) as problem:
                log.warning("pod is no reservation: %s", problem, extra={"pod": pod.key})
        if terms is not None:
            self._put(terms)
            self._placed(row, pod.uid)
            if self.on_offer is not None:
                self.on_offer(pod.uid)
        elif record is not None:
            self.remove(pod.uid)
            whole = PodInfo.of(pod.pod, self._table.registry)
            self._table.assign(whole, self._table.name_of(row))

    def _set_use(self, pod_uid: str, uid: str | None, left_row: int | None = None) -> bool:
        """Let a pod use another reservation than before, or none; `left_row` is where it was if it is gone. Return
        whether that is news."""
        before = self._used.get(pod_uid)
        place = self._table.place_of(pod_uid)
        row = place.row if place is not None else left_row
        if before == uid and (uid is None or self._users[uid].get(pod_uid) == row):
            return False
        if before is not None:
            del self._used[pod_uid]
            discard(self._users, before, pod_uid)
            self._recount_uid(before)
        if uid is not None and row is not None:
            self._used[pod_uid] = uid
            self._users.setdefault(uid, {})[pod_uid] = row
            self._recount_uid(uid)
        return True

    # Records

    def _placed(self, row: int, uid: str) -> None:
        """The reserve pod of a Reservation is on a row."""
        record = self._records.get(uid)
        if record is None:
            return  # it is on its way there: nobody may use it before it is available
        if record.row != row:
            if record.row is not None:
                self._leave_row(record)
            self._join_row(record, row)
            self._recount(record)
        else:
            self._show(record)

    def _join_row(self, record: ReservationRecord, row: int) -> None:
        record.row = row
        record.group.rows[row] += 1
        self._at.setdefault(row, {})[record.uid] = record

    def _leave_row(self, record: ReservationRecord) -> None:
        row = record.row
        assert row is not None
        record.row = None
        tally(record.group.rows, row, -1)
        discard(self._at, row, record.uid)

    def _recount_uid(self, uid: str) -> None:
        record = self._records.get(uid)
        if record is not None:
            self._recount(record)

    def _recount(self, record: ReservationRecord) -> None:
        """Follow a change of the record or of its users."""
        table, users = self._table, self._users.get(record.uid) or {}
        record.owners = {
            uid: place.pod
            for uid, row in users.items()
            if row == record.row and (place := table.place_of(uid)) is not None
        }
        record.count(table.registry)
        self._show(record)
        if record.row is not None:
            table.changes.add(record.row, RowChange.PODS)

    def _show(self, record: ReservationRecord) -> None:
        """Let the reserve pod hold in the table what owners leave."""
        place = self._table.place_of(record.uid)
        if place is None or place.row != record.row:
            return
        rest = record.rest(self._table.registry)
        if not place.pod.asks_like(rest):
            now = msgspec.structs.replace(rest, pod=place.pod.pod)
            self._table.assign(now, self._table.name_of(place.row), assumed=place.assumed)
