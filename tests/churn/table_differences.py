"""Whether two schedulers that saw the same cluster know the same."""

from collections.abc import Iterable, Iterator
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

SHOWN_MAX = 50

Json = dict[str, Any]


def differences(live: Scheduler, fresh: Scheduler, probes: Iterable[Json]) -> list[str]:
    """What `live` knows otherwise than `fresh`, which has just read all objects; at most 50 lines.

    Compared are the node tables, fact by fact and node by node, and the answers of all Filter and Score
    plugins of each profile for the pods of `probes`: whatever plugins keep shows in their answers.
    """
    found: list[str] = []
    for line in _all(live, fresh, probes):
        found.append(line)
        if len(found) == SHOWN_MAX:
            break
    return found


def _all(live: Scheduler, fresh: Scheduler, probes: Iterable[Json]) -> Iterator[str]:
    yield from _tables(live.table, fresh.table)
    if live.table.assumed_count:
        yield f"{live.table.assumed_count} pods are still assumed"
    now_s = live.clock.now()
    for name, profile in live.profiles.items():
        for one in (profile, fresh.profiles[name]):
            for plugin in one.refreshers:
                plugin.refresh(now_s)
        for body in probes:
            pod = from_builtins(body, Pod)
            ours = _answers(live, name, pod)
            theirs = _answers(fresh, name, pod)
            for node in sorted(ours.keys() | theirs.keys()):
                if ours.get(node) != theirs.get(node):
                    yield f"{pod.key} on {node}: {ours.get(node)} instead of {theirs.get(node)}"


def _tables(live: NodeTable, fresh: NodeTable) -> Iterator[str]:
    ours, theirs = _facts(live), _facts(fresh)
    for node in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(node), theirs.get(node)
        if mine is None or other is None:
            yield f"{node}: {'missing' if mine is None else 'not in the cluster'}"
            continue
        for fact in mine:
            if mine[fact] != other[fact]:
                yield f"{node}: {fact} is {mine[fact]} instead of {other[fact]}"


def _facts(table: NodeTable) -> dict[str, Json]:
    """Everything that the table itself keeps, by node name; pods on unknown nodes included."""
    names = table.registry.names
    facts: dict[str, Json] = {}
    rows = {int(row) for row in table.rows} | {place.row for place in table.places()}
    for row in rows:
        facts[table.name_of(row)] = {
            "exists": table.node_at(row) is not None,
            "allocatable": _amounts(names, table.allocatable[:, row]),
            "requested": _amounts(names, table.requested[:, row]),
            "free": _amounts(names, table.free[:, row]),
            "free pods": int(table.free_pods[row]),
            "requested with defaults": table.nonzero_requested[:, row].tolist(),
            "number of pods": int(table.pod_count[row]),
            "pods at most": int(table.pods_max[row]),
            "unschedulable": bool(table.is_unschedulable[row]),
            "pods": sorted(table.pods_at(row)),
        }
    return facts


def _amounts(names: Iterable[str], column: Any) -> dict[str, int]:
    return {name: int(amount) for name, amount in zip(names, column, strict=False) if amount}


def _answers(scheduler: Scheduler, profile_name: str, pod: Pod) -> dict[str, Any]:
    """Node name → total score, or the reason of the refusal."""
    table = scheduler.table
    info = PodInfo.of(pod, table.registry)
    evaluation = Evaluation(scheduler.profiles[profile_name], table, info)
    rows = evaluation.feasible
    totals = dict(zip(rows.tolist(), evaluation.totals_of(rows).tolist(), strict=True))
    return {
        table.name_of(row): totals[row] if row in totals else evaluation.status_of(row).message
        for row in table.rows.tolist()
    }
