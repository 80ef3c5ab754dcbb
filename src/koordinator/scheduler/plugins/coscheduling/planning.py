"""Gangs that ask for a network topology: all members are planned when the first one of a round is tried.
Source: behaviour/gangs 7.2, 7.3, 15 and 16."""

from collections.abc import Generator, Sequence

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.scheduler.plugin import status
from koordinator.scheduler.plugin.capabilities import FoundNode, PlacementPlan
from koordinator.scheduler.plugin.framework import Handle, Scores
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, unschedulable
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.plugins.coscheduling.dry_run_cluster import PreemptionDryRun
from koordinator.scheduler.plugins.coscheduling.events import GangRound, is_on_its_own
from koordinator.scheduler.plugins.coscheduling.gangs import Gang, GangGroup
from koordinator.scheduler.plugins.coscheduling.job_preemptor import JobPlacement, Placer
from koordinator.scheduler.plugins.coscheduling.jobs import PreemptorJob
from koordinator.scheduler.plugins.coscheduling.running import RunningGangs
from koordinator.scheduler.plugins.network_topology import placement
from koordinator.scheduler.plugins.network_topology.placement import MUST_GATHER
from koordinator.scheduler.plugins.network_topology.planner import (
    JobOutlook,
    JobPlan,
    Planner,
    PlanningJob,
    UnknownProfile,
    outlook,
)
from koordinator.scheduler.plugins.network_topology.slots import Attraction, TreeRows
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo

PLAN_INVALID = "plan become invalid, wait for the next round"
NO_OPINION = FoundNode(SKIP)


class GangPlanning:
    """Plans of one profile's Coscheduling; `is_aware` is its argument awareNetworkTopology."""

    def __init__(self, handle: Handle, gangs: RunningGangs, *, is_aware: bool) -> None:
        self.is_aware = is_aware
        self.planner = Planner(handle)
        self._handle = handle
        self._gangs = gangs
        self._rows = handle.table.shared(TreeRows)
        self._attraction = handle.table.shared(Attraction)

    def is_tree_missing(self) -> bool:
        """Return whether gangs that ask for a topology cannot be planned at all."""
        return self.is_aware and self._handle.network() is None

    def asks(self, pod: Pod) -> bool:
        """Return whether the pod is planned with its gang."""
        if not self.is_aware:
            return False
        gang = self._gangs.rounds.cache.get(gang_id_of(pod))
        return gang is not None and gang.config.topology is not None and not is_on_its_own(gang)

    def wakes(self, pod: Pod) -> bool:
        """Return whether another tree may help the pod: one per gang group tries."""
        group = self._gangs.group_of(pod) if self.asks(pod) else None
        return group is not None and group.root_cause in ("", pod.key)

    # Nodes

    def find(self, pod: PodInfo) -> FoundNode:
        """Return the node planned for the pod; for the first of a round the whole plan."""
        now = self._gangs.round_of(pod.pod) if self.asks(pod.pod) else None
        if now is None or now.failure:
            return NO_OPINION
        if now.planned:
            node = now.planned.get(pod.key, "")
            return (
                FoundNode(SUCCESS, node, is_revisable=True)
                if node
                else FoundNode(status.error("no planned pods"))
            )
        if now.first != pod.key:
            return FoundNode(status.error("no planned pods"))
        return self._plan(pod, now)

    def _plan(self, pod: PodInfo, now: GangRound) -> FoundNode:
        tree, gang = self._handle.network(), self._gangs.rounds.cache.get(now.gang_id)
        if tree is None or gang is None:
            return FoundNode(unschedulable("no cluster network topology"))
        job = self.job_of(gang, pod)
        if not job.members:
            return FoundNode(status.error("no pending pods"))
        try:
            found = self.planner.plan(tree, job)
        except UnknownProfile as error:
            return FoundNode(unschedulable(str(error)))
        if not found.plan.is_placed:
            return FoundNode(unschedulable(found.message), rejected_by=found.rejected_by, verdict=found)
        by_uid = {member.uid: member for member in job.members}
        planned = [by_uid[uid] for uid in found.plan.nodes]
        self._gangs.rounds.plan({each.pod.key: found.plan.nodes[each.uid] for each in planned})
        return FoundNode(SUCCESS, plan=PlacementPlan(tuple(planned), found.plan.nodes), is_revisable=True)

    # Preemption for the whole gang

    def placer(self, pod: PodInfo) -> Placer | None:
        """Places the pod's gang on nodes that are cleared for it; None for one that asks for no topology."""
        if not self.asks(pod.pod):
            return None
        now = self._gangs.round_of(pod.pod)
        if now is not None and now.first != pod.key:
            return lambda job, dry_run: JobPlacement(failure=PLAN_INVALID)
        return self._place

    def _place(self, job: PreemptorJob, dry_run: PreemptionDryRun) -> JobPlacement:
        """Clear the cheapest nodes, more each time, until the gang can be planned on what is there then."""
        members, tree = tuple(job.members.values()), self._handle.network()
        gang = self._gangs.rounds.cache.get(gang_id_of(members[0].pod))
        if tree is None or gang is None:
            return JobPlacement(failure=PLAN_INVALID)
        asked = msgspec.structs.replace(self.job_of(gang), least=())
        while dry_run.clear(members):
            found = self.planner.plan(tree, msgspec.structs.replace(asked, costs=dry_run.costs()))
            if found.plan.is_placed:
                return _settle(found, members, dry_run)
        if dry_run.cleared():
            return JobPlacement(failure=self.planner.plan(tree, asked).message)
        # All nodes together are too small, so none was cleared; the words tell what they would take if they were.
        return JobPlacement(failure=self.planner.shortage(tree, asked, dry_run.room_for(members[0])))

    # Explanations

    def outlook(self, gang: Gang) -> Generator[None, None, JobOutlook | None]:
        """Yield where a gang group would go now, and what places lack; None when it asks for no topology, or there is
        none (`is_tree_missing`). Others may have their turn at each `yield`. Raises: UnknownProfile."""
        tree = self._handle.network()
        if not self.is_aware or tree is None or gang.config.topology is None:
            return None
        job = self.job_of(gang)
        return (yield from outlook(self.planner.draft(tree, job), job))

    def unknown_layers(self, gang: Gang) -> tuple[str, ...]:
        """Layers that the gang must be below one place of, and that the network does not have."""
        tree, spec = self._handle.network(), gang.config.topology
        if tree is None or spec is None:
            return ()
        must = (rule.layer for rule in spec.gather_strategy if rule.strategy == MUST_GATHER)
        return tuple(sorted(set(must) - set(tree.layers)))

    def job_of(self, gang: Gang, first: PodInfo | None = None) -> PlanningJob:
        """Return what a gang group asks for; `first` is the member without which nothing is planned."""
        group = gang.group
        members = tuple(self._gangs.pending_of(group))
        assert gang.config.topology is not None, gang.gang_id
        return PlanningJob(
            members=members,
            rules=tuple(gang.config.topology.gather_strategy),
            least=self._least(group, members, first),
            bound=self._bound(group),
        )

    def _least(
        self, group: GangGroup, members: tuple[PodInfo, ...], first: PodInfo | None
    ) -> tuple[PodInfo, ...]:
        """Return as many members as each gang of the group needs to be released, the first in planning order; in any
        case the one that is tried."""
        missing = {
            gang.gang_id: self._gangs.rounds.lacking(gang)
            for gang in self._gangs.rounds.cache.members_of(group)
        }
        chosen: set[str] = set()
        for member in members if first is None else (first, *members):
            gang_id = gang_id_of(member.pod)
            if member.uid not in chosen and (member is first or missing.get(gang_id, 0) > 0):
                missing[gang_id] = missing.get(gang_id, 0) - 1
                chosen.add(member.uid)
        return tuple(member for member in members if member.uid in chosen)

    def _bound(self, group: GangGroup) -> tuple[str, ...]:
        """Return nodes of members that have a place."""
        table = self._handle.table
        uids = [
            uid
            for gang in self._gangs.rounds.cache.members_of(group)
            for key, uid in gang.children.items()
            if key not in gang.pending
        ]
        places = [place for uid in uids if (place := table.place_of(uid)) is not None]
        return tuple(table.name_of(place.row) for place in places)

    # Score

    def score_epoch(self, selector: str) -> tuple[int, int]:
        """Changes when `scores` may."""
        tree = self._handle.network()
        return (tree.version if tree is not None else 0), self._attraction.version(selector)

    def scores(self, selector: str, rows: Rows) -> Scores:
        """Return scores (rows,) of feasible rows, 100 for the one nearest to pods with the selector. Nodes that the
        tree does not know come last, by name; without a tree all are alike."""
        tree = self._handle.network()
        if tree is None:
            return np.zeros(rows.size, np.int64)
        name_of = self._handle.table.name_of
        existing = self._rows.by_leaf(tree, self._attraction.by_row(selector))
        return placement.scores(
            tree, self._rows.leaves(tree)[rows], lambda each: name_of(int(rows[each])), existing
        )


def _settle(found: JobPlan, members: Sequence[PodInfo], dry_run: PreemptionDryRun) -> JobPlacement:
    nodes = {member.key: found.plan.nodes[member.uid] for member in members}
    for member in members:
        if not dry_run.place(nodes[member.key], member):
            return JobPlacement(failure=PLAN_INVALID)
    return JobPlacement(nodes)
