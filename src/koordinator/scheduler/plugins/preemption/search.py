"""Nodes that a preemptor could get: dry runs over all of them, as arrays where that gives the same answer.

Most preemptors only lack resources. For them, what would be left on each node without its less important pods
is a subtraction over columns, and who may stay is decided for hundreds of nodes at once. Nodes where another
filter has a say that depends on pods are tried one by one on the node table. Source: behaviour/scheduler B7.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin import capabilities
from koordinator.scheduler.plugin.framework import Diagnosis, FilterPlugin, Handle, Mask, ReasonCodes
from koordinator.scheduler.plugin.status import Status, error, unresolvable
from koordinator.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.victims import (
    PRIORITY_OFFSET,
    Budgets,
    Candidate,
    Residents,
    Victim,
)
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of

NOBODY = -1


class PotentialNodes(msgspec.Struct, frozen=True):
    """Nodes without their less important pods, and what the preemptor wants of them.

    `used` and `capacity` are (resources, nodes), only of resources that the preemptor wants; `pods` and
    `pods_max` are (nodes,); `wanted` is (resources,).
    """

    used: I64
    capacity: I64
    pods: I64
    pods_max: I64
    wanted: I64


def victims_of(order: I64, amounts: I64, room: PotentialNodes) -> Mask:
    """(nodes, ranks): the pods that have to go; each stays if the preemptor still fits beside it and those that
    stay already.

    `order` (nodes, ranks) tells who is asked in turn, as an index into `amounts` (resources, pods), `NOBODY`
    where a node has fewer pods.

    The same answer as `victims.select` gives for one node and one question at a time.
    Source: behaviour/scheduler B7 (4).
    """
    used, pods = room.used.copy(), room.pods.copy()
    must_go = np.zeros(order.shape, np.bool_)
    for rank in range(order.shape[1]):
        who = order[:, rank]
        is_there = who != NOBODY
        more = np.where(is_there, amounts[:, who], 0)
        fits = (used + more + room.wanted[:, None] <= room.capacity).all(axis=0)
        stays = is_there & fits & (pods + 2 <= room.pods_max)
        used += np.where(stays, more, 0)
        pods += stays
        must_go[:, rank] = is_there & ~stays
    return must_go


class VictimCosts(msgspec.Struct, frozen=True):
    """The losses that `victims.rank` compares, per node: each (nodes,)."""

    violations: I64
    top: I64
    priorities: I64
    counts: I64
    earliest_s: npt.NDArray[np.float64]


def losses_of(
    order: I64,
    must_go: Mask,
    priorities: I64,
    starts_s: npt.NDArray[np.float64],
    is_protected: Mask,
) -> VictimCosts:
    """Return what each node loses. Shapes: `order` (nodes, slots) are indices of pods, `must_go` (nodes, slots);
    `priorities`, `starts_s` and `is_protected` (pods,)."""
    prio = np.where(must_go, priorities[order], np.iinfo(np.int64).min)
    top = prio.max(axis=1)
    is_top = must_go & (prio == top[:, None])
    return VictimCosts(
        violations=(must_go & is_protected[order]).sum(axis=1),
        top=top,
        priorities=np.where(must_go, priorities[order] + PRIORITY_OFFSET, 0).sum(axis=1),
        counts=must_go.sum(axis=1),
        earliest_s=np.where(is_top, starts_s[order], np.inf).min(axis=1),
    )


def in_ranks(node_of: I64, keys: tuple[npt.NDArray[np.generic], ...], node_count: int) -> I64:
    """(nodes, ranks): pods by node, each node's sorted by `keys` (the first counts most), equal ones as given.

    `node_of` (pods,) numbers the nodes from 0.
    """
    sorted_pods = np.lexsort((*reversed(keys), node_of))
    counts = np.bincount(node_of, minlength=node_count)
    first = np.cumsum(counts) - counts
    order = np.full((node_count, int(counts.max(initial=0))), NOBODY, np.int64)
    nodes = node_of[sorted_pods]
    order[nodes, np.arange(sorted_pods.size) - first[nodes]] = sorted_pods
    return order


NO_VICTIMS = unresolvable("No preemption victims found for incoming pod")
CHUNK = 256
"""Nodes whose victims are chosen together: a fraction of the candidates that are usually wanted."""

Filters = Sequence[tuple[FilterPlugin[Any], Any]]


class RankedCandidate(msgspec.Struct, frozen=True):
    """A node that a preemptor could get: how much that would hurt (`victims.rank`), and the details."""

    node_name: str
    rank: tuple[float, ...]
    candidate: Callable[[], Candidate]


class FoundCandidates(msgspec.Struct, frozen=True):
    """Options in the order of the search, and of nodes that are none why, counted by reason; these are complete
    when there is no option."""

    options: list[RankedCandidate]
    refusals: Counter[str]

    @property
    def best(self) -> Candidate | None:
        """Return the option that hurts least; the first of equal ones."""
        found = min(self.options, key=lambda option: option.rank, default=None)
        return found.candidate() if found is not None else None


class Search:
    """Dry runs. Nothing is changed for good."""

    def __init__(self, handle: Handle, budgets: Budgets) -> None:
        self._table = handle.table
        self._residents = handle.table.shared(Residents)
        self._budgets = budgets
        self._nominations = handle.nominations
        self._clock = handle.clock

    def run(self, pod: PodInfo, rows: Rows, diagnosis: Diagnosis, wanted: int) -> FoundCandidates:
        """Return options among `rows` (rows,), in this order, until there are `wanted`, one of them without harm to a
        budget."""
        found = FoundCandidates([], Counter())
        if rows.size and not self._residents.below(pod.priority).size:
            # As the outlook would say of each row; most pods that wait are no more important than those that run.
            found.refusals.update(dict.fromkeys(NO_VICTIMS.reasons, int(rows.size)))
            return found
        outlook = _Outlook(self, pod, rows, diagnosis)
        harmless_count = 0
        for row, answer in self._answers(pod, rows, diagnosis, outlook):
            if isinstance(answer, RankedCandidate):
                found.options.append(answer)
                harmless_count += answer.rank[0] == 0
                if harmless_count and len(found.options) >= wanted:
                    break
            elif answer is not None:
                found.refusals.update(answer.reasons)
            else:
                found.refusals.update(outlook.refusal_of(row).reasons)
        return found

    def _answers(
        self, pod: PodInfo, rows: Rows, diagnosis: Diagnosis, outlook: "_Outlook"
    ) -> Iterator[tuple[int, RankedCandidate | Status | None]]:
        """Yield what becomes of each row: an option, why it is none, or None when the outlook says why."""
        for start in range(0, rows.size, CHUNK):
            chunk = rows[start : start + CHUNK]
            plain = outlook.is_plain[start : start + CHUNK]
            options = dict(self._choose(pod, chunk[plain], outlook)) if plain.any() else {}
            for position, row in enumerate(chunk.tolist(), start):
                if outlook.is_plain[position]:
                    yield row, options[row]
                elif outlook.is_open[position]:
                    yield row, self._option(self.try_row(pod, row, diagnosis))
                else:
                    yield row, None

    def _option(self, answer: Candidate | Status) -> RankedCandidate | Status:
        if isinstance(answer, Status):
            return answer
        return RankedCandidate(answer.node_name, victims.rank(answer), lambda: answer)

    # One by one

    def try_row(self, pod: PodInfo, row: int, diagnosis: Diagnosis) -> Candidate | Status:
        """Return the candidate that a node makes, or why it is none, by moving pods in a trial."""
        now_s = self._clock.now()
        there = self._table.pods_at(row).values()
        removed = [Victim.of(each, now_s) for each in there if victims.is_preemptible(each, pod)]
        return try_without(removed, self._table, row, self._budgets, diagnosis)

    # Many at once

    def _choose(
        self, pod: PodInfo, rows: Rows, outlook: "_Outlook"
    ) -> Iterator[tuple[int, RankedCandidate | Status]]:
        """Options of rows where nothing but resources decides."""
        residents, now_s = self._residents, self._clock.now()
        pods: list[PodInfo] = []
        counts = []
        for row in rows.tolist():
            there = [e for e in self._table.pods_at(row).values() if victims.is_preemptible(e, pod)]
            pods += there
            counts.append(len(there))
        slots = np.fromiter((residents.slot_of(each.uid) for each in pods), np.intp, len(pods))
        node_of = np.repeat(np.arange(rows.size), counts)
        priorities, starts_s = residents.priorities[slots], residents.starts_s[slots]
        starts_s = np.where(np.isnan(starts_s), now_s, starts_s)
        by_importance = (-priorities, starts_s)
        is_protected = self._protected(pods, in_ranks(node_of, by_importance, rows.size))
        order = in_ranks(node_of, (~is_protected, *by_importance), rows.size)
        amounts = residents.amounts_of(outlook.columns, slots)
        must_go = victims_of(order, amounts, outlook.room(rows))
        losses = losses_of(order, must_go, priorities, starts_s, is_protected)
        for index, row in enumerate(rows.tolist()):
            name = self._table.name_of(row)
            if not losses.counts[index]:
                yield row, _nobody_has_to_go(name)
                continue
            whole = (losses.violations, losses.top, losses.priorities, losses.counts)
            rank = (*(int(values[index]) for values in whole), -float(losses.earliest_s[index]))
            gone = order[index, must_go[index]].tolist()

            def candidate(
                name: str = name, gone: list[int] = gone, rank: tuple[float, ...] = rank
            ) -> Candidate:
                chosen = victims.by_importance(Victim.of(pods[each], now_s) for each in gone)
                return Candidate(name, tuple(chosen), int(rank[0]))

            yield row, RankedCandidate(name, rank, candidate)

    def _protected(self, pods: Sequence[PodInfo], order: I64) -> Mask:
        """(pods,): whose going would violate a budget; `order` (nodes, ranks) is by importance."""
        is_protected = np.zeros(len(pods), np.bool_)
        covering = [self._budgets.covering(each) for each in pods]
        is_covered = np.array([bool(keys) for keys in covering], np.bool_)
        if not is_covered.any():
            return is_protected
        for ranks in order:
            covered = [each for each in ranks.tolist() if each != NOBODY and covering[each]]
            if covered:
                is_protected[covered] = self._budgets.violating(covering[each] for each in covered)
        return is_protected


def try_without(
    removed: Sequence[Victim],
    table: NodeTable,
    row: int,
    budgets: Budgets,
    diagnosis: Diagnosis,
    may_stay: Callable[[], bool] = lambda: True,
) -> Candidate | Status:
    """Return the candidate that a node makes of which `removed` may go, or why it is none, by moving them in a trial;
    `may_stay` as for `victims.select`."""
    if not removed:
        return NO_VICTIMS
    name = table.name_of(row)
    with trial_of(table) as trial:
        for victim in removed:
            trial.take(victim.pod)
        status = diagnosis.check(row)
        if not status.is_success:
            return status
        chosen, violations = victims.select(
            removed,
            budgets,
            put_back=lambda victim: trial.add(victim.pod, name),
            take=lambda victim: trial.take(victim.pod),
            fits=lambda: diagnosis.check(row).is_success,
            may_stay=may_stay,
        )
    return Candidate(name, chosen, violations) if chosen else _nobody_has_to_go(name)


class _Outlook:
    """The foreseen answers of the filters about each row if all less important pods were gone.

    `is_open` are rows where the preemptor would fit as far as can be told without a trial; `is_plain` those of
    them where from there on only resources decide. Of the others, `refusal_of` says why.
    """

    def __init__(self, search: Search, pod: PodInfo, rows: Rows, diagnosis: Diagnosis) -> None:
        self._table = search._table
        self._search = search
        self._pod = pod
        self._refusals: dict[int, Callable[[], Status]] = {}
        self.columns: list[int] = []
        self._wanted: list[int] = []
        self._counts_pods = False
        filters = diagnosis.active_filters()
        self._read_fit(filters or ())
        self._held, self._held_pods = search._residents.freed(pod.priority, self.columns)
        has_victims = self._held_pods[rows] > 0
        self.is_open = has_victims.copy()
        for row in rows[~has_victims].tolist():
            self._refusals[row] = lambda: NO_VICTIMS
        is_exact = np.full(rows.size, filters is None, np.bool_)
        is_exact |= np.isin(rows, self._nominated_rows())
        is_exact |= np.isin(rows, list(search._table.tied_rows()))
        for plugin, state in filters or ():
            if isinstance(plugin, capabilities.NodeTransformer) and plugin.shows_nodes(state):
                # To the pod these rows are otherwise than the table says: it has reservations there.
                is_exact |= np.isin(rows, list(plugin.shown_rows(state)))
        for plugin, state in filters or ():
            self._ask(plugin, state, rows, is_exact)
        self.is_plain = self.is_open & ~is_exact

    def refusal_of(self, row: int) -> Status:
        return self._refusals[row]()

    def room(self, rows: Rows) -> PotentialNodes:
        """Return rows without their less important pods."""
        table = self._table
        cells = np.ix_(np.array(self.columns, np.intp), rows)
        pods_max = table.pods_max[rows]
        return PotentialNodes(
            used=table.requested[cells] - self._held[:, rows],
            capacity=table.allocatable[cells],
            pods=table.pod_count[rows] - self._held_pods[rows],
            pods_max=pods_max if self._counts_pods else np.full_like(pods_max, np.iinfo(np.int64).max),
            wanted=np.array(self._wanted, np.int64),
        )

    def _read_fit(self, filters: Filters) -> None:
        for plugin, state in filters:
            if isinstance(plugin, NodeResourcesFit):
                self._counts_pods = True
                self.columns = [column for column, _ in state.checked]
                self._wanted = [amount for _, amount in state.checked]

    def _nominated_rows(self) -> list[int]:
        """Return rows that other pods wait for, too: both have to fit."""
        nominations = self._search._nominations
        names = [name for name in nominations.nodes if nominations.that_count(name, self._pod)]
        found = (self._table.row_of(name) for name in names)
        return [row for row in found if row is not None]

    def _ask(self, plugin: FilterPlugin[Any], state: Any, rows: Rows, is_exact: Mask) -> None:
        """Let one filter close rows, or mark those that only a trial can decide."""
        undecided = np.flatnonzero(self.is_open & ~is_exact)
        if undecided.size == 0:
            return
        undecided = undecided[np.argsort(rows[undecided], kind="stable")]
        asked = rows[undecided]
        if type(plugin) is NodeResourcesFit:
            codes = plugin.filter_without(state, asked, self._held, self._held_pods)
            is_known = np.ones(asked.size, np.bool_)
        else:
            codes = plugin.filter(state, asked)
            is_known = _is_known(plugin, state, asked, codes)
        is_exact[undecided[~is_known]] = True
        is_refused = is_known & (codes != 0)
        self.is_open[undecided[is_refused]] = False
        for row, code in zip(asked[is_refused].tolist(), codes[is_refused].tolist(), strict=True):
            self._refusals[row] = partial(plugin.refusal, state, code)


def _is_known(plugin: FilterPlugin[Any], state: Any, rows: Rows, codes: ReasonCodes) -> Mask:
    """Return rows where the plugin answers the same whichever of the less important pods are there."""
    if capabilities.ignores_pods(plugin):
        return np.ones(rows.size, np.bool_)
    is_known = ~plugin.pods_matter(state, rows)
    return is_known | (codes == 0) if plugin.fewer_pods_help else is_known


def _nobody_has_to_go(name: str) -> Status:
    return error(f'expected at least one victim pod on node "{name}"')
