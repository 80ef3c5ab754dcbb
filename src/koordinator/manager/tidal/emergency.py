"""Decide which lent nodes return at once because services need them. Pure. Source: behaviour/tidal 4, item 3."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koordinator.manager.tidal.nodes import PodDemand, Side, TidalNode, TidalPhase, total
from koordinator.manager.tidal.plan import OVERLOAD_PERCENT, PhaseStep

PENDING_S = 30.0
"""An online pod that found no node for so long is an emergency."""
MEMBERS_PERCENT = 20
"""Of the members, at most this part returns per pass; at least one node."""
HOLD_S = 1800.0
"""After an emergency nothing is lent for this long, or for the cool-down if that is longer."""


class PendingPod(PodDemand, frozen=True, kw_only=True):
    """An online pod that the scheduler found no node for since `since_s`; `admits` tells whether it may use a node,
    by its selectors and tolerations."""

    key: str
    since_s: float
    admits: Callable[[str], bool]


class EmergencyReturn(msgspec.Struct, frozen=True):
    """Nodes that return now, and for whom."""

    steps: tuple[PhaseStep, ...]
    reason: str


def emergency(
    nodes: Sequence[TidalNode],
    reserved: Mapping[str, Side],
    pending: Sequence[PendingPod],
    load_percent: float | None,
    now_s: float,
) -> EmergencyReturn | None:
    """Return the nodes that must return although no rule of time says so; None when none need.

    A pod that fits a node which is online already does not wait for room: more nodes would not help it.
    """
    waiting = [pod for pod in pending if now_s - pod.since_s > PENDING_S]
    is_overloaded = load_percent is None or load_percent > OVERLOAD_PERCENT
    if not waiting and not is_overloaded:
        return None
    lent = sorted(
        (node for node in nodes if node.is_lent and node.name not in reserved),
        key=lambda node: (
            node.phase is TidalPhase.BATCH,
            total(node.batch_pods).share_of(node.allocatable),
            node.lost_core_s(now_s),
            node.name,
        ),
    )
    most = max(len(nodes) * MEMBERS_PERCENT // 100, 1)
    chosen, served = _for_pods(nodes, lent, waiting)
    reason = f"online pod {served} waits for room" if served else ""
    if is_overloaded:
        needed = _for_load(nodes, lent, chosen)
        if needed > len(chosen):
            reason = reason or f"the online load is above {OVERLOAD_PERCENT:g} %"
            chosen += [node for node in lent if node not in chosen][: needed - len(chosen)]
    steps = tuple(_step(node, reason) for node in chosen[:most])
    return EmergencyReturn(steps, reason) if steps else None


def _step(node: TidalNode, reason: str) -> PhaseStep:
    to = TidalPhase.ONLINE if node.phase is TidalPhase.TO_BATCH else TidalPhase.TO_ONLINE
    return PhaseStep(node.name, to, f"emergency: {reason}")


def _for_pods(
    nodes: Sequence[TidalNode], lent: Sequence[TidalNode], waiting: Sequence[PendingPod]
) -> tuple[list[TidalNode], str]:
    """Return the nodes that pods need once they are empty, and the first such pod. Nodes that return already count."""
    returning = [node for node in nodes if node.phase is TidalPhase.TO_ONLINE]
    left = {node.name: [node.free.cpu_milli, node.free.memory_bytes] for node in (*returning, *lent)}
    chosen: list[TidalNode] = []
    served = ""
    for pod in sorted(waiting, key=lambda pod: (-pod.cpu_milli, -pod.memory_bytes, pod.key)):
        if any(node.phase is TidalPhase.ONLINE and _fits(pod, node) for node in nodes):
            continue
        rest = [node for node in lent if node not in chosen]
        home = next((node for node in (*returning, *chosen, *rest) if _fits_in(pod, node, left)), None)
        if home is None:
            continue
        left[home.name][0] -= pod.cpu_milli
        left[home.name][1] -= pod.memory_bytes
        if home in rest:
            chosen.append(home)
            served = served or pod.key
    return chosen, served


def _fits(pod: PendingPod, node: TidalNode) -> bool:
    free = node.free
    has_room = pod.cpu_milli <= free.cpu_milli and pod.memory_bytes <= free.memory_bytes
    return has_room and pod.admits(node.name)


def _fits_in(pod: PendingPod, node: TidalNode, left: Mapping[str, Sequence[int]]) -> bool:
    cpu, memory = left[node.name]
    return pod.cpu_milli <= cpu and pod.memory_bytes <= memory and pod.admits(node.name)


def _for_load(nodes: Sequence[TidalNode], lent: Sequence[TidalNode], chosen: Sequence[TidalNode]) -> int:
    """Return how many lent nodes must return until the load is bearable, the chosen ones first."""
    requested = total(node.requested for node in nodes)
    there = [node.allocatable for node in nodes if not node.is_lent]
    count = 0
    for node in (*chosen, *(node for node in lent if node not in chosen)):
        if 100.0 * requested.share_of(total(there)) <= OVERLOAD_PERCENT:
            break
        there.append(node.allocatable)
        count += 1
    return count
