"""One NUMA hint out of those of all providers, by policy. Source: behaviour/numa-cpu 7.1, 7.3; behaviour/scheduler C1.

NodeNUMAResource asks every provider of its profile (`Handle.companions(NUMATopologyHintProvider)`, itself
included) for hints, merges them (`admit`), and asks every provider for a trial allocation with the outcome.
"""

import abc
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.scheduler.plugin.framework import Plugin, S
from koordinator.scheduler.plugin.reservation_capabilities import ReservationChoice
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.node_numa_resource.allocate import NUMAMask
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NUMAStatus
from koordinator.scheduler.table.pod_info import PodInfo


class NUMATopologyHint(msgspec.Struct, frozen=True):
    """NUMA nodes that would do; None stands for any."""

    numa_nodes: NUMAMask | None
    is_preferred: bool = True
    score: int = 0
    is_unsatisfied: bool = False
    """It stands for "impossible" and is there only so that the merge says so."""


Hints = Mapping[str, Sequence[NUMATopologyHint] | None]
"""Resource → hints in the order of generation; None is no preference, empty is impossible."""


class NUMAAdmission(msgspec.Struct, frozen=True):
    """The NUMA nodes that were chosen, and whether the policy admits the pod with them."""

    hint: NUMATopologyHint
    status: Status = SUCCESS


class Exclusivity(msgspec.Struct, frozen=True):
    """The demand of the pod on the NUMA nodes' other pods, and how those are."""

    is_required: bool = False
    statuses: Mapping[int, NUMAStatus] = {}

    def allows(self, numa_nodes: NUMAMask) -> bool:
        """Return whether several NUMA nodes disturb no pod that has one of them alone, or one is not shared."""
        if not self.is_required:
            return True
        refused = NUMAStatus.SINGLE if numa_nodes.bit_count() > 1 else NUMAStatus.SHARED
        return not any(s is refused and numa_nodes >> numa & 1 for numa, s in self.statuses.items())


NOT_EXCLUSIVE = Exclusivity()
_ANY = NUMATopologyHint(None)
_IMPOSSIBLE = NUMATopologyHint(None, is_preferred=False, is_unsatisfied=True)


def admit(
    policy: NUMATopologyPolicy,
    numa_nodes: NUMAMask,
    providers: Sequence[Hints],
    exclusivity: Exclusivity = NOT_EXCLUSIVE,
) -> NUMAAdmission:
    """Return the best combination of one hint per provider and resource, if the policy admits it.

    `policy` is one of the three that are not none; `numa_nodes` are all of the node.
    """
    lists, impossible, summaries = _collected(providers)
    if policy is NUMATopologyPolicy.BEST_EFFORT:
        best = best_hint(numa_nodes, lists, exclusivity)
        return NUMAAdmission(
            NUMATopologyHint(numa_nodes, is_preferred=False) if best.is_unsatisfied else best
        )
    is_single = policy is NUMATopologyPolicy.SINGLE_NUMA_NODE
    if impossible:
        anywhere = NUMATopologyHint(None if is_single else numa_nodes, is_preferred=False)
        return NUMAAdmission(anywhere, unschedulable(*impossible))
    if is_single:
        lists = [[hint for hint in hints if hint.is_preferred and _is_single(hint)] for hints in lists]
    best = best_hint(numa_nodes, lists, exclusivity)
    if is_single and best.numa_nodes == numa_nodes:
        best = NUMATopologyHint(None, best.is_preferred)
    if best.is_preferred:
        return NUMAAdmission(best)
    joiner = "," if is_single else " & "  # users know them so
    return NUMAAdmission(best, unschedulable(f"Unaligned NUMA Hint cause {joiner.join(sorted(summaries))}"))


def _is_single(hint: NUMATopologyHint) -> bool:
    return hint.numa_nodes is None or hint.numa_nodes.bit_count() == 1


def _collected(providers: Sequence[Hints]) -> tuple[list[list[NUMATopologyHint]], list[str], list[str]]:
    """Return a list of hints per provider and resource, reasons of what is impossible, and texts of the others."""
    lists: list[list[NUMATopologyHint]] = []
    impossible: list[str] = []
    summaries: list[str] = []
    for provider in providers:
        if not provider:
            lists.append([_ANY])
        for name in sorted(provider):
            hints = provider[name]
            if hints is None:
                lists.append([_ANY])
            elif not hints:
                lists.append([_IMPOSSIBLE])
                impossible.append(f"Unsatisfied NUMA {name}")
            else:
                lists.append(list(hints))
                summaries.append(_summary(name, hints))
    return lists, impossible, summaries


def _summary(name: str, hints: Sequence[NUMATopologyHint]) -> str:
    satisfied = [hint for hint in hints if not hint.is_unsatisfied]
    preferred = " ".join(mask_text(hint.numa_nodes) for hint in satisfied if hint.is_preferred)
    return f"{name} prefer [{preferred}] among [{' '.join(mask_text(hint.numa_nodes) for hint in satisfied)}]"


def mask_text(numa_nodes: NUMAMask | None) -> str:
    """Binary, the lowest id rightmost, at least two digits; longer masks get two digits more at each power of 4.
    Source: behaviour/numa-cpu 14.2."""
    if numa_nodes is None:
        return "<nil>"
    digits = 2
    while numa_nodes > 4 ** (digits // 2):
        digits += 2
    return f"{numa_nodes:0{digits}b}"


def best_hint(
    numa_nodes: NUMAMask,
    lists: Sequence[Sequence[NUMATopologyHint]],
    exclusivity: Exclusivity = NOT_EXCLUSIVE,
) -> NUMATopologyHint:
    """Return the best of all permutations, each being one hint out of every list.

    A permutation's NUMA nodes are those that all its hints share. It is preferred when its hints are preferred
    and name the same NUMA nodes. Preferred comes before narrow, narrow before score; among equally narrow ones
    a smaller mask always replaces, a larger one only with a higher score, so that the order of visits counts:
    the first list varies slowest.

    That product grows with the power of the number of lists, so it is not walked through: preferred
    permutations need equal masks, which leaves few; for the others, subtrees that cannot improve are cut.
    """
    best: _Permutation | None = None
    for permutation in _alike(lists, numa_nodes):
        if exclusivity.allows(permutation.numa_nodes) and permutation.is_better_than(best):
            best = permutation
    if best is not None:
        return best.hint(is_preferred=True)
    return _Search(numa_nodes, lists).run().hint(is_preferred=False)


class _Permutation(msgspec.Struct, frozen=True):
    """The combination of one hint of each list."""

    numa_nodes: NUMAMask
    score: int = 0
    is_unsatisfied: bool = False

    def hint(self, *, is_preferred: bool) -> NUMATopologyHint:
        return NUMATopologyHint(self.numa_nodes, is_preferred, self.score, self.is_unsatisfied)

    def is_better_than(self, best: "_Permutation | None") -> bool:
        """Return whether it replaces the best one so far, which is preferred as much."""
        if best is None:
            return True
        width, best_width = self.numa_nodes.bit_count(), best.numa_nodes.bit_count()
        if width != best_width:
            return width < best_width
        return self.numa_nodes < best.numa_nodes or self.score > best.score


def _alike(
    lists: Sequence[Sequence[NUMATopologyHint]],
    all_nodes: NUMAMask,
    chosen: tuple[NUMATopologyHint, ...] = (),
    common: NUMAMask = 0,
) -> Iterator[_Permutation]:
    """Yield the permutations of preferred hints that name the same NUMA nodes, in order."""
    if len(chosen) == len(lists):
        mask = all_nodes & common if common else all_nodes
        if mask:
            yield _permutation(mask, chosen)
        return
    for hint in lists[len(chosen)]:
        if hint.is_preferred and (not common or hint.numa_nodes is None or hint.numa_nodes == common):
            yield from _alike(lists, all_nodes, (*chosen, hint), common or hint.numa_nodes or 0)


class _Search:
    """The best permutation where none is preferred: depth first in order, without what cannot improve."""

    def __init__(self, all_nodes: NUMAMask, lists: Sequence[Sequence[NUMATopologyHint]]) -> None:
        self.all_nodes, self.lists = all_nodes, lists
        self.best: _Permutation | None = None
        self._suffixes = self._reachable_suffixes()
        self._scores = self._score_bounds()
        sizes = [mask.bit_count() for mask in self._suffixes[0] if mask]
        self._size = min(sizes, default=0)
        self._goals: dict[tuple[int, NUMAMask], list[NUMAMask]] = {}

    def _reachable_suffixes(self) -> list[set[NUMAMask]]:
        """Per depth, the intersections that the lists from there on can make."""
        suffixes = [{self.all_nodes}]
        for hints in reversed(self.lists):
            own = {_mask(hint, self.all_nodes) for hint in hints}
            suffixes.append({a & b for a in own for b in suffixes[-1]})
        return suffixes[::-1]

    def _score_bounds(self) -> list[dict[NUMAMask, int]]:
        """Per depth and NUMA nodes, the highest sum of scores that the lists from there on can add."""
        bounds: list[dict[NUMAMask, int]] = [{}]
        for hints in reversed(self.lists):
            highest: dict[NUMAMask, int] = {}
            for hint in hints:
                if hint.numa_nodes is not None:
                    highest[hint.numa_nodes] = max(highest.get(hint.numa_nodes, 0), hint.score)
            below = bounds[-1]
            bounds.append({m: highest.get(m, 0) + below.get(m, 0) for m in highest.keys() | below.keys()})
        return bounds[::-1]

    def run(self) -> _Permutation:
        start = _Permutation(self.all_nodes)
        if not self._size:
            return start
        if self._size == self.all_nodes.bit_count():
            self.best = start
        self._visit(0, self.all_nodes, ())
        return self.best or start

    def _visit(self, depth: int, mask: NUMAMask, chosen: tuple[NUMATopologyHint, ...]) -> None:
        if not self._can_improve(depth, mask, chosen):
            return
        if depth == len(self.lists):
            found = _permutation(mask, chosen)
            if found.is_better_than(self.best):
                self.best = found
            return
        for hint in self.lists[depth]:
            self._visit(depth + 1, mask & _mask(hint, self.all_nodes), (*chosen, hint))

    def _can_improve(self, depth: int, mask: NUMAMask, chosen: tuple[NUMATopologyHint, ...]) -> bool:
        key = (depth, mask)
        goals = self._goals.get(key)
        if goals is None:
            ends = {mask & suffix for suffix in self._suffixes[depth]}
            goals = self._goals[key] = sorted(end for end in ends if end.bit_count() == self._size)
        best = self.best
        if best is None or not goals or goals[0] < best.numa_nodes:
            return bool(goals)
        bounds = self._scores[depth]
        return any(_score(goal, chosen) + bounds.get(goal, 0) > best.score for goal in goals)


def _mask(hint: NUMATopologyHint, all_nodes: NUMAMask) -> NUMAMask:
    return all_nodes if hint.numa_nodes is None else all_nodes & hint.numa_nodes


def _score(mask: NUMAMask, chosen: Sequence[NUMATopologyHint]) -> int:
    return sum(hint.score for hint in chosen if hint.numa_nodes == mask)


def _permutation(mask: NUMAMask, chosen: Sequence[NUMATopologyHint]) -> _Permutation:
    widest = max((h.numa_nodes.bit_count() for h in chosen if h.numa_nodes is not None), default=0)
    is_unsatisfied = any(hint.is_unsatisfied for hint in chosen) or (
        widest != 0 and widest != mask.bit_count()
    )
    return _Permutation(mask, _score(mask, chosen), is_unsatisfied)


class ProvidedHints(msgspec.Struct, frozen=True):
    """Hints by resource (none at all: no preference), or why the node cannot hold the pod."""

    by_resource: Hints = {}
    status: Status = SUCCESS


class NUMATopologyHintProvider(Plugin[S]):
    """Knows which NUMA nodes can give a pod what it asks for."""

    @abc.abstractmethod
    def numa_hints(
        self, state: S, pod: PodInfo, row: int, choice: ReservationChoice | None = None
    ) -> ProvidedHints:
        """Sets of NUMA nodes of the node at `row` that would do. `state` is from the provider's `prepare`; `choice`:
        the pod would use this reservation, not the one that was nominated for it."""

    @abc.abstractmethod
    def try_numa(
        self,
        state: S,
        pod: PodInfo,
        row: int,
        hint: NUMATopologyHint,
        choice: ReservationChoice | None = None,
    ) -> Status:
        """Return whether the pod gets what it asks for from the chosen NUMA nodes (None in the hint: any)."""
