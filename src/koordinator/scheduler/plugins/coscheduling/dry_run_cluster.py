"""Try where a job could go if less important pods went, on the node table.

The amounts held by pods that may go are a sum over columns, so that only nodes are tried that can take a member as
far as resources are concerned, the cheapest ones first, and only as many as are needed. Source: behaviour/gangs 12.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import Diagnosis, Mask
from koordinator.scheduler.plugin.status import Status, count_reasons, fit_error
from koordinator.scheduler.plugins.coscheduling.jobs import (
    DrainCosts,
    JobResidents,
    PlacedPod,
    PreemptorJob,
    job_name,
)
from koordinator.scheduler.plugins.node_resources_fit import FitState, NodeResourcesFit
from koordinator.scheduler.plugins.preemption.plugin import NOT_HELPFUL
from koordinator.scheduler.plugins.preemption.victims import may_evict
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial

TAKEN_MAX = 16_384
"""Pods taken off nodes in one attempt, at about 10 µs each. Only a job that the columns let hope in vain on
hundreds of nodes gets there, and is told that there is no room."""

MANY = 1 << 40
"""Members that a node takes of a pod that asks for nothing."""

NO_VICTIMS = "no potential victims"

Rivals = Callable[[str, PodInfo], Iterable[str] | None]
"""Given a plugin that refused a pod as a whole: uids of the pods that use up what is limited, None when unknown."""


class TrialMemberClass(msgspec.Struct, eq=False):
    """Equal members: one of them is asked about for all. Masks are (table rows,)."""

    pod: PodInfo
    asked: Diagnosis
    is_open: Mask
    """Nodes that evictions may help."""
    is_free: Mask
    """Nodes that take such a pod as they are."""
    fit: tuple[NodeResourcesFit, FitState] | None
    is_wide: bool
    """Whether pods elsewhere matter to it."""
    filters: frozenset[str]
    """Filters that refuse it node by node."""

    @classmethod
    def of(cls, pod: PodInfo, asked: Diagnosis, rows: Rows) -> "TrialMemberClass":
        is_there = np.zeros(asked.unresolvable_rows().size, np.bool_)
        is_there[rows] = True
        active = asked.active_filters()
        filters = active or ()
        fit = next(((each, state) for each, state in filters if isinstance(each, NodeResourcesFit)), None)
        is_wide = any(plugin.looks_further() for plugin, _ in filters)
        is_open = is_there & ~asked.unresolvable_rows()
        # Nobody has looked at the nodes for a pod that was refused as a whole: any may take it.
        is_free = asked.feasible_rows() & is_there if active is not None else is_open
        names = frozenset(plugin.name for plugin, _ in filters)
        return cls(pod, asked, is_open, is_free, fit, is_wide, names)

    @property
    def wanted(self) -> tuple[tuple[int, int], ...]:
        """(column, amount) that a node must have."""
        return self.fit[1].checked if self.fit is not None else self.pod.requests


class PreemptionDryRun:
    """The cluster in thought: pods leave nodes and members of a job take their room, and nothing really happens.

    `diagnosis` is that of the job's trigger; `doomed` pods are being preempted, whether that shows yet or not; `spare`:
    see `PlacedPod`. Lives as long as `trial`.
    """

    def __init__(
        self,
        table: NodeTable,
        residents: JobResidents,
        trial: Trial,
        diagnosis: Diagnosis,
        job: PreemptorJob,
        *,
        doomed: Collection[str] = (),
        rivals: Rivals = lambda _plugin, _pod: None,
        spare: Callable[[PodInfo], int] = lambda _: 0,
    ) -> None:
        self._table = table
        self._residents = residents
        self._trial = trial
        self._asked = diagnosis
        self._job = job
        self._own = {pod.uid for pod in job.pods}
        self._doomed = doomed
        self._rivals = rivals
        self._spare = spare
        self._kinds: list[TrialMemberClass] = []
        self._kind_of: dict[str, int] = {}
        self._cleared: dict[int, list[PlacedPod]] = {}
        self._visited: set[int] = set()
        """Nodes that were tried as they are."""
        self._placed: dict[int, dict[int, list[PodInfo]]] = {}
        """Row → kind → members there."""
        self._refused: dict[tuple[int, int], tuple[int, Status | None]] = {}
        """(kind, row) → when the node refused such a pod, and why if it was asked."""
        self._moves: Counter[int] = Counter()
        self._taken_count = 0
        self._clearings = 0
        self._refuser = ""
        """The plugin that refuses members as a whole, wherever they would go (a quota)."""
        self._see_kinds()
        self._see_victims()

    def _see_kinds(self) -> None:
        numbers: dict[Hashable, int] = {}
        rows = self._table.rows
        for key, pod in self._job.members.items():
            kind = self._asked.class_key(pod)
            number = numbers.get(kind)
            if number is None:
                number = numbers[kind] = len(self._kinds)
                is_trigger = kind == self._asked.class_key(self._job.trigger)
                asked = self._asked if is_trigger else self._asked.about(pod)
                self._kinds.append(TrialMemberClass.of(pod, asked, rows))
                if is_trigger:
                    self._refuser = min(asked.rejected_by - self._kinds[number].filters, default="")
            self._kind_of[key] = number

    def _see_victims(self) -> None:
        residents, capacity = self._residents, self._table.capacity
        is_candidate = np.zeros(capacity, np.bool_)
        for kind in self._kinds:
            is_candidate |= kind.is_open
        slots = residents.below(self._job.trigger.priority)
        slots = slots[is_candidate[residents.rows[slots]]]
        own = self._slots_of(self._own)
        slots = slots[~np.isin(slots, own)] if own else slots
        rows = residents.rows[slots]
        self._columns = sorted({column for kind in self._kinds for column, _ in kind.wanted})
        self._held = np.zeros((len(self._columns), capacity), np.int64)
        for held, amounts in zip(self._held, residents.amounts_of(self._columns, slots), strict=True):
            np.add.at(held, rows, amounts)
        self._held_pods = np.bincount(rows, minlength=capacity)
        # Whoever leaves anyhow costs nothing.
        staying = slots[~(residents.is_leaving[slots] | np.isin(slots, self._slots_of(self._doomed)))]
        self._costs = DrainCosts(
            residents.rows[staying], residents.priorities[staying], residents.jobs[staying], capacity
        )
        self._costs_by_row = self._costs.combined
        self._candidates = np.flatnonzero(is_candidate)
        by_name = sorted(self._candidates.tolist(), key=self._table.name_of)
        self._by_name: I64 = np.zeros(capacity, np.int64)
        self._by_name[by_name] = np.arange(len(by_name))

    def _slots_of(self, uids: Iterable[str]) -> list[int]:
        return [self._residents.slot_of(uid) for uid in uids if self._table.place_of(uid) is not None]

    def _may_go(self, pod: PodInfo) -> bool:
        return may_evict(self._job.trigger, pod) and pod.uid not in self._own

    # Choosing nodes

    @property
    def has_victims(self) -> bool:
        """Return whether the job may evict anybody from the nodes that come into question."""
        return bool(self._held_pods.any())

    def clear(self, members: Sequence[PodInfo]) -> Sequence[str]:
        """Take all that the job may evict off more nodes, the cheapest ones first: about as many nodes as these
        members need. The nodes to try now; none when there are no more."""
        needed = Counter(self._kind_of[member.key] for member in members)
        if not self._clearings and self._is_beyond_all(needed):
            return ()
        visited = list(self._free_rows(needed))
        self._visited.update(visited)
        # Where the columns are no guide, more nodes each time.
        factor = 1 << self._clearings
        chosen = self._cheapest(
            Counter({kind: count * factor for kind, count in needed.items() if count > 0})
        )
        self._clearings += bool(chosen)
        for row in chosen:
            self._clear(row)
        if self._refuser and chosen:
            # A pod that is refused as a whole is so until enough others are gone, wherever they were.
            visited, chosen = sorted(self._visited - self._cleared.keys()), list(self._cleared)
        return [self._table.name_of(row) for row in (*visited, *chosen)]

    def _is_beyond_all(self, needed: Counter[int]) -> bool:
        """Return whether all nodes together are too small for the members of a kind."""
        for number, count in needed.items():
            kind = self._kinds[number]
            is_useful = kind.is_free | (kind.is_open & (self._held_pods > 0))
            if int(np.where(is_useful, self._slots(kind), 0).sum()) < count:
                return True
        return False

    def _free_rows(self, needed: Counter[int]) -> Iterator[int]:
        """Yield nodes that take members as they are, enough for all of them; these members are needed no more."""
        for number, kind in enumerate(self._kinds):
            if needed[number] <= 0:
                continue
            rows = np.flatnonzero(kind.is_free)
            slots = self._slots(kind, rows, with_held=False)
            for row, count in sorted(
                zip(rows.tolist(), slots.tolist(), strict=True), key=lambda pair: self._table.name_of(pair[0])
            ):
                if needed[number] <= 0:
                    break
                if count > 0 and row not in self._visited and row not in self._cleared:
                    needed[number] -= count
                    yield row

    def _cheapest(self, needed: Counter[int]) -> list[int]:
        """Return nodes that hold so many members of each kind once they are cleared, as far as the columns tell."""
        slots = {
            number: np.where(self._kinds[number].is_open, self._slots(self._kinds[number]), 0)
            for number in needed
        }
        is_left = self._held_pods > 0
        is_left[list(self._cleared)] = False
        if self._refuser and (rivals := self._of_rivals(is_left, needed.total())):
            return rivals
        chosen: list[int] = []
        count = self._taken_count
        while needed and count < TAKEN_MAX:
            is_useful = is_left & np.logical_or.reduce([slots[number] > 0 for number in needed])
            rows = np.flatnonzero(is_useful)
            if not rows.size:
                break
            while rows.size and count < TAKEN_MAX:
                row, rows = self._next_of(rows)
                is_left[row] = False
                chosen.append(row)
                count += int(self._held_pods[row])
                if self._fill(row, needed, slots):
                    break  # one kind is complete: nodes for that kind alone are of no use any more
        return chosen

    def _of_rivals(self, is_left: Mask, wanted: int) -> list[int]:
        """So many nodes with pods that use up what members are refused for, whether members fit there or not."""
        rows = np.flatnonzero(is_left & self._has_rivals())
        chosen: list[int] = []
        while rows.size and len(chosen) < wanted and self._taken_count < TAKEN_MAX:
            row, rows = self._next_of(rows)
            chosen.append(row)
        return chosen

    def _next_of(self, rows: Rows) -> tuple[int, Rows]:
        """Return the cheapest node, and the others."""
        position = self._costs.cheapest(rows, self._by_name)
        row = int(rows[position])
        self._costs.hit(row)
        return row, np.delete(rows, position)

    def _has_rivals(self) -> Mask:
        """(table rows,): where pods may go that use up what members are refused for."""
        found = np.zeros(self._table.capacity, np.bool_)
        for kind in self._kinds:
            rivals = self._rivals(self._refuser, kind.pod)
            if rivals is None:
                return self._held_pods > 0
            for uid in rivals:
                place = self._table.place_of(uid)
                if place is not None and self._may_go(place.pod):
                    found[place.row] = True
        return found

    def _fill(self, row: int, needed: Counter[int], slots: Mapping[int, I64]) -> bool:
        """Count members as placed on a cleared node; whether a kind is complete by that."""
        room = {column: int(held[row]) for column, held in zip(self._columns, self._room(), strict=True)}
        is_complete = False
        for number in list(needed):
            kind, fitting = self._kinds[number], int(slots[number][row])
            for column, amount in kind.wanted:
                fitting = min(fitting, room[column] // amount)
            fitting = max(0, min(fitting, needed[number]))
            for column, amount in kind.wanted:
                room[column] -= fitting * amount
            needed[number] -= fitting
            if needed[number] == 0:
                del needed[number]
                is_complete = True
        return is_complete

    def _room(self) -> Iterator[I64]:
        """Per column (table rows,): what is free once all that may go has gone."""
        table = self._table
        for column, held in zip(self._columns, self._held, strict=True):
            yield table.free[column] + held

    def _slots(self, kind: TrialMemberClass, rows: Rows | None = None, *, with_held: bool = True) -> I64:
        """Return how many such members nodes take as far as resources go: (rows,), of all table rows without `rows`."""
        table = self._table
        which: Rows | slice = slice(None) if rows is None else rows
        found: I64 = table.free_pods[which] + (self._held_pods[which] if with_held else 0)
        found = np.minimum(found, MANY)
        for column, amount in kind.wanted:
            held = self._held[self._columns.index(column)][which] if with_held else 0
            found = np.minimum(found, (table.free[column][which] + held) // amount)
        return np.maximum(found, 0)

    def room_for(self, member: PodInfo) -> I64:
        """Return how many such members nodes would take once all that may go has gone, as far as resources tell:
        (table rows,)."""
        kind = self._kinds[self._kind_of[member.key]]
        return np.where(kind.is_open | kind.is_free, self._slots(kind), 0)

    # Moving pods

    def _clear(self, row: int) -> None:
        table, name = self._table, self._table.name_of(row)
        gone = [pod for pod in table.pods_at(row).values() if self._may_go(pod)]
        self._cleared[row] = [self._occupant(pod, name) for pod in gone]
        for pod in gone:
            self._trial.take(pod)
        self._taken_count += len(gone)
        self._moves[row] += 1
        # They are free now, and held no more.
        self._held[:, row] = 0
        self._held_pods[row] = 0

    def _occupant(self, pod: PodInfo, node: str) -> PlacedPod:
        place = self._table.place_of(pod.uid)
        return PlacedPod(
            pod=pod,
            node=node,
            job=job_name(pod.pod),
            spare=self._spare(pod),
            is_terminating=pod.uid in self._doomed or pod.pod.metadata.deletion_timestamp is not None,
            is_waiting=place is not None and place.assumed,
        )

    def cleared(self) -> Mapping[str, Sequence[PlacedPod]]:
        """Node → the pods that were taken off it, in the order of clearing."""
        return {self._table.name_of(row): pods for row, pods in self._cleared.items()}

    def costs(self) -> Mapping[str, int]:
        """Node → what it costs that the pods which were taken off it go, whatever goes elsewhere."""
        return {self._table.name_of(row): int(self._costs_by_row[row]) for row in self._cleared}

    def may_hold(self, pods: Sequence[PlacedPod]) -> bool:
        """A first glance: False only where pods of a node could not all come back."""
        more: dict[int, Counter[int]] = {}
        for pod in pods:
            row = self._table.row_of(pod.node)
            if row is not None and row in self._placed:
                more.setdefault(row, Counter()).update(dict(pod.pod.requests))
        return not any(
            self._is_short(self._kinds[number], row, held)
            for row, held in more.items()
            for number in self._placed[row]
        )

    def put_back(self, pods: Sequence[PlacedPod]) -> None:
        """Put the pods back where they were."""
        for pod in pods:
            self._trial.add(pod.pod, pod.node)

    def take(self, pods: Sequence[PlacedPod]) -> None:
        """Take them off their nodes."""
        for pod in pods:
            self._trial.take(pod.pod)

    def place(self, node: str, member: PodInfo) -> bool:
        """Put a member on a node if that takes it beside what is there; return whether it does."""
        row = self._table.row_of(node)
        assert row is not None, node
        number = self._kind_of[member.key]
        kind = self._kinds[number]
        stamp = self._clearings if self._refuser or kind.is_wide else 0
        stamp = stamp << 32 | self._moves[row]
        known = self._refused.get((number, row))
        if known is not None and known[0] == stamp:
            return False
        status: Status | None = None
        if not self._is_short(kind, row, dict(kind.wanted)):
            status = kind.asked.check(row)
        if status is None or not status.is_success:
            self._refused[number, row] = (stamp, status)
            if status is not None and status.plugin not in kind.filters:
                self._refuser = status.plugin
            return False
        self._trial.add(member, node)
        self._moves[row] += 1
        self._placed.setdefault(row, {}).setdefault(number, []).append(member)
        return True

    def _is_short(self, kind: TrialMemberClass, row: int, more: Mapping[int, int]) -> bool:
        """Return whether resources are known to refuse such a member if so much more (column → amount) was held."""
        if kind.fit is None:
            return False
        free = self._table.free
        return any(int(free[column, row]) < more.get(column, 0) for column, _ in kind.wanted)

    def holds(self, nodes: Collection[str]) -> bool:
        """Return whether the members that pods on these nodes matter to can be where they are."""
        rows = {row for name in nodes if (row := self._table.row_of(name)) is not None}
        if any(self._is_short(self._kinds[n], row, {}) for row in rows for n in self._placed.get(row, ())):
            return False
        return all(self._still_fits(number, row) for number, row in self._concerned(rows))

    def _concerned(self, rows: Collection[int]) -> Iterator[tuple[int, int]]:
        """Kinds with a node, of which one member has to be asked about when pods came back to `rows`."""
        seen: set[int] = set()
        for row in rows:
            for number in self._placed.get(row, ()):
                seen.add(number)
                yield number, row
        is_everywhere = any(kind.is_wide for kind in self._kinds)
        for row, kinds in self._placed.items():
            for number in kinds if row not in rows else ():
                if is_everywhere or number not in seen:
                    seen.add(number)
                    yield number, row

    def _still_fits(self, number: int, row: int) -> bool:
        pod = self._placed[row][number][-1]
        self._table.unassign(pod.uid)
        try:
            return self._kinds[number].asked.check(row).is_success
        finally:
            self._table.assign(pod, self._table.name_of(row), assumed=True)

    # Words

    def failure(self, members: Sequence[PodInfo]) -> str:
        """Return why no node takes the first of these members, in words."""
        reasons: Counter[str] = Counter()
        number = self._kind_of[members[0].key] if members else 0
        kind = self._kinds[number]
        rows = self._table.rows
        if not members:
            # Where evictions could help on some nodes the others are not listed, as in the reference.
            if open_count := int(kind.is_open.sum()):
                reasons[NO_VICTIMS] = open_count
            elif hopeless_count := int((~kind.is_free)[rows].sum()):
                reasons[NOT_HELPFUL] = hopeless_count
            return fit_error(self._table.node_count, reasons)
        asked = [(status, 1) for status in self._answers(number)]
        reasons.update(count_reasons([*asked, *self._short(number)]))
        return fit_error(self._table.node_count, reasons)

    def _answers(self, number: int) -> Iterator[Status]:
        for row in {*self._cleared, *self._visited}:
            _, status = self._refused.get((number, row), (0, None))
            yield status or self._kinds[number].asked.check(row)

    def _short(self, number: int) -> Iterator[tuple[Status, int]]:
        """Refusals of nodes that were left alone because resources would not do, with how many there are."""
        kind = self._kinds[number]
        if kind.fit is None:
            return
        plugin, state = kind.fit
        is_left = kind.is_open.copy()
        is_left[[*self._cleared, *self._visited]] = False
        rows = np.flatnonzero(is_left)
        # As if other members were there already, as many as a node takes.
        others = self._slots(kind)
        held = np.array(
            [self._held[self._columns.index(column)] - others * amount for column, amount in state.checked]
        )
        codes = plugin.filter_without(state, rows, held, self._held_pods - others)
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            if code:
                yield plugin.refusal(state, int(code)), int(count)
