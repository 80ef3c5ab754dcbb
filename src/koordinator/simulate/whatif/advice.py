"""Advise what to switch on first: pools of nodes by what they bring and what their services feel."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.core import Node
from koordinator.local.nodes.usage import F64
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.lending import TERMS
from koordinator.simulate.whatif.outcome import Adder

POOL_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "alibabacloud.com/nodepool-id",
    "karpenter.sh/nodepool",
    "pool",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
)
"""The first of these that tells nodes apart names their pools."""
POOLS_MAX = 30
P99_COST_MAX = 0.05
"""A strategy is advised if services' p99 grows by no more."""
UNNAMED = "(none)"


class LedgerLine(msgspec.Struct, frozen=True, rename="camel"):
    """A term of what is lent, signed, as a mean over time: all terms sum to what is lent."""

    term: str
    cores: float
    memory_gib: float
    why: str


class PoolLine(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes with one value of a label: what batch uses there, its share of all batch, the p99 growth of services, and
    where what they lend comes from."""

    pool: str
    nodes: int
    batch_core_hours: float
    share: float
    p99_growth: float
    ledger: list[LedgerLine]


def ledger(terms: F64, whys: Mapping[str, str]) -> list[LedgerLine]:
    """Return the terms of what some nodes lend, (nodes, terms, 2) in milli-cores and bytes, as their sums; without
    those that nobody has."""
    sums = terms.sum(axis=0).tolist()
    return [
        LedgerLine(term, round(milli / 1000, 3), round(number / 2**30, 3), whys[term])
        for term, (milli, number) in zip(TERMS, sums, strict=True)
        if milli or number
    ]


def pools(cluster: WhatIfCluster, added: Adder, whys: Mapping[str, str]) -> list[PoolLine]:
    """Return the pools of a cluster, first those that bring most for what their services feel; `whys` say what the
    terms of what is lent are."""
    label = _label(cluster.nodes.objects)
    if label is None:
        return []
    names = [node.metadata.labels.get(label, UNNAMED) for node in cluster.nodes.objects]
    found = []
    outcome, p99 = added.nodes(), added.nodes_p99
    whole = max(float(outcome.batch_core_hours.sum()), 1e-9)
    for name in sorted(set(names)):
        rows = np.flatnonzero(np.array([each == name for each in names]))
        hours = float(outcome.batch_core_hours[rows].sum())
        with_batch, alone = p99[:, rows].sum(axis=1).tolist()
        growth = with_batch / alone - 1 if alone else 0.0
        found.append(
            PoolLine(
                f"{label.rpartition('/')[2]}={name}",
                rows.size,
                round(hours, 1),
                round(hours / whole, 4),
                round(growth, 5),
                ledger(added.lent_terms[rows], whys),
            )
        )
    return sorted(found, key=lambda each: (-each.share / max(each.p99_growth, 0.005), each.pool))


def _label(nodes: Sequence[Node]) -> str | None:
    for label in POOL_LABELS:
        values = {node.metadata.labels.get(label, UNNAMED) for node in nodes}
        if 2 <= len(values) <= POOLS_MAX:
            return label
    return None
