"""A node for each member of a gang, by the network and by what the nodes really take. Source: behaviour/gangs 15.

Members that are alike are planned in one go. Of members that differ, those that are hardest to place go first,
each kind into what the kinds before it left. A plan that nodes cannot judge one by one is tried as a whole.
For explanations, `outlook` counts how many members each place would take.
"""

from collections.abc import Generator, Hashable, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine.view import Prospects, prospects_of
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.status import SUCCESS, Status, fit_error
from koordinator.scheduler.plugin.topology_tree import TopologyTree
from koordinator.scheduler.plugins.network_topology import placement, slots
from koordinator.scheduler.plugins.network_topology.placement import (
    Offer,
    Offers,
    PlanReason,
    TopologyPlacement,
    TopologyRequirement,
)
from koordinator.scheduler.plugins.network_topology.slots import Attraction, Slots, TreeRows, selector_of
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, trial_of

CANDIDATES_MAX = 64
"""Places of one layer into which members that differ are tried to be packed."""
CORRECTIONS_MAX = 8
"""Plans made anew because a node did not take its members beside those on other nodes."""


class PlanningJob(msgspec.Struct, frozen=True, eq=False):
    """The job to be placed: `members` without a place, in planning order.

    `least` are the fewest of them that are worth placing, `bound` the nodes of members that have a place, `costs` what
    it costs to use a node: of places that suit equally well the cheapest is taken.
    """

    members: tuple[PodInfo, ...]
    rules: tuple[GatherStrategy, ...] = ()
    least: tuple[PodInfo, ...] = ()
    bound: tuple[str, ...] = ()
    costs: Mapping[str, int] = {}


class PlanningMemberClass(msgspec.Struct, frozen=True, eq=False):
    """Members that are alike, and how many of them each node takes by itself."""

    members: tuple[PodInfo, ...]
    prospects: Prospects
    slots: Slots
    by_leaf: I64


Groups = Sequence[Sequence[PodInfo]]
"""Members by kind."""


class JobPlan(msgspec.Struct, frozen=True, eq=False):
    """`plan` names members by uid; `kinds` tell what nodes said, the hardest to place first."""

    plan: TopologyPlacement
    kinds: tuple[PlanningMemberClass, ...]
    node_count: int
    must_layer: str = ""

    @property
    def message(self) -> str:
        """Return why there is no place; empty when there is one."""
        if not self.kinds:
            return self.plan.message(fit_error(0, {}))
        return self.plan.message(self.kinds[0].slots.fit_error(self.node_count))

    @property
    def rejected_by(self) -> frozenset[str]:
        """Plugins whose events can mean more room."""
        return frozenset().union(*(kind.slots.rejected_by() for kind in self.kinds))

    def status_of(self, row: int) -> Status:
        """Return why a node does not take the whole job; success where it does."""
        for kind in self.kinds:
            status = kind.slots.status_of(row)
            if not status.is_success:
                return status
        return SUCCESS

    def slots_of(self, row: int) -> int:
        """Return how many members the node takes by itself; of members that differ, of those it takes fewest of."""
        return min(int(kind.slots.counts[row]) for kind in self.kinds)


class Planner:
    """Plans jobs over the node table as it stands, also within trials."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._rows = handle.table.shared(TreeRows)
        self._attraction = handle.table.shared(Attraction)

    def plan(self, tree: TopologyTree, job: PlanningJob) -> JobPlan:
        """Return nodes for all members; for the least of them where there is no room for all.
        Raises: UnknownProfile."""
        return self.draft(tree, job).plan(job)

    def shortage(self, tree: TopologyTree, job: PlanningJob, slots: I64) -> str:
        """Return why there would be no place for members that are alike if nodes took `slots` of them (table rows,);
        for members that differ, why there is none. Raises: UnknownProfile."""
        draft = self.draft(tree, job)
        if len(draft.kinds) == 1:
            by_leaf = self._rows.by_leaf(tree, np.minimum(slots, len(job.members)))
            kinds = (msgspec.structs.replace(draft.kinds[0], by_leaf=by_leaf),)
            draft = msgspec.structs.replace(draft, kinds=kinds)
        return draft.plan(job).message

    def draft(self, tree: TopologyTree, job: PlanningJob) -> "PlanDraft":
        """Ask nodes what they say to the members, before anything is decided. Raises: UnknownProfile."""
        members = job.members
        selector = selector_of(members[0].pod) if members else ""
        existing = self._rows.by_leaf(tree, self._attraction.by_row(selector))
        bound = np.zeros(len(tree.levels[-1]), np.int64)
        leaves = [leaf for name in job.bound if (leaf := tree.leaf_of.get(name)) is not None]
        np.add.at(bound, leaves, 1)
        kinds = tuple(self._kinds(tree, members))
        demand = placement.demand_of(job.rules, tree.layers)
        attracting = np.maximum(existing, bound)
        score = -tree.by_leaf(job.costs) if job.costs else None
        rows = self._rows.rows(tree)
        return PlanDraft(self._handle, tree, demand, kinds, attracting, bound, score, rows)

    def _kinds(self, tree: TopologyTree, members: Sequence[PodInfo]) -> list[PlanningMemberClass]:
        """Return the members by what nodes say to them, the hardest to place first."""
        found: dict[Hashable, list[PodInfo]] = {}
        by_key: dict[Hashable, Prospects] = {}
        for member in members:
            prospects = prospects_of(self._handle, member)
            if prospects is None:
                raise UnknownProfile(member)
            key = prospects.class_key(member)
            found.setdefault(key, []).append(member)
            by_key[key] = prospects
        kinds = []
        for key, alike in found.items():
            counted = slots.count(self._handle, by_key[key], alike, wanted=len(members))
            by_leaf = self._rows.by_leaf(tree, counted.counts)
            kinds.append(PlanningMemberClass(tuple(alike), by_key[key], counted, by_leaf))
        return sorted(kinds, key=lambda kind: int(kind.by_leaf.sum()))


class UnknownProfile(Exception):
    """A member is of a scheduler that is none of ours."""

    def __init__(self, member: PodInfo) -> None:
        super().__init__(member.key)
        self.member = member

    def __str__(self) -> str:
        return f"pod {self.member.key}: scheduler {self.member.pod.spec.scheduler_name!r} is none of ours"


class PlanDraft(msgspec.Struct, frozen=True, eq=False):
    """One job over one tree: what each node takes of each kind of members, and plans made of that.

    `existing`, `bound` and `score` are as `placement.plan` takes them, `rows` (nodes of the tree,).
    """

    handle: Handle
    tree: TopologyTree
    demand: TopologyRequirement
    kinds: tuple[PlanningMemberClass, ...]
    existing: I64
    bound: I64
    score: I64 | None
    rows: Rows

    def plan(self, job: PlanningJob) -> JobPlan:
        """Return nodes for all members of the job, for the least of them, or why not."""
        found = self._plan(job.members)
        if not found.is_placed and 0 < len(job.least) < len(job.members):
            fewer = self._plan(job.least)
            found = fewer if fewer.is_placed else found
        return JobPlan(found, self.kinds, self.handle.table.node_count, self.demand.must_layer)

    def _plan(self, members: Sequence[PodInfo]) -> TopologyPlacement:
        uids = {member.uid for member in members}
        kinds = [kind for kind in self.kinds if any(member.uid in uids for member in kind.members)]
        if len(kinds) < 2:
            return self._corrected(members, kinds)
        if not self.demand.multiples:
            packed = self._packed(members, kinds)
            if packed.is_placed:
                return packed
        # As many members as the node takes of each kind it takes of any mixture.
        found = self._corrected(members, kinds)
        return found if found.is_placed or self.demand.multiples else packed

    # Members that are alike

    def _corrected(
        self, members: Sequence[PodInfo], kinds: Sequence[PlanningMemberClass]
    ) -> TopologyPlacement:
        """Return a plan by what nodes take by themselves, tried as a whole where that is not all."""
        uids = [member.uid for member in members]
        taken = np.minimum.reduce([kind.by_leaf for kind in kinds]) if kinds else self.existing
        for _ in range(CORRECTIONS_MAX):
            found = placement.plan(self.tree, self.demand, uids, taken, self.existing, self.bound, self.score)
            if not found.is_placed or (len(kinds) == 1 and not kinds[0].slots.looks_around):
                return found
            refused = self._refused(members, kinds, found.nodes)
            if not refused:
                return found
            taken = taken.copy()
            for node, count in refused.items():
                taken[self.tree.leaf_of[node]] = count
        offers = Offers(self.tree, self.demand, taken, self.existing, self.bound)
        depth, top = placement.places_to_gather(self.tree, self.demand, self.bound)
        return placement.no_room(PlanReason.NO_ROOM, self.demand, offers, depth, top, len(uids))

    def _refused(
        self, members: Sequence[PodInfo], kinds: Sequence[PlanningMemberClass], nodes: Mapping[str, str]
    ) -> dict[str, int]:
        """Return nodes that do not take their share beside all members placed before, and how many they take."""
        table = self.handle.table
        views = {
            member.uid: view
            for kind in kinds
            for view in [kind.prospects.view(kind.members[0])]
            for member in kind.members
        }
        taken: dict[str, int] = {}
        refused: set[str] = set()
        with trial_of(table) as what_if:
            for member in members:
                node = nodes[member.uid]
                row = table.row_of(node)
                taken.setdefault(node, 0)
                if row is None or not views[member.uid].check(row).is_success:
                    refused.add(node)
                else:
                    what_if.add(member, node)
                    taken[node] += 1
        return {node: count for node, count in taken.items() if node in refused}

    # Members that differ

    def _packed(self, members: Sequence[PodInfo], kinds: Sequence[PlanningMemberClass]) -> TopologyPlacement:
        """Each kind into what those before it left, in the lowest place where that works."""
        uids = {member.uid for member in members}
        wanted = [tuple(each for each in kind.members if each.uid in uids) for kind in kinds]
        total = np.add.reduce([kind.by_leaf for kind in kinds])
        plain = msgspec.structs.replace(self.demand, multiples={})
        offers = Offers(self.tree, plain, total, self.existing, self.bound)
        depth, top = placement.places_to_gather(self.tree, self.demand, self.bound)
        looks_around = any(kind.slots.looks_around for kind in kinds)
        tried: dict[int, int] = {}
        for at, index in offers.candidates(depth, top, len(members)):
            tried[at] = tried.get(at, 0) + 1
            if tried[at] > CANDIDATES_MAX or not self._may_hold(kinds, wanted, at, index):
                continue
            nodes = self._fill(kinds, wanted, at, index)
            if len(nodes) == len(members) and not (looks_around and self._refused(members, kinds, nodes)):
                in_order = {member.uid: nodes[member.uid] for member in members}
                return placement.placed(self.tree, at, index, in_order)
        shown = top[np.argsort(-offers.slots[depth][top], kind="stable")[:CANDIDATES_MAX]].tolist()
        return TopologyPlacement(
            reason=PlanReason.NO_ROOM,
            wanted=len(members),
            offers=tuple(
                Offer(self.tree.title(depth, index), len(self._fill(kinds, wanted, depth, index)))
                for index in shown
            ),
            offer_count=int(top.size),
        )

    # For explanations

    @property
    def is_settled(self) -> bool:
        """Return whether nodes have said all that matters: nothing is tried on the table any more."""
        return len(self.kinds) < 2 and not any(kind.slots.looks_around for kind in self.kinds)

    def offers(self) -> Offers:
        """Return what places take; of members that differ, as many as they take of each kind."""
        nobody = np.zeros_like(self.existing)
        taken = np.minimum.reduce([kind.by_leaf for kind in self.kinds]) if self.kinds else nobody
        return Offers(self.tree, self.demand, taken, self.existing, self.bound, self.score)

    def fitting(self, depth: int, index: int) -> dict[str, str]:
        """Return the members that find room in a place together: uid → node."""
        if len(self.kinds) != 1:
            return self._fill(self.kinds, [kind.members for kind in self.kinds], depth, index)
        members = self.kinds[0].members
        nodes = placement.spread(self.tree, self.offers().distribute(depth, index, len(members)))
        return {member.uid: node for member, node in zip(members, nodes, strict=False)}

    def rows_below(self, depth: int, index: int) -> Rows:
        """Return the nodes below a place, ascending: (rows,)."""
        first, end = self.tree.leaves_below(depth, index)
        rows = self.rows[first:end]
        return np.sort(rows[rows >= 0])

    def _may_hold(self, kinds: Sequence[PlanningMemberClass], wanted: Groups, depth: int, index: int) -> bool:
        """Return whether the place takes all members of each kind, were there no others."""
        first, end = self.tree.leaves_below(depth, index)
        return all(
            int(kind.by_leaf[first:end].sum()) >= len(alike)
            for kind, alike in zip(kinds, wanted, strict=True)
        )

    def _fill(
        self, kinds: Sequence[PlanningMemberClass], wanted: Groups, depth: int, index: int
    ) -> dict[str, str]:
        """Return members that find room in a place, kind after kind: uid → node."""
        nodes: dict[str, str] = {}
        names = self.tree.levels[-1].names
        beside = self.existing.copy()
        plain = msgspec.structs.replace(self.demand, multiples={})
        with trial_of(self.handle.table) as what_if:
            for number, (kind, alike) in enumerate(zip(kinds, wanted, strict=True)):
                left = self._left(what_if, kind, alike, depth, index)
                # Of equal nodes those that are of least use to the kinds that follow.
                later = [other.by_leaf for other in kinds[number + 1 :]]
                score = -np.add.reduce(later) if later else self.score
                offers = Offers(self.tree, plain, left, beside, score=score)
                shares = offers.distribute(depth, index, len(alike))
                leaves = [leaf for leaf, count in shares for _ in range(count)]
                for member, leaf in zip(alike, leaves, strict=False):
                    nodes[member.uid] = names[leaf]
                    what_if.add(member, names[leaf])
                    beside[leaf] += 1
        return nodes

    def _left(
        self, what_if: Trial, kind: PlanningMemberClass, alike: Sequence[PodInfo], depth: int, index: int
    ) -> I64:
        """(nodes of the tree,): how many of a kind the nodes below a place take beside who is there already."""
        first, end = self.tree.leaves_below(depth, index)
        left = np.zeros_like(kind.by_leaf)
        if not what_if.is_used:
            left[first:end] = kind.by_leaf[first:end]
            return left
        leaves = first + np.flatnonzero(kind.by_leaf[first:end])
        rows = self.rows[leaves]
        order = np.argsort(rows)
        again = slots.count_again(self.handle, kind.prospects, kind.slots, alike, rows[order])
        left[leaves[order]] = again
        return left


PLACES_MAX = 16
"""Places looked at one by one, those with most slots."""


class PlaceOutlook(msgspec.Struct, frozen=True, eq=False):
    """One place of the layer that must hold the gang. `rows` are its nodes in the node table, ascending."""

    title: str
    """`layer/name`, with the parent's name where there are several of the name."""
    layer: str
    name: str
    """Empty for the whole cluster."""
    rows: Rows
    nodes: dict[str, str]
    """uid → node of members that find room together."""
    missing: tuple[PodInfo, ...]
    """The members that do not, in planning order."""


class JobOutlook(msgspec.Struct, frozen=True, eq=False):
    """The fate of a gang that is planned now. `places` are the ones with room for most members first, `PLACES_MAX` at
    most."""

    found: JobPlan
    places: tuple[PlaceOutlook, ...]
    no_multiple: str = ""
    """Set when the number of members can be placed nowhere."""


def outlook(draft: PlanDraft, job: PlanningJob) -> Generator[None, None, JobOutlook]:
    """Yield the plan and, as far as there is none, what each place lacks. Others may have their turn at each
    `yield`."""
    tree, demand = draft.tree, draft.demand
    depth, top = placement.places_to_gather(tree, demand, draft.bound)
    slots = draft.offers().slots[depth][top]
    best = top[np.argsort(-slots, kind="stable")[:PLACES_MAX]].tolist()
    found = draft.plan(job)
    places = []
    for index in best:
        if draft.is_settled:
            yield
        places.append(_place(draft, job, depth, index))
    places.sort(key=lambda place: -len(place.nodes))
    text = ""
    if found.plan.reason is placement.PlanReason.NO_MULTIPLE:
        rules = " and ".join(f"{count} in {layer}" for layer, count in sorted(demand.multiples.items()))
        text = f"{len(job.members)} members cannot be placed in multiples of {rules} (podCountMultiple)"
    return JobOutlook(found, tuple(places), text)


def _place(draft: PlanDraft, job: PlanningJob, depth: int, index: int) -> PlaceOutlook:
    nodes = draft.fitting(depth, index)
    level = draft.tree.levels[depth]
    return PlaceOutlook(
        title=draft.tree.title(depth, index),
        layer=level.layer,
        name=level.names[index],
        rows=draft.rows_below(depth, index),
        nodes=nodes,
        missing=tuple(member for member in job.members if member.uid not in nodes),
    )
