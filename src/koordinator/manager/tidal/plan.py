"""Decide which nodes of a tidal pool change sides now. Pure. Source: behaviour/tidal 4.

A step only starts a change: `to-batch` and `to-online` nodes are drained by others, and finish when they are empty.
"""

import enum
from collections.abc import Sequence

import msgspec

from koordinator.manager.tidal.target import Reserves


class TidalPhase(enum.Enum):
    """The state of a node, as its label says; a new node is online."""

    ONLINE = "online"
    TO_BATCH = "to-batch"
    BATCH = "batch"
    TO_ONLINE = "to-online"


class Side(enum.Enum):
    """The side that a reserved node never leaves."""

    ONLINE = "online"
    BATCH = "batch"


class PodDemand(msgspec.Struct, frozen=True):
    """The requests of a pod."""

    cpu_milli: int
    memory_bytes: int


class TidalNode(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a pool. `since_s`: when it entered its phase; `lost_work`: what its batch pods would lose.

    `free` is what is left of it for online pods while it is online; `reserve` what its label says.
    """

    name: str
    phase: TidalPhase = TidalPhase.ONLINE
    since_s: float = 0.0
    reserve: Side | None = None
    allocatable: PodDemand
    free: PodDemand
    online_pods: tuple[PodDemand, ...] = ()
    lost_work: float = 0.0

    @property
    def is_lent(self) -> bool:
        """Return whether it is on the batch side or on its way there."""
        return self.phase in (TidalPhase.TO_BATCH, TidalPhase.BATCH)


class PhaseStep(msgspec.Struct, frozen=True):
    """A node's next phase, and why."""

    node: str
    to: TidalPhase
    reason: str


class TidalPlan(msgspec.Struct, frozen=True):
    """The changes to start now; `blocked` says why a node that should be lent is not."""

    steps: tuple[PhaseStep, ...]
    blocked: dict[str, str]


def assign_reserves(nodes: Sequence[TidalNode], sides: Reserves) -> dict[str, Side]:
    """Return which nodes are reserved: present ones stay as long as the counts fit, new ones come from their side
    by name.
    """
    reserved: dict[str, Side] = {}
    for side, count in ((Side.ONLINE, sides.online), (Side.BATCH, sides.batch)):
        free = [node for node in nodes if node.name not in reserved and node.reserve in (side, None)]
        free += [node for node in nodes if node.name not in reserved and node not in free]
        ranked = sorted(
            free, key=lambda n: (n.reserve is not side, n.is_lent is not (side is Side.BATCH), n.name)
        )
        reserved.update((node.name, side) for node in ranked[:count])
    return reserved


def plan(
    nodes: Sequence[TidalNode],
    reserved: dict[str, Side],
    target: int,
    in_flight_max: int,
    cooldown_s: float,
    now_s: float,
) -> TidalPlan:
    """Steps towards `target` lent nodes besides the batch reserve; at most `in_flight_max` nodes change at a time."""
    tidal = [node for node in nodes if node.name not in reserved]
    lent = sum(node.is_lent for node in tidal)
    moving = sum(node.phase in (TidalPhase.TO_BATCH, TidalPhase.TO_ONLINE) for node in nodes)
    room = max(in_flight_max - moving, 0)
    ready = [node for node in tidal if now_s - node.since_s >= cooldown_s]
    if lent > target:
        return TidalPlan(tuple(_returns(tidal, ready, lent - target, room)), {})
    return _lends(nodes, ready, reserved, min(target - lent, room))


def _returns(
    tidal: Sequence[TidalNode], ready: Sequence[TidalNode], wanted: int, room: int
) -> list[PhaseStep]:
    """Reversals first, they cost nothing and take no room; then batch nodes with the least work to lose."""
    reversed_ = sorted(
        (node for node in tidal if node.phase is TidalPhase.TO_BATCH), key=lambda node: node.name
    )
    steps = [
        PhaseStep(node.name, TidalPhase.ONLINE, "not to be lent after all") for node in reversed_[:wanted]
    ]
    batch = sorted(
        (node for node in ready if node.phase is TidalPhase.BATCH),
        key=lambda node: (node.lost_work, node.name),
    )
    more = min(wanted - len(steps), room + len(steps))
    return steps + [
        PhaseStep(node.name, TidalPhase.TO_ONLINE, f"loses the least batch work ({node.lost_work:g})")
        for node in batch[:more]
    ]


def _lends(
    nodes: Sequence[TidalNode], ready: Sequence[TidalNode], reserved: dict[str, Side], count: int
) -> TidalPlan:
    """Return the cheapest online nodes whose pods fit elsewhere, all of them together."""
    free = {
        node.name: [node.free.cpu_milli, node.free.memory_bytes]
        for node in nodes
        if node.phase is TidalPhase.ONLINE and reserved.get(node.name) is not Side.BATCH
    }
    steps: list[PhaseStep] = []
    blocked: dict[str, str] = {}
    for node in sorted((node for node in ready if node.phase is TidalPhase.ONLINE), key=_cost):
        if len(steps) == count:
            break
        others = {name: left for name, left in free.items() if name != node.name}
        placed = _placed(node.online_pods, others)
        if placed is None:
            blocked[node.name] = "its online pods do not fit on the other online nodes"
            continue
        free = placed
        steps.append(PhaseStep(node.name, TidalPhase.TO_BATCH, "is the cheapest to empty"))
    return TidalPlan(tuple(steps), blocked)


def _cost(node: TidalNode) -> tuple[float, int, str]:
    cpu = sum(pod.cpu_milli for pod in node.online_pods) / max(node.allocatable.cpu_milli, 1)
    memory = sum(pod.memory_bytes for pod in node.online_pods) / max(node.allocatable.memory_bytes, 1)
    return max(cpu, memory), len(node.online_pods), node.name


def _placed(pods: Sequence[PodDemand], free: dict[str, list[int]]) -> dict[str, list[int]] | None:
    """Return what is left of each node when all pods moved there, the largest first; None when one fits nowhere."""
    left = {name: list(each) for name, each in sorted(free.items())}
    for pod in sorted(pods, key=lambda pod: (-pod.cpu_milli, -pod.memory_bytes)):
        fitting = (each for each in left.values() if each[0] >= pod.cpu_milli and each[1] >= pod.memory_bytes)
        home = next(fitting, None)
        if home is None:
            return None
        home[0] -= pod.cpu_milli
        home[1] -= pod.memory_bytes
    return left
