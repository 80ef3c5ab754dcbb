"""Questions about pods: each has its own answer, kept current as pods come and go."""

from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_counts import PodCounts, PodKinds
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.pod_terms import NamespaceLabels, PodTerm
from tests.scheduler.world import node, pod


def term(**labels: str) -> PodTerm:
    return PodTerm.of([LabelSelector(match_labels=labels)], ["default"])


def test_terms_that_begin_alike_are_different_questions() -> None:
    table = NodeTable(ResourceRegistry())
    kinds = table.shared(PodKinds)
    counts = PodCounts(kinds, NamespaceLabels(), counts_leaving=True)
    table.set_node(from_builtins(node("n"), Node))
    for name, tier in (("a", "front"), ("b", "front"), ("c", "back")):
        body = pod(name, nodeName="n")
        body["metadata"] |= {"uid": name, "labels": {"app": "shop", "tier": tier}}
        table.assign(PodInfo.of(from_builtins(body, Pod), table.registry), "n")

    asked = [
        (term(app="shop"),),
        (term(app="shop"), term(tier="front")),
        (term(app="shop"), term(tier="back")),
    ]

    assert [sum(counts.count(terms).rows.values()) for terms in asked] == [3, 2, 1]
    assert len(counts) == 3
