"""What the reference answers about networks, worked out from what we answer."""

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import msgspec

from koordinator.api import gang_labels
from koordinator.api.labels import GANG_NETWORK_TOPOLOGY_INDEX
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.scheduler.plugin.topology_tree import Path, PathFinder, TopologyTree, assemble
from koordinator.scheduler.plugins.network_topology.placement import (
    MUST_GATHER,
    PREFER_GATHER,
    Offers,
    TopologyRequirement,
)
from tests.vectors.adapters import scheduler_network_topology
from tests.vectors.adapters.scheduler_network_topology import LAYERS
from tests.vectors.deviations.question import Ask, Case


def with_first_parents(case: Case, ask: Ask) -> Any:
    """A name stands for one place of its layer: below the parent that it had first, with all nodes that name it."""
    paths = _paths(case)[1]
    if set(_merged(paths)) >= set(paths):
        return None

    def tree(
        specs: Sequence[NetworkTopologySpec], nodes: Iterable[tuple[str, Mapping[str, str]]]
    ) -> TopologyTree:
        finder = PathFinder(specs)
        found = filter(None, (finder.path(name, labels) for name, labels in nodes))
        return assemble(finder.layers, _merged(found))

    with mock.patch.object(scheduler_network_topology, "build", tree):
        return ask(case)


def with_slots_in_turn(case: Case, ask: Ask) -> Any:
    """Each node is asked how many members it takes one after the other, by index, until one does not fit."""
    if "nodeSlots" in case or len({pod["cpu"] for pod in case["pods"]}) < 2:
        return None
    annotations = {
        pod["name"]: {GANG_NETWORK_TOPOLOGY_INDEX: str(pod["index"])} if "index" in pod else {}
        for pod in case["pods"]
    }
    cpu = {pod["name"]: pod["cpu"] for pod in case["pods"]}
    in_turn = sorted(cpu, key=lambda name: gang_labels.topology_order(name, annotations[name]))
    used = list(itertools.accumulate(cpu[name] for name in in_turn))
    taken: Counter[str] = Counter()
    for each in case.get("existing") or ():
        taken[each["node"]] += each.get("cpu", 0)
    free = {node["name"]: node["cpu"] - taken[node["name"]] for node in case["nodes"]}
    slots = {name: bisect.bisect_right(used, left) for name, left in free.items()}
    return ask({**case, "nodeSlots": slots})


def with_members_on_trial(case: Case, ask: Ask) -> Any:
    """Members that were put on a node to see how many it takes attract as pods that run there do: all but the last of
    the gang."""
    selector = case.get("selector")
    if not selector or len(case["pods"]) < 2:
        return None
    most = len(case["pods"]) - 1
    slots = ask(case)["nodeSlots"]
    tried = [
        {"node": node, "cpu": 0, "selector": selector}
        for node, count in slots.items()
        for _ in range(min(count, most))
    ]
    return ask({**case, "existing": [*(case.get("existing") or ()), *tried]})


def with_multiples_by_layer(case: Case, ask: Ask) -> Any:
    """A place takes a multiple of what its own layer says, and only places of the lowest layer are tried."""
    if all((rule.get("podCountMultiple") or 0) < 2 for rule in case.get("gatherStrategy") or ()):
        return None
    prepare, all_candidates = Offers.__init__, Offers.candidates

    def by_layer(self: Offers, tree: TopologyTree, demand: TopologyRequirement, *figures: Any) -> None:
        prepare(self, tree, msgspec.structs.replace(demand, multiples={}), *figures)
        self._multiples = [demand.multiples.get(level.layer, 1) for level in tree.levels]
        total = self.slots[tree.depth]
        for depth in range(tree.depth, -1, -1):
            if depth < tree.depth:
                total = tree.sum_of_children(tree.levels[depth], self.slots[depth + 1])
            self.slots[depth] = total // self._multiples[depth] * self._multiples[depth]

    def lowest(self: Offers, *asked: Any) -> Iterator[tuple[int, int]]:
        _, of_lowest = next(itertools.groupby(all_candidates(self, *asked), lambda found: found[0]), (0, ()))
        yield from of_lowest

    with mock.patch.multiple(Offers, __init__=by_layer, candidates=lowest, multiple=1):
        return ask(case)


def without_unknown_layers(case: Case, ask: Ask) -> Any:
    """A layer that the tree lacks is forgotten where another one must gather, too."""
    specs = case.get("networkTopologySpec") or LAYERS
    known = {spec["topologyLayer"] for spec in specs}
    rules = case.get("gatherStrategy") or []
    must = [rule for rule in rules if rule["strategy"] == MUST_GATHER]
    unknown = [rule for rule in must if rule["layer"] not in known]
    if not unknown or len(unknown) == len(must):
        return None
    return ask({**case, "gatherStrategy": [rule for rule in rules if rule not in unknown]})


def without_preferences(case: Case, ask: Ask) -> Any:
    """PreferGather rules change nothing."""
    if all(rule["strategy"] != PREFER_GATHER for rule in case.get("gatherStrategy") or ()):
        return None
    with mock.patch.object(Offers, "_gathered", lambda self, depth, ordered, wanted: ordered.tolist()):
        return ask(case)


def _paths(case: Case) -> tuple[list[NetworkTopologySpec], list[Path]]:
    specs = msgspec.convert(case.get("networkTopologySpec") or LAYERS, list[NetworkTopologySpec])
    finder = PathFinder(specs)
    found = [finder.path(node["name"], node.get("labels") or {}) for node in case["nodes"]]
    return specs, [path for path in found if path is not None]


def _merged(paths: Iterable[Path]) -> Iterator[Path]:
    known: dict[tuple[int, str], Path] = {}
    for path in paths:
        place: Path = ()
        for depth, name in enumerate(path):
            place = known.setdefault((depth, name), (*place, name))
            yield place
