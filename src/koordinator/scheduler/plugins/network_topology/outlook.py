"""Count how many members of a gang each place of the network would take, and who is left over: for explanations."""

from collections.abc import Generator

import msgspec
import numpy as np

from koordinator.scheduler.plugins.network_topology import placement
from koordinator.scheduler.plugins.network_topology.planner import JobPlan, PlanDraft, PlanningJob
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo

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
    """The fate of a gang that is planned now. `places` are the ones with room for most members first."""

    found: JobPlan
    places: tuple[PlaceOutlook, ...]
    place_count: int
    """How many places there are; no more than `PLACES_MAX` of them are in `places`."""
    no_multiple: str = ""
    """Set when the number of members can be placed nowhere."""


def outlook(draft: PlanDraft, job: PlanningJob) -> Generator[None, None, JobOutlook]:
    """The plan and, as far as there is none, what each place lacks. Others may have their turn at each `yield`."""
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
    return JobOutlook(found, tuple(places), int(top.size), text)


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
