"""A pod on a hollow node, as its kubelet knows it."""

import enum
from typing import Any

from koordinator.api.core import Pod, PodSpec
from koordinator.local.nodes.kubelet import PodRun
from koordinator.local.nodes.probes import Health, Timeline


class PodAction(enum.Enum):
    """The action that is due for a pod."""

    START = "start"
    STOP = "stop"
    RETRY_END = "retry end"
    PROBE = "probe"
    RESIZE = "resize"


class HollowPod:
    """The state of a pod beside its object."""

    __slots__ = (
        "allocated",
        "applied",
        "ended",
        "last_state",
        "lines",
        "obj",
        "probe_s",
        "resize",
        "restarts",
        "row",
        "slot",
        "started_s",
        "stopping",
    )

    def __init__(self, obj: Pod, slot: int, row: int) -> None:
        self.obj = obj
        self.slot = slot
        self.row = row
        self.restarts = 0
        self.started_s = 0.0
        self.last_state: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.stopping = False
        self.lines: dict[str, Timeline] | None = None
        """What the probes of this run find; None without probes."""
        self.probe_s = 0.0
        """When something changes next by that; other wake-ups are old."""
        self.allocated: PodSpec | None = None
        """The spec whose amounts are promised, while they are not those of the pod's own."""
        self.applied: PodSpec | None = None
        """The same for what runs."""
        self.resize: tuple[dict[str, Any], ...] = ()
        """Conditions about a change of amounts."""

    @property
    def runs(self) -> bool:
        """Return whether its containers run."""
        return self.started_s > 0.0 and self.ended is None

    def run(self, health: Health | None = None) -> PodRun:
        """Return the facts of its status."""
        return PodRun(
            row=self.row,
            slot=self.slot,
            since_s=self.started_s,
            restarts=self.restarts,
            last_state=self.last_state,
            health=health,
            allocated=self.allocated,
            applied=self.applied,
            resize=self.resize,
        )
