"""Pods of a replay that have a place and wait in Permit: the members of a gang, until all of them have one."""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from koordinator.api.core import Pod
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugin.handle import JOB_PLUGINS, Actions
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.simulate.replay_reservations import ReplayReservations


class HeldPod(msgspec.Struct, frozen=True):
    """One such pod; `open` are the plugins that have not allowed it yet."""

    placed: Placed
    open: set[str]


class ReplayActions(Actions):
    """The actions that plugins may ask of a replay. Decisions are noted, and carried out between two attempts
    (`settle`)."""

    def __init__(self) -> None:
        self.reservations: ReplayReservations | None = None
        self._held: dict[str, HeldPod] = {}
        self._decided: deque[tuple[Placed, Status]] = deque()
        self._woken: list[str] = []

    def enter_pod(self, old: Pod | None, pod: Pod) -> None:
        if self.reservations is not None:
            self.reservations.enter_pod(pod)

    def remove_pod(self, pod: Pod) -> None:
        if self.reservations is not None:
            self.reservations.remove_pod(pod)

    def hold(self, placed: Placed) -> None:
        """The pod has a place, and has to wait."""
        self._held[placed.pod.uid] = HeldPod(placed, set(placed.waits))

    def activate(self, uids: Iterable[str], *, at_once: bool = True) -> None:
        self._woken.extend(uids)

    def take_woken(self) -> list[str]:
        """uids of pods that shall be tried at once, each asked for since the last call."""
        woken, self._woken = self._woken, []
        return woken

    def allow_waiting(self, uid: str, plugin: str) -> bool:
        held = self._held.get(uid)
        if held is None:
            return False
        held.open.discard(plugin)
        if not held.open:
            del self._held[uid]
            self._decided.append((held.placed, SUCCESS))
        return True

    def reject_waiting(self, uid: str, plugin: str, message: str) -> bool:
        held = self._held.pop(uid, None)
        if held is not None:
            self._decided.append((held.placed, unschedulable(message).by(plugin)))
        return held is not None

    def settle(self, bound: Callable[[Placed], None], given_back: Callable[[Placed, Status], None]) -> None:
        """Carry out what was decided, and what follows from that."""
        while self._decided:
            placed, status = self._decided.popleft()
            if status.is_success:
                bound(placed)
            else:
                given_back(placed, status)


def given_back_reason(status: Status) -> str:
    """Return why a pod that had a place is not placed."""
    if status.plugin in JOB_PLUGINS:
        return "gave its place back: its gang does not fit as a whole"
    return status.message
