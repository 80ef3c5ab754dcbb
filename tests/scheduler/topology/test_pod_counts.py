"""Questions about pods: each has its own answer, kept current as pods come and go."""

from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.table.domain_counts import Topology
from koordinator.scheduler.table.label_columns import LabelColumns
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_counts import NamespaceLabels, PodCounts, PodKinds, PodTerm
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import node, pod

HOSTNAME = "kubernetes.io/hostname"


def term(**labels: str) -> PodTerm:
    return PodTerm.of([LabelSelector(match_labels=labels)], ["default"])


def test_terms_that_begin_alike_are_different_questions() -> None:
    table = NodeTable(ResourceRegistry())
    kinds = table.shared(PodKinds)
    counts = PodCounts(
        kinds, NamespaceLabels(), Topology(table, table.shared(LabelColumns)), counts_leaving=True
    )
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


def test_a_question_is_forgotten_with_the_last_pod_that_it_meant() -> None:
    table = NodeTable(ResourceRegistry())
    topology = Topology(table, table.shared(LabelColumns))
    counts, others = (
        PodCounts(table.shared(PodKinds), NamespaceLabels(), topology, counts_leaving=leaving)
        for leaving in (True, False)
    )
    table.set_node(from_builtins(node("n"), Node))
    asked = (term(app="shop"),)
    for name in ("a", "b"):
        body = pod(name, nodeName="n")
        body["metadata"] |= {"uid": name, "labels": {"app": "shop", "pod": name}}
        table.assign(PodInfo.of(from_builtins(body, Pod), table.registry), "n")
    for each in (counts, others):
        count = each.count(asked)
        assert topology.domains(count, HOSTNAME).total == topology.per_row(count).sum() == 2

    table.unassign("a")
    assert (len(counts), len(others), len(topology)) == (1, 1, 4)
    table.unassign("b")

    assert (len(counts), len(others), len(topology)) == (0, 0, 0)
    assert topology.domains(counts.count(asked), HOSTNAME).total == 0
