"""Gangs that cannot start as things are fail before the first member takes a place.

How many members nodes could take is bounded from above from the evaluations that members share anyway and from what is
free. A kind of members is counted as if there were no others; of a mixture nodes take no more than of pods that ask for
the least that any kind asks for, and all together no more than is free. A gang for which the bounds are too small would
hold places for the length of its round, out of the reach of others, and give them back. Where nobody can tell, nobody
is refused.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMode
from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine.view import Prospects, prospects_of
from koordinator.scheduler.plugin.capabilities import JobRefusal, ResizePodPlugin
from koordinator.scheduler.plugin.framework import Handle, Plugin, PostFilterPlugin, PostFilterResult, Watch
from koordinator.scheduler.plugin.reservation_capabilities import ReservePods
from koordinator.scheduler.plugin.status import SKIP, Status, fit_error, listed, unresolvable, unschedulable
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.plugins.coscheduling.gangs import Gang, uid_of
from koordinator.scheduler.plugins.coscheduling.job_preemptor import PreemptReason
from koordinator.scheduler.plugins.coscheduling.running import NAME, RunningGangs
from koordinator.scheduler.plugins.network_topology import slots
from koordinator.scheduler.plugins.network_topology.slots import Slots
from koordinator.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koordinator.scheduler.plugins.preemption.plugin import NOT_HELPFUL
from koordinator.scheduler.plugins.preemption.search import NO_VICTIMS
from koordinator.scheduler.plugins.preemption.victims import Residents
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

Amounts = Mapping[int, int]
"""Column → what one member asks for."""


class GangDemand(msgspec.Struct, frozen=True):
    """The demand of each gang: how many members more have to get a place, and how many there are of each kind without
    one."""

    needed: Mapping[str, int]
    members: Mapping[str, Counter[int]]

    @property
    def total(self) -> int:
        return sum(self.needed.values())

    def forced(self, kind: int) -> dict[str, int]:
        """Gang → members of the kind that it cannot do without."""
        found = {}
        for gang, count in self.needed.items():
            others = self.members[gang].total() - self.members[gang][kind]
            if count > others:
                found[gang] = count - others
        return found


class MemberClass(msgspec.Struct, frozen=True, eq=False):
    """Members that are alike. Nodes take no more of them than `slots` say; `wanted` is what one of them asks for, None
    where nodes are not asked about amounts."""

    members: tuple[PodInfo, ...]
    slots: Slots
    wanted: Amounts | None


class HeadRoom(msgspec.Struct, frozen=True, eq=False):
    """`counts` (kinds, rows) are members that rows could take of each kind alone; `free` maps columns to what is free
    (rows,), `free_pods` (rows,)."""

    counts: I64
    free: Mapping[int, I64]
    free_pods: I64


class MemberShortage(msgspec.Struct, frozen=True):
    """The shortage: of `needed` members of the gangs no more than `fitting` could get a place; `kind` None: of all
    kinds."""

    gangs: tuple[str, ...]
    needed: int
    fitting: int
    kind: int | None


def as_is(table: NodeTable, kinds: Sequence[MemberClass]) -> HeadRoom:
    """Return the room that there is."""
    counts = np.array([kind.slots.counts for kind in kinds])
    columns = {column for kind in kinds for column in kind.wanted or ()}
    return HeadRoom(counts, {column: table.free[column] for column in columns}, table.free_pods)


def without(
    table: NodeTable, kinds: Sequence[MemberClass], held: Mapping[int, I64], held_pods: I64
) -> HeadRoom:
    """Return the room that there would be if pods were gone that hold so much: `held` (rows,) per column, `held_pods`
    (rows,) of them. Filters other than that for amounts are taken to let members pass then where evictions may help."""
    now = as_is(table, kinds)
    free = {column: amounts + held[column] for column, amounts in now.free.items()}
    free_pods = now.free_pods + held_pods
    counts = now.counts.copy()
    for number, kind in enumerate(kinds):
        found = free_pods
        for column, amount in (kind.wanted or {}).items():
            found = np.minimum(found, free[column] // amount)
        is_useful = (held_pods > 0) & ~kind.slots.evaluation.unresolvable_rows()
        counts[number] = np.where(is_useful, np.maximum(counts[number], found), counts[number])
    return HeadRoom(counts, free, free_pods)


def shortage_of(demand: GangDemand, room: HeadRoom, kinds: Sequence[MemberClass]) -> MemberShortage | None:
    """Return what the gangs surely lack; None when they may find room."""
    wanted = [kind.wanted for kind in kinds]
    for kind, counts in enumerate(room.counts):
        forced = demand.forced(kind)
        needed, fitting = sum(forced.values()), int(counts.sum())
        if fitting < needed:
            return MemberShortage(tuple(forced), needed, fitting, kind)
    known = [amounts for amounts in wanted if amounts is not None]
    if len(wanted) < 2 or len(known) < len(wanted):
        return None
    fitting = min(_mixed(room, known), _by_amounts(demand, room, known))
    if fitting < demand.total:
        return MemberShortage(tuple(demand.needed), demand.total, fitting, None)
    return None


def _mixed(room: HeadRoom, wanted: Sequence[Amounts]) -> int:
    """Return members of any kinds that rows take if all ask for as little as the most modest one."""
    counts = np.minimum(room.counts.sum(axis=0), room.free_pods)
    for column, free in room.free.items():
        least = min(amounts.get(column, 0) for amounts in wanted)
        if least > 0:
            counts = np.minimum(counts, free // least)
    return int(np.maximum(counts, 0).sum())


def _by_amounts(demand: GangDemand, room: HeadRoom, wanted: Sequence[Amounts]) -> int:
    """Return members, the most modest of each gang, that the free amounts of all rows together would do for."""
    fitting = demand.total
    rows: Rows = np.flatnonzero(room.counts.any(axis=0))
    for column, free in room.free.items():
        left = int(np.maximum(free[rows], 0).sum())
        found = 0
        for amount, count in sorted(_most_modest(demand, wanted, column).items()):
            taken = count if amount <= 0 else min(count, left // amount)
            left -= taken * amount
            found += taken
        fitting = min(fitting, found)
    return fitting


def _most_modest(demand: GangDemand, wanted: Sequence[Amounts], column: int) -> Counter[int]:
    """Amount → members that ask for it, of those of each gang that ask for least."""
    found: Counter[int] = Counter()
    for gang, needed in demand.needed.items():
        kinds = sorted(demand.members[gang].items(), key=lambda item: wanted[item[0]].get(column, 0))
        for kind, count in kinds:
            taken = min(needed, count)
            found[wanted[kind].get(column, 0)] += taken
            needed -= taken
    return found


KINDS_MAX = 16
"""Kinds of members that are looked at: each is a question to all nodes."""


class GangShortage(msgspec.Struct, frozen=True, eq=False):
    """The places that a gang lacks, and what is told of it. `about` is the kind whose events can help."""

    text: str
    about: MemberClass
    rejected_by: frozenset[str]
    filters: frozenset[str]
    """Filters that the member that is tried has to pass."""
    eviction: PostFilterResult | None = None
    """Reason for which evicting pods for single members is in vain; None where that is looked at for all of them."""
    must_layer: str = ""

    def status_of(self, row: int) -> Status:
        """Return why a node does not take the whole gang; success where it does."""
        return self.about.slots.status_of(row)

    def slots_of(self, row: int) -> int:
        """Return how many members a node takes by itself."""
        return int(self.about.slots.counts[row]) if self.about.slots.evaluation.is_feasible(row) else 0

    def refusal_of(self, pod: PodInfo, *, is_for_jobs: bool) -> JobRefusal:
        """For the member that is tried. PostFilter plugins shall make room for it only if they do so for whole jobs
        (`is_for_jobs`)."""
        message = ", ".join(filter(None, (listed(self.about.slots.reason_counts()), self.text)))
        by = min(self.rejected_by & self.filters, default=min(self.filters, default=""))
        status = unschedulable(message) if is_for_jobs else unresolvable(message)
        about = self.about.members[0]
        is_alike = any(member.uid == pod.uid for member in self.about.members)
        return JobRefusal(status.by(by), self.rejected_by, pod if is_alike else about, self)


class EarlyRefusals:
    """The early refusals of one profile. `is_aware`: gangs that ask for a network topology are planned, and not looked
    at here."""

    def __init__(self, handle: Handle, gangs: RunningGangs, *, is_aware: bool, is_for_jobs: bool) -> None:
        self._handle = handle
        self._gangs = gangs
        self._is_aware = is_aware
        self._is_for_jobs = is_for_jobs
        self._keys: dict[str, tuple[PodInfo, Hashable]] = {}
        handle.watch(Watch(Pod, lambda _: None, lambda _, __: None, self._forget))
        ReservePods.of(handle).follow(lambda _: None, self._forget)

    def _forget(self, pod: Pod) -> None:
        self._keys.pop(uid_of(pod), None)

    def shortage(self, pod: PodInfo) -> GangShortage | None:
        """Return what the gang group of a pod lacks that starts a round; None when the round may succeed, when room may
        be made for the one member that fails it, and where nobody can tell."""
        group = self._gangs.group_of(pod.pod)
        gangs = self._gangs.rounds.cache.members_of(group) if group is not None else []
        if not gangs or not self._may_judge(gangs):
            return None
        needed = self._needed(pod, gangs)
        total = sum(needed.values())
        prospects = prospects_of(self._handle, pod)
        if total < 2 or prospects is None or self._is_ample(prospects, pod, gangs, total):
            return None
        return self._search(prospects, pod, [gang for gang in gangs if gang.gang_id in needed], needed)

    def _may_judge(self, gangs: Sequence[Gang]) -> bool:
        if all(gang.config.mode is GangMode.NON_STRICT for gang in gangs):
            return False  # members keep the places that they find
        if self._is_aware and any(gang.config.topology is not None for gang in gangs):
            return False
        # Members may turn out smaller than they look.
        return not (
            self._handle.gates.is_on("ResizePod") and self._handle.companions(ResizePodPlugin)  # type: ignore[type-abstract]
        )

    def _needed(self, pod: PodInfo, gangs: Iterable[Gang]) -> dict[str, int]:
        """Gang → members that have to get a place, the pod in any case."""
        rounds, own = self._gangs.rounds, gang_id_of(pod.pod)
        found = {gang.gang_id: max(rounds.lacking(gang), int(gang.gang_id == own)) for gang in gangs}
        return {gang_id: count for gang_id, count in found.items() if count > 0}

    # A glance

    def _is_ample(self, prospects: Prospects, pod: PodInfo, gangs: Iterable[Gang], total: int) -> bool:
        """Return whether there is no need to look at all members: there is a node for each one, or else nodes take
        enough of them, or of the pod nothing else is to be said than that no node takes it."""
        kinds = {self._lasting_key(prospects, pod): pod}
        for info in self._samples(pod, gangs):
            kinds.setdefault(self._lasting_key(prospects, info), info)
        evaluations = [prospects.evaluate(info, key) for key, info in kinds.items()]
        counts = [each.feasible_count for each in evaluations]
        if not counts[0] or min(counts) >= total:
            return True
        if len(kinds) > 1:
            return False
        found = slots.bound(self._handle, prospects, evaluations[0], -(-total // counts[0]))
        return found is None or int(found.counts.sum()) >= total

    def _samples(self, pod: PodInfo, gangs: Iterable[Gang]) -> Iterator[PodInfo]:
        """Yield of each gang the member that came first, or the last one: a leader and its workers differ."""
        own = pod.key
        for gang in gangs:
            first = next(iter(gang.pending), "")
            info = self._gangs.info(first if first != own else next(reversed(gang.pending)))
            if info is not None:
                yield info

    def _lasting_key(self, prospects: Prospects, pod: PodInfo) -> Hashable:
        """Equal for members that look the same."""
        known = self._keys.get(pod.uid)
        if known is None or known[0] is not pod:
            known = self._keys[pod.uid] = (pod, prospects.lasting_key(pod))
        return known[1]

    # All members

    def _search(
        self, prospects: Prospects, pod: PodInfo, gangs: Sequence[Gang], needed: Mapping[str, int]
    ) -> GangShortage | None:
        sorted_out = self._by_kind(prospects, pod, gangs)
        if sorted_out is None:
            return None
        alike, members = sorted_out
        demand = GangDemand(needed, members)
        kinds: list[MemberClass] = []
        for (lasting_key, _), pods in alike.items():
            kind = self._kind(prospects, lasting_key, pods, demand.total)
            if kind is None:
                return None
            kinds.append(kind)
        missing = shortage_of(demand, as_is(self._handle.table, kinds), kinds)
        if missing is None:
            return None
        eviction = None if self._is_for_jobs else self._eviction(demand, kinds)
        if eviction is not None and eviction.status.is_skip:
            return None
        active = prospects.evaluate(pod).active_filters() or ()
        return _refusal_of(missing, gangs, kinds, frozenset(plugin.name for plugin, _ in active), eviction)

    def _by_kind(
        self, prospects: Prospects, pod: PodInfo, gangs: Iterable[Gang]
    ) -> tuple[dict[tuple[Hashable, Hashable], list[PodInfo]], dict[str, Counter[int]]] | None:
        """Return members without a place by what nodes say to them, and for each gang how many there are of which of
        these kinds, by number; None for members of several profiles, and for too many kinds."""
        alike: dict[tuple[Hashable, Hashable], list[PodInfo]] = {}
        numbers: dict[tuple[Hashable, Hashable], int] = {}
        members: dict[str, Counter[int]] = {}
        for gang in gangs:
            members[gang.gang_id] = Counter()
            for info in map(self._gangs.info, gang.startable()):
                if info is None or info.pod.spec.scheduler_name != pod.pod.spec.scheduler_name:
                    return None
                key = self._lasting_key(prospects, info), prospects.live_key(info)
                number = numbers.setdefault(key, len(numbers))
                if number == KINDS_MAX:
                    return None
                alike.setdefault(key, []).append(info)
                members[gang.gang_id][number] += 1
        return alike, members

    def _kind(
        self, prospects: Prospects, lasting_key: Hashable, alike: Sequence[PodInfo], total: int
    ) -> MemberClass | None:
        """None when nodes may take more of them than anybody can tell."""
        evaluation = prospects.evaluate(alike[0], lasting_key)
        found = slots.bound(self._handle, prospects, evaluation, total)
        filters = evaluation.active_filters() or ()
        if found is None or any(isinstance(plugin, PostFilterPlugin) for plugin, _ in filters):
            return None  # or the filter makes room itself (claims that nobody needs)
        wanted = next(
            (dict(state.checked) for each, state in filters if isinstance(each, NodeResourcesFit)), None
        )
        return MemberClass(tuple(alike), found, wanted)

    def _eviction(self, demand: GangDemand, kinds: Sequence[MemberClass]) -> PostFilterResult:
        """Return what PostFilter plugins would come to that make room for single members; Skip when that may help."""
        others = (each for each in self._handle.companions(Plugin) if each.name != NAME)
        if not any(isinstance(each, PostFilterPlugin) for each in others):
            return PostFilterResult(unresolvable())
        pods = [pod for kind in kinds for pod in kind.members if pod.pod.spec.preemption_policy != "Never"]
        if not pods:
            return PostFilterResult(unresolvable(f"preemption: {PreemptReason.NEVER.value}"))
        priority = max(pod.priority for pod in pods)
        columns = sorted({column for kind in kinds for column in kind.wanted or ()})
        table = self._handle.table
        held, held_pods = table.shared(Residents).freed(priority, columns)
        hopeless = np.logical_and.reduce([kind.slots.evaluation.unresolvable_rows() for kind in kinds])
        is_open = ~hopeless[table.rows]
        if not held_pods[table.rows][is_open].any():
            open_count = int(is_open.sum())
            reasons = {NO_VICTIMS.message: open_count, NOT_HELPFUL: is_open.size - open_count}
            counts = {reason: count for reason, count in reasons.items() if count}
            text = fit_error(table.node_count, counts)
            return PostFilterResult(unresolvable(f"preemption: {text}"), nominated_node="")
        room = without(table, kinds, dict(zip(columns, held, strict=True)), held_pods)
        if shortage_of(demand, room, kinds) is None:
            return PostFilterResult(SKIP)
        return PostFilterResult(unresolvable(f"preemption: {PreemptReason.NO_ROOM.value}"), nominated_node="")


def _refusal_of(
    missing: MemberShortage,
    gangs: Sequence[Gang],
    kinds: Sequence[MemberClass],
    filters: frozenset[str],
    eviction: PostFilterResult | None,
) -> GangShortage:
    by_id = {gang.gang_id: gang for gang in gangs}
    concerned = [by_id[gang_id] for gang_id in missing.gangs]
    # Of all kinds together, the one that most nodes take hears of most of what can help.
    about = max(kinds, key=lambda kind: int(kind.slots.counts.sum()))
    if missing.kind is not None:
        about = kinds[missing.kind]
    names = ", ".join(missing.gangs)
    needs = f"gangs {names} need" if len(concerned) > 1 else f"gang {names} needs"
    more = "more " if any(gang.placed_count or gang.waiting_count for gang in concerned) else ""
    like = f" like {about.members[0].key}" if missing.kind is not None and len(kinds) > len(gangs) else ""
    text = (
        f"{needs} {missing.needed} {more}member{'s' * (missing.needed > 1)}{like}, "
        f"at most {missing.fitting} fit{'s' * (missing.fitting == 1)} now"
    )
    return GangShortage(text, about, about.slots.rejected_by(), filters, eviction)
