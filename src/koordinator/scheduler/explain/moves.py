"""Rehearse moves of running pods: where the scheduler would put the successor of each, after all earlier moves.

Room is reserved for a successor while its predecessor runs, so a successor is placed first and the pod taken from its
node then; or not at all, where all room is reserved before anything is evicted.
"""

import contextlib
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.tries import Tries
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, rehearsal_of

SUCCESSOR = "/moved"
"""Behind the uid of a pod that was moved: its successor is another pod."""
UNKNOWN = "the scheduler does not know it"


class Found(msgspec.Struct, frozen=True):
    """The node that the scheduler chose, empty when it chose none: then `why` says what is in the way."""

    node: str
    why: str = ""


class PodToMove(msgspec.Struct, frozen=True):
    """A pod on its way, and the nodes among which the scheduler may choose."""

    uid: str
    nodes: tuple[str, ...]


class Rehearsal:
    """Moves one on top of the other, to be used as a context; in the end the engine's table is as before.

    Columns that depend on the time must be current. `sources_stay`: nothing is evicted before all is reserved.
    """

    def __init__(self, engine: Engine, *, sources_stay: bool = False) -> None:
        self.is_spoiled = False
        """True when a move that could not be made is booked in part, so that nothing more can be asked."""
        self._engine = engine
        self._sources_stay = sources_stay
        self._stack = contextlib.ExitStack()
        self._trial: Trial | None = None

    def __enter__(self) -> Self:
        self._trial = self._stack.enter_context(rehearsal_of(self._engine.table))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def move(self, uid: str, nodes: Iterable[str]) -> Found:
        """Move the pod to the node of these that the scheduler chooses; where there is none, nothing changes."""
        assert self._trial is not None
        assert not self.is_spoiled
        table = self._engine.table
        place = table.place_of(uid)
        if place is None:
            return Found("", UNKNOWN)
        rows = [row for name in nodes if (row := table.row_of(name)) is not None and row != place.row]
        tries = self._stack.enter_context(Tries(self._engine, self._trial, np.array(rows, np.intp)))
        found = tries.place(successor_of(place.pod))
        if not isinstance(found, str):
            return Found("", found.message)
        if tries.unasked:
            self.is_spoiled = True
            return Found(
                "", f"{', '.join(sorted(tries.unasked))} would have to book for it, which cannot be tried"
            )
        if not self._sources_stay:
            self._trial.take(place.pod)
        return Found(found)


def prove(engine: Engine, moves: Sequence[PodToMove]) -> list[Found]:
    """Return where each pod would go if room was reserved for all of them, in this order, before any is evicted.

    Where one cannot go, the others are asked without it.
    """
    found: list[Found] = []
    with contextlib.ExitStack() as stack:
        rehearsal: Rehearsal | None = None
        for each in moves:
            if rehearsal is None or rehearsal.is_spoiled:
                stack.close()
                rehearsal = stack.enter_context(Rehearsal(engine, sources_stay=True))
                for earlier, made in zip(moves, found, strict=False):
                    if made.node:
                        rehearsal.move(earlier.uid, (made.node,))
            found.append(rehearsal.move(each.uid, each.nodes))
    return found


def successor_of(pod: PodInfo) -> PodInfo:
    """Return the pod that a workload makes in place of this one: it has no node yet."""
    meta = msgspec.structs.replace(pod.pod.metadata, uid=pod.uid + SUCCESSOR)
    spec = msgspec.structs.replace(pod.pod.spec, node_name="")
    whole = msgspec.structs.replace(pod.pod, metadata=meta, spec=spec)
    return msgspec.structs.replace(pod, pod=whole, uid=meta.uid)
