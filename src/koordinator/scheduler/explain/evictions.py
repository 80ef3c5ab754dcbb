"""Ask PostFilter plugins what they would do for a pod without a node, without doing it."""

from collections.abc import Sequence
from typing import Any

from koordinator.scheduler.engine.post_filter import CycleDiagnosis, is_over, texts_with
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.explain.answer import NodeVictims, PreemptionAnswer
from koordinator.scheduler.explain.survey import Survey
from koordinator.scheduler.plugin.framework import PostFilterPlugin, PreemptionOffer

PREEMPTION_NODES_MAX = 5

Ways = tuple[PreemptionOffer, ...]


def preemption_of(
    found: Survey,
    asked: CycleDiagnosis,
    plugins: Sequence[PostFilterPlugin[Any]] | None = None,
    nodes_max: int | None = PREEMPTION_NODES_MAX,
) -> PreemptionAnswer:
    """Ask PostFilter plugins as the cycle does (those of the profile, unless said otherwise): in order, until one
    made room or forbids the others to. `nodes_max` limits what is told of each.
    """
    texts: tuple[str, ...] = ()
    nominated = ""
    ways: list[PreemptionOffer] = []
    for plugin in found.profile.post_filters if plugins is None else plugins:
        outlook = plugin.outlook(found.pod, asked)
        status = outlook.result.status
        if status.is_skip:
            continue
        texts = texts_with(texts, status)
        nominated = outlook.result.nominated_node or nominated
        ways += outlook.ways[:nodes_max]
        if is_over(status):
            break
    return PreemptionAnswer(
        message=asked.told(", ".join(texts)), nominated_node=nominated, nodes=victims(ways)
    )


def victims(ways: Sequence[PreemptionOffer]) -> list[NodeVictims]:
    """Ways to make room as an answer has them."""
    return [
        NodeVictims(node=way.node_name, pods=[pod.key for pod in way.pods], budget_violations=way.violations)
        for way in ways
    ]


def ways_for(found: Survey, plugins: Sequence[PostFilterPlugin[Any]]) -> Ways:
    """Ways to make room for a pod that no node takes, best first, of the first plugin that knows any."""
    view = View(found.profile, found.engine.table, found.engine.nominations, found.pod)
    asked = CycleDiagnosis(view, found.profile, found.evaluation, found.kept_free)
    for plugin in plugins:
        outlook = plugin.outlook(found.pod, asked)
        status = outlook.result.status
        if outlook.ways or is_over(status):
            return outlook.ways
    return ()
