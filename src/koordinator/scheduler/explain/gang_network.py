"""Where the network lets a gang go: the plan that the scheduler would make, and the part that comes nearest."""

from collections.abc import Mapping

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.scheduler.columns import Rows
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.explain.answer import DomainFit
from koordinator.scheduler.explain.gang_rehearsal import Group
from koordinator.scheduler.plugins.coscheduling.planning import GangPlanning
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.network_topology.rows import TreeRows
from koordinator.scheduler.plugins.network_topology.tree import TopologyTree

DOMAINS_MAX = 5
NO_TREE = (
    "no cluster network topology (it takes the ClusterNetworkTopology default, and the scheduler's flag "
    "--enable-network-topology-manager)"
)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What a gang that asks for a network topology may use. With `nodes` (by uid) it is planned; else `rows` are the
    nodes of the part that takes most members, `where` its name, and `message` the scheduler's words."""

    nodes: Mapping[str, str] = {}
    where: str = ""
    rows: Rows | None = None
    domains: tuple[DomainFit, ...] = ()
    message: str = ""
    note: str = ""


def ground_of(engine: Engine, group: Group) -> Ground | None:
    """None for a gang that asks for nothing."""
    if group.gang.config.topology is None or group.has_started:
        return None
    planning = _planning(engine)
    if planning is None:
        return Ground(
            note="its network topology is not looked at: awareNetworkTopology of Coscheduling is off"
        )
    tree = engine.network()
    if tree is None:
        return Ground(message=NO_TREE)
    try:
        found = planning.plan_for(group.gang)
    except KoordinatorError as error:
        return Ground(message=str(error))
    if found is None:
        return Ground(note="its network topology is not looked at")
    if found.plan.is_placed:
        where = f"{found.plan.place_layer} {found.plan.place_name}" if found.plan.place_name else ""
        return Ground(nodes=found.plan.nodes, where=where)
    domains = tuple(_domain(each.title, each.slots) for each in found.plan.offers[:DOMAINS_MAX])
    best = found.plan.offers[0] if found.plan.offers else None
    depth = tree.depth_of(found.must_layer) if found.must_layer else 0
    rows = _rows(engine, tree, depth, best.title) if best is not None and depth else None
    return Ground(
        where=f"{domains[0].layer} {domains[0].name}" if rows is not None else "",
        rows=rows,
        domains=domains if depth else (),
        message=found.message,
    )


def _planning(engine: Engine) -> GangPlanning | None:
    plugins = (plugin for profile in engine.profiles.values() for plugin in profile.plugins)
    gangs = (plugin.planning for plugin in plugins if isinstance(plugin, Coscheduling))
    return next((planning for planning in gangs if planning.is_aware), None)


def _domain(title: str, slots: int) -> DomainFit:
    layer, _, name = title.partition("/")
    return DomainFit(layer=layer, name=name, fitting=slots)


def _rows(engine: Engine, tree: TopologyTree, depth: int, title: str) -> Rows | None:
    """Rows of the nodes of a place."""
    names = range(len(tree.levels[depth].names))
    index = next((index for index in names if tree.title(depth, index) == title), None)
    if index is None:
        return None
    first, end = tree.leaves_below(depth, index)
    rows = engine.table.shared(TreeRows).rows(tree)[first:end]
    return rows[rows >= 0]
