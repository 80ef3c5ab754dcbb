"""Nodes of a tidal pool and their pods, as decisions see them. Source: behaviour/tidal 3.1 and 4."""

import enum
from collections.abc import Iterable

import msgspec

from koordinator.api import labels


class TidalPhase(enum.Enum):
    """The state of a node, as its label says; a new node is online."""

    ONLINE = "online"
    TO_BATCH = "to-batch"
    BATCH = labels.TIDAL_BATCH
    TO_ONLINE = labels.TIDAL_TO_ONLINE


class Side(enum.Enum):
    """The side that a reserved node never leaves."""

    ONLINE = "online"
    BATCH = "batch"


class PodDemand(msgspec.Struct, frozen=True):
    """The requests of a pod."""

    cpu_milli: int
    memory_bytes: int

    def share_of(self, whole: "PodDemand") -> float:
        """Return the larger of both shares, 1 being all of `whole`."""
        return max(self.cpu_milli / max(whole.cpu_milli, 1), self.memory_bytes / max(whole.memory_bytes, 1))


NOTHING = PodDemand(0, 0)


class TidalPod(PodDemand, frozen=True, kw_only=True):
    """An online pod, or a batch pod that has cores and memory of the machine itself.

    `workload` is the UID of its controller, empty without; `is_scaled` tells whether a ReplicaSet or CloneSet
    chooses by deletion cost which of its pods go; `cost` is that of the pod, None when it has none.
    """

    namespace: str = ""
    name: str = ""
    uid: str = ""
    workload: str = ""
    labels: dict[str, str] = {}
    started_s: float = 0.0
    is_going: bool = False
    return_at: str = ""
    is_scaled: bool = False
    cost: str | None = None
    is_cost_ours: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def total(demands: Iterable[PodDemand]) -> PodDemand:
    """Return the sum of both amounts."""
    cpu, memory = 0, 0
    for each in demands:
        cpu += each.cpu_milli
        memory += each.memory_bytes
    return PodDemand(cpu, memory)


class TidalNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a pool.

    `since_s`: when it entered its phase; `free`: what is left of it for online pods, batch pods that have to leave
    not counted; `requested`: the sum of its online pods; `reserve` and `reason` as it is marked;
    `blocked_until_s`: no drain is tried before.
    """

    name: str
    phase: TidalPhase = TidalPhase.ONLINE
    since_s: float = 0.0
    reserve: Side | None = None
    reason: str = ""
    blocked_until_s: float = 0.0
    allocatable: PodDemand
    free: PodDemand
    requested: PodDemand = NOTHING
    online_pods: tuple[TidalPod, ...] = ()
    batch_pods: tuple[TidalPod, ...] = ()
    has_our_costs: bool = False
    """Whether some of its online pods have a deletion cost of ours."""

    @property
    def is_lent(self) -> bool:
        """Return whether it is on the batch side or on its way there."""
        return self.phase in (TidalPhase.TO_BATCH, TidalPhase.BATCH)

    @property
    def is_moving(self) -> bool:
        """Return whether it is changing sides."""
        return self.phase in (TidalPhase.TO_BATCH, TidalPhase.TO_ONLINE)

    def lost_core_s(self, now_s: float) -> float:
        """Return the work that ends with its batch pods: age times requested cores, in core-seconds."""
        return sum(max(now_s - pod.started_s, 0.0) * pod.cpu_milli for pod in self.batch_pods) / 1000
