"""Where the network lets a gang go: the plan that the scheduler would make, and the part that comes nearest."""

from collections.abc import Mapping

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.api.network_topology import OBJECT_NAME
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.answer import DomainFit
from koordinator.scheduler.explain.gang_group import Group
from koordinator.scheduler.explain.slices import Steps
from koordinator.scheduler.plugins.coscheduling.planning import GangPlanning
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.table.columns import Rows

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
    is_about_multiples: bool = False
    """Whether it is the number of members that nothing can take."""
    note: str = ""


def ground_of(engine: Engine, group: Group) -> Steps[Ground | None]:
    """None for a gang that asks for nothing."""
    if group.gang.config.topology is None or group.has_started:
        return None
    planning = _planning(engine)
    if planning is None:
        return Ground(
            note="its network topology is not looked at: awareNetworkTopology of Coscheduling is off"
        )
    try:
        seen = yield from planning.outlook(group.gang)
    except KoordinatorError as error:
        return Ground(message=str(error))
    if seen is None:
        return Ground(message=NO_TREE)
    plan = seen.found.plan
    if plan.is_placed:
        where = f"{plan.place_layer} {plan.place_name}" if plan.place_name else ""
        return Ground(nodes=plan.nodes, where=where)
    parts = [each for each in seen.places if each.name]
    unknown = planning.unknown_layers(group.gang) if not parts else ()
    if unknown:
        names = ", ".join(unknown)
        return Ground(
            message=f"ClusterNetworkTopology {OBJECT_NAME} has no {names}, of which it must have one place"
        )
    return Ground(
        where=f"{parts[0].layer} {parts[0].name}" if parts else "",
        rows=parts[0].rows if parts else None,
        domains=tuple(
            DomainFit(layer=each.layer, name=each.name, fitting=len(each.nodes))
            for each in parts[:DOMAINS_MAX]
        ),
        message=seen.no_multiple or seen.found.message,
        is_about_multiples=bool(seen.no_multiple),
    )


def _planning(engine: Engine) -> GangPlanning | None:
    plugins = (plugin for profile in engine.profiles.values() for plugin in profile.plugins)
    gangs = (plugin.planning for plugin in plugins if isinstance(plugin, Coscheduling))
    return next((planning for planning in gangs if planning.is_aware), None)
