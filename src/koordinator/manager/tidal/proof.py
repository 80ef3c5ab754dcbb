"""Ask the scheduler whether the online pods of nodes that a pass lends would all be placed on other online nodes.

It answers for all of them together, with its own filters and as if room was reserved for each, so that what no request
tells (affinity, spread, volumes, cards, quotas, taints) counts before a node is marked. Source: behaviour/tidal 4.
"""

from collections.abc import Iterator

from koordinator.cluster.proof import QUESTIONS_MAX, MoveQuestion, ProofError, Prove
from koordinator.manager.tidal.nodes import TidalNode, TidalPhase
from koordinator.manager.tidal.pool_pass import PoolPass

HOSTS_MAX = 256
"""Nodes among which the scheduler may choose, those with most room by requests."""


async def refusals(found: PoolPass, prove: Prove) -> dict[str, str]:
    """Return by node why it cannot be lent: one of its pods is placed nowhere, or the scheduler says nothing."""
    asked = list(_questions(found))
    refused: dict[str, str] = {}
    for start in range(0, len(asked), QUESTIONS_MAX):
        part = asked[start : start + QUESTIONS_MAX]
        try:
            answers = await prove([question for _, _, question in part])
        except ProofError as error:
            nodes = {node for node, _, _ in part}
            return refused | dict.fromkeys(nodes, f"nobody says whether its pods fit elsewhere: {error}")
        for (node, pod, _), answer in zip(part, answers, strict=True):
            if not answer.node:
                refused.setdefault(
                    node, f"the scheduler places pod {pod} on no other online node: {answer.why}"
                )
    return refused


def _questions(found: PoolPass) -> Iterator[tuple[str, str, MoveQuestion]]:
    """Yield node, pod and question for each pod that would have to leave; the largest of a node first."""
    lent = {step.node for step in found.decision.plan.steps if step.to is TidalPhase.TO_BATCH}
    stays = [node for node in found.nodes if node.phase is TidalPhase.ONLINE and node.name not in lent]
    hosts = tuple(node.name for node in sorted(stays, key=_fullness)[:HOSTS_MAX])
    for node in found.nodes:
        if node.name in lent:
            for pod in sorted(node.online_pods, key=lambda pod: (-pod.cpu_milli, -pod.memory_bytes, pod.key)):
                if not pod.is_going:
                    yield node.name, pod.key, MoveQuestion(pod.uid, hosts)


def _fullness(node: TidalNode) -> tuple[float, str]:
    return -node.free.share_of(node.allocatable), node.name
