"""Carry out `koordinator explain tidalpool`: read the cluster, make the pass that the manager makes, and tell it."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import click

from koordinator import clock
from koordinator.api import readable
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.tidal_pool import TidalPool
from koordinator.cli.tables import console, print_document, table_of
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.manager.tidal.listed import ListedObjects
from koordinator.manager.tidal.pool_pass import PoolPass

Json = dict[str, Any]


def explain(name: str, kubeconfig: str, output: str) -> None:
    """Read and tell; the parameters are the command's options. Raises: ClickException when there is no answer."""
    answer = asyncio.run(_ask(name, kubeconfig))
    if output != "text":
        print_document(answer, output)
        return
    for line in lines(answer):
        click.echo(line)
    _print_nodes(answer["nodes"])


async def _ask(name: str, kubeconfig: str) -> Json:
    client = connect.load(kubeconfig_file=kubeconfig)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        now_s = cluster.clock.now()
        objects = ListedObjects(
            (await cluster.list(TidalPool)).items,
            (await cluster.list(Node)).items,
            (await cluster.list(Pod)).items,
            (await cluster.list(PodMigrationJob)).items,
            (await cluster.list(PodDisruptionBudget)).items,
        )
    pool = objects.pools.get(name)
    if pool is None:
        known = readable.some_of(sorted(objects.pools))
        raise click.ClickException(f"no TidalPool {name}" + (f"; there are: {known}" if known else ""))
    try:
        found = objects.look(name, now_s)
    except ProtocolError as error:
        raise click.ClickException(f"no node moves: {error}") from error
    return answer_of(pool, found, now_s)


def answer_of(pool: TidalPool, found: PoolPass, now_s: float) -> Json:
    """Return everything that is told, as JSON."""
    decision = found.decision
    return {
        "pool": found.pool,
        "members": len(found.places.members),
        "counted": decision.sides.online + decision.sides.batch + decision.sides.tidal,
        "lost": list(found.places.lost),
        "reserves": {"online": decision.sides.online, "batch": decision.sides.batch},
        "lent": decision.lent,
        "target": decision.target.nodes,
        "why": pool.status.target_reason if pool.spec.load is not None else decision.target.reason.value,
        "loadPercent": None if decision.load_percent is None else round(decision.load_percent, 1),
        "loadPercentWithOneLess": None
        if decision.spare_percent is None
        else round(decision.spare_percent, 1),
        "nextTransition": _time(decision.next_change_s),
        "holdUntil": _time(decision.hold_until_s if decision.hold_until_s > now_s else None),
        "emergency": decision.emergency.reason if decision.emergency is not None else "",
        "nodes": [_node(found, name) for name in (*found.places.members, *found.places.leaving)],
    }


def _node(found: PoolPass, name: str) -> Json:
    marks, step = found.marks.get(name), found.steps.get(name)
    node = next((each for each in found.nodes if each.name == name), None)
    drained = found.drains.get(name)
    waits_for = drained.waits_for if drained is not None and step is None else ""
    return {
        "name": name,
        "phase": node.phase.value if node is not None else "leaving",
        "since": _time(node.since_s if node is not None else None),
        "reserve": marks.reserve.value if marks is not None and marks.reserve is not None else "",
        "reason": node.reason if node is not None else "",
        "next": f"{step.to.value}: {step.reason}" if step is not None else "",
        "waitsFor": waits_for or found.decision.plan.blocked.get(name, ""),
    }


def _time(at_s: float | None) -> str:
    return clock.rfc3339(at_s) if at_s else ""


def lines(answer: Json) -> Iterator[str]:
    """Say how many nodes are lent, how many should be, why, and what changes next."""
    reserves = answer["reserves"]
    yield f"TidalPool {answer['pool']}: {answer['lent']} nodes lent, {answer['target']} should be: {answer['why']}"
    yield f"  {answer['members']} nodes, {answer['counted']} of them ready and not cordoned"
    yield f"  {reserves['online']} stay online always, {reserves['batch']} are lent always"
    if answer["lost"]:
        yield f"  older pools have {readable.some_of(answer['lost'])}"
    if answer["loadPercent"] is not None:
        one_less = answer["loadPercentWithOneLess"]
        spare = f", {one_less:g} % with one node less" if one_less is not None else ""
        yield f"  online pods request {answer['loadPercent']:g} % of the online side{spare}"
    if answer["emergency"]:
        yield f"  nodes return at once: {answer['emergency']}"
    if answer["holdUntil"]:
        yield f"  nothing is lent before {answer['holdUntil']}, since services needed nodes at once"
    if answer["nextTransition"]:
        yield f"  the schedule changes next at {answer['nextTransition']}"


def _print_nodes(nodes: list[Json]) -> None:
    columns = dict.fromkeys(("node", "phase", "since", "reserve", "why", "now", "waits for"), False)
    table = table_of("Nodes", columns)
    for one in nodes:
        table.add_row(
            *(one[key] for key in ("name", "phase", "since", "reserve", "reason", "next", "waitsFor"))
        )
    console().print(table)
