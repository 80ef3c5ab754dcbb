"""Decide about the nodes of lists as the controller does about those that it follows, for people who ask."""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.quantity import QuantityError
from koordinator.manager.config import amplification, colocation_config, cpu_normalization
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.noderesource import account, plugins, rows
from koordinator.manager.noderesource.controller import Strategies, report_notes, withdrawal_of
from koordinator.manager.noderesource.ledger import LentLedger, ledgers
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget


class NodeObjects(msgspec.Struct, frozen=True):
    """The objects of a cluster that decide what its nodes lend; `config` is the data of slo-controller-config."""

    nodes: Iterable[Node]
    pods: Iterable[Pod]
    metrics: Iterable[NodeMetric]
    topologies: Iterable[NodeResourceTopology]
    config: Mapping[str, str] | None


class LentNode(msgspec.Struct, frozen=True):
    """One node: its facts, what it should lend by kind, and all that is to be said of it."""

    row: NodeRow
    ledgers: tuple[LentLedger, ...]
    notes: tuple[str, ...]


def lent_nodes(found: NodeObjects, now_s: float) -> list[LentNode]:
    """Return each node in the order given; one that cannot be read lends nothing and says why.

    Raises: ProtocolError when the configuration cannot be used: the manager then goes on with the one before.
    """
    state = _colocation(found.config)
    strategies = Strategies(lambda: state)
    known = _rows(found, now_s)
    ready = []
    for row in known.values():
        if row.node is None or row.facts is None or not row.node.status.allocatable:
            continue
        row.strategy = strategies.of(row.node)
        row.withdrawal = withdrawal_of(row, now_s)
        ready.append(row)
    targets = [NodeTarget() for _ in ready]
    data = found.config or {}
    normalization = cpu_normalization.sync(cpu_normalization.DEFAULT_CONFIG, data).config
    amplified = amplification.sync(amplification.DEFAULT_CONFIG, data).config
    for plugin in plugins.chosen(("*",), normalization=lambda: normalization, amplified=lambda: amplified):
        plugin.calculate(ready, targets)
    by_name = {row.name: target for row, target in zip(ready, targets, strict=True)}
    return [_lent_node(row, by_name.get(row.name), now_s) for row in known.values() if row.node is not None]


def _lent_node(row: NodeRow, target: NodeTarget | None, now_s: float) -> LentNode:
    notes = [note.message for note in row.node_notes]
    if target is None:
        return LentNode(row, (), (*notes, *(() if notes else ("the node has no allocatable yet",))))
    notes += [note.message for note in (*report_notes(row, now_s), *target.notes)]
    return LentNode(row, ledgers(row, target), tuple(notes))


def _colocation(data: Mapping[str, str] | None) -> ColocationState:
    outcome = colocation_config.sync(ColocationState(), data)
    if outcome.problem:
        raise ProtocolError("ConfigMap slo-controller-config", "colocation-config", outcome.problem)
    return outcome.state


def _rows(found: NodeObjects, now_s: float) -> dict[str, NodeRow]:
    known: dict[str, NodeRow] = {}
    for node in found.nodes:
        known[node.metadata.name] = NodeRow(node.metadata.name)
        known[node.metadata.name].see_node(node)
    for metric in found.metrics:
        if (row := known.get(metric.metadata.name)) is not None:
            row.see_reading(rows.reading_of(metric.status), now_s)
    for topology in found.topologies:
        if (row := known.get(topology.metadata.name)) is not None:
            row.see_topology(topology)
    for pod in found.pods:
        row = known.get(pod.spec.node_name)
        if row is None:
            continue
        try:
            facts = account.pod_facts(pod)
        except QuantityError:  # as the controller counts it
            facts = account.AccountedPod(is_high_priority=True, request=account.ZERO)
        if facts is not None:
            row.pods[pod.key] = facts
    return known
