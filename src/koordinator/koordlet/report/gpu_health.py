"""Decide whether GPUs are fit for pods, by the critical errors (Xid) that the driver tells.

Source: behaviour/koordlet-observe 10.1.

Most critical errors need a reset of the card, which nobody can tell from outside: the card stays unhealthy until the
agent is started again. Errors that the hardware contained need none: the card is fit again when it has been quiet for
a while. (In the reference no card ever recovers.)
"""

from collections.abc import Iterable

from koordinator.host.gpu import XidEvent
from koordinator.koordlet.report import device
from koordinator.koordlet.report.device import HEALTH_NOT_SUPPORTED, Fault

CONTAINED_XIDS = frozenset((63, 92, 94))
"""Row remapping noted, many corrected errors, contained memory error: only the application is lost.
Source: NVIDIA, "Xid Errors", and the memory error management guide of its data centre cards."""
QUIET_S = 600.0
"""How long a card must have been without critical errors to be fit again."""


class GPUHealth:
    """The known faults of a node's cards, by UUID."""

    def __init__(self, uuids: Iterable[str], without_health: Iterable[str] = ()) -> None:
        """`without_health` are those that do not tell of errors."""
        self._uuids = tuple(uuids)
        self._silent = frozenset(without_health)
        self._faults: dict[str, tuple[Fault, float | None]] = {}
        """With the time from which on the card is fit again, None: never."""

    def heard(self, events: Iterable[XidEvent], now_s: float) -> None:
        """Note errors; one without a card is of all of them."""
        for event in events:
            fault = device.xid_fault(event.xid)
            if fault is None:
                continue
            until_s = now_s + QUIET_S if event.xid in CONTAINED_XIDS else None
            for uuid in self._uuids if not event.uuid else (event.uuid,):
                self._note(uuid, fault, until_s)

    def fault(self, uuid: str, now_s: float) -> Fault | None:
        """Return what is wrong with a card now; None when it is fit."""
        if uuid in self._faults:
            fault, until_s = self._faults[uuid]
            if until_s is None or now_s < until_s:
                return fault
            del self._faults[uuid]
        return HEALTH_NOT_SUPPORTED if uuid in self._silent else None

    def _note(self, uuid: str, fault: Fault, until_s: float | None) -> None:
        """Note a fault; what needs a reset outweighs what passes."""
        known = self._faults.get(uuid)
        if known is None or known[1] is not None:
            self._faults[uuid] = (fault, until_s)
