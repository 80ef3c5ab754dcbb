"""Track which pods are leaving: what they give back counts once, and nobody is evicted in their place.

Source: behaviour/koordlet-act 5.5.
"""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.koordlet.node_pods import PodRecord

LEAVING_S_MAX = 120.0
"""A pod that is still there after so long does not leave: it gives nothing back, and evicting it again is no use."""
SETTLE_S = 4.0
"""Usage samples of a killed pod are old for a moment."""
REFUSED_S = 30.0
"""How long a pod is left alone after its eviction was refused: a disruption budget does not change within a second."""


class Standing(msgspec.Struct, frozen=True):
    """UIDs of pods that leave, and of those that cannot be made to (now)."""

    leaving: frozenset[str]
    spared: frozenset[str]


class _Leaving(msgspec.Struct):
    """A pod that was seen to leave, or killed: then it is gone once none of the killed containers runs."""

    since_s: float
    killed: frozenset[str] = frozenset()
    ended_s: float | None = None


class Victims:
    """The memory of an evictor. Times are those of a clock that never goes back."""

    def __init__(self) -> None:
        self._leaving: dict[str, _Leaving] = {}
        self._refused_s: dict[str, float] = {}

    def evicted(self, uid: str, now_s: float) -> None:
        """The API took an eviction."""
        self._leaving[uid] = _Leaving(now_s)

    def killed(self, uid: str, containers: Iterable[str], now_s: float) -> None:
        """Containers of a pod were stopped; the kubelet may start others in their place, which are not these."""
        self._leaving[uid] = _Leaving(now_s, frozenset(containers))

    def refused(self, uid: str, now_s: float) -> None:
        """A pod could not be evicted."""
        self._refused_s[uid] = now_s

    def look(self, pods: Mapping[str, PodRecord], now_s: float) -> Standing:
        """Return how pods stand now. Pods that somebody else deletes leave, too, also after a restart of this agent."""
        for uid, record in pods.items():
            if record.pod.metadata.deletion_timestamp is not None and uid not in self._leaving:
                self._leaving[uid] = _Leaving(now_s)
        self._leaving = {
            uid: entry
            for uid, entry in self._leaving.items()
            if uid in pods and not _has_ended(entry, pods[uid], now_s)
        }
        self._refused_s = {
            uid: at_s for uid, at_s in self._refused_s.items() if uid in pods and now_s - at_s < REFUSED_S
        }
        leaving = frozenset(
            uid for uid, entry in self._leaving.items() if now_s - entry.since_s < LEAVING_S_MAX
        )
        return Standing(leaving, frozenset(self._leaving.keys() - leaving) | self._refused_s.keys())


def _has_ended(entry: _Leaving, record: PodRecord, now_s: float) -> bool:
    if not record.is_active:
        return True
    if not entry.killed:
        return False
    if any(container.is_running and container.id in entry.killed for container in record.containers):
        entry.ended_s = None
        return False
    if entry.ended_s is None:
        entry.ended_s = now_s
    return now_s - entry.ended_s >= SETTLE_S
