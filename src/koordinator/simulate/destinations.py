"""Answer where pods of a plan would go: the scheduler's own choice among nodes, after all earlier moves.

Moves are rehearsed on the node table, one on top of the other: the pod is taken from its node, and a successor, as its
workload will make it, is placed and booked as a cycle would do it.
"""

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from koordinator.descheduler.plan import Move, Rows
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.tries import Tries
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, rehearsal_of

SUCCESSOR = "/moved"
"""Behind the uid of a pod that was moved: its successor is another pod."""


class Destinations:
    """The seam of `plan.find` to an engine, to be used as a context; within, the engine's table has the moves on it.

    `pods` and `nodes` name those of the plan by number. Columns that depend on the time must be current.
    """

    def __init__(self, engine: Engine, pods: Sequence[str], nodes: Sequence[str]) -> None:
        self._engine = engine
        self._nodes = nodes
        self._infos = _infos(engine, pods)
        self._pods = pods
        self._moves: tuple[tuple[int, int], ...] = ()
        """(pod, target) of what is on the table."""
        self._stack = contextlib.ExitStack()
        self._trial: Trial | None = None

    def __enter__(self) -> Self:
        self._trial = self._stack.enter_context(rehearsal_of(self._engine.table))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def place(self, pod: int, rows: Rows, moves: Sequence[Move]) -> int | str:
        """Return which of `rows` (nodes,) the scheduler chooses for a pod, or why it takes none; see `plan.Place`."""
        wanted = tuple((move.pod, move.target) for move in moves)
        if wanted != self._moves:
            self._begin_anew(wanted)
        named = {self._nodes[row]: row for row in rows.tolist()}
        return self._put(pod, named)

    def _begin_anew(self, moves: Sequence[tuple[int, int]]) -> None:
        self._stack.close()
        self._moves = ()
        self._trial = self._stack.enter_context(rehearsal_of(self._engine.table))
        for pod, target in moves:
            found = self._put(pod, {self._nodes[target]: target})
            assert found == target, (self._pods[pod], self._nodes[target], found)

    def _put(self, pod: int, rows: dict[str, int]) -> int | str:
        """Move the pod to one of the nodes; where none takes it, it is back where it was."""
        assert self._trial is not None
        table = self._engine.table
        found = self._infos.get(self._pods[pod])
        place = table.place_of(found.uid) if found is not None else None
        if found is None or place is None:
            return "the scheduler does not know it"
        there = [row for name in rows if (row := table.row_of(name)) is not None]
        self._trial.take(found)
        tries = self._stack.enter_context(Tries(self._engine, self._trial, np.array(there, np.intp)))
        node = tries.place(successor_of(found))
        if isinstance(node, str) and not tries.unasked:
            self._moves = (*self._moves, (pod, rows[node]))
            return rows[node]
        if isinstance(node, str):
            self._moves = (*self._moves, (-1, -1))  # it stands where it may not: begin anew for the next
            return f"{', '.join(sorted(tries.unasked))} would have to book for it, which cannot be tried"
        self._trial.add(found, table.name_of(place.row))
        return node.message


def successor_of(pod: PodInfo) -> PodInfo:
    """Return the pod that a workload makes in place of this one: it has no node yet."""
    meta = msgspec.structs.replace(pod.pod.metadata, uid=pod.uid + SUCCESSOR)
    spec = msgspec.structs.replace(pod.pod.spec, node_name="")
    whole = msgspec.structs.replace(pod.pod, metadata=meta, spec=spec)
    return msgspec.structs.replace(pod, pod=whole, uid=meta.uid)


def _infos(engine: Engine, keys: Sequence[str]) -> dict[str, PodInfo]:
    """Return the pods of the table that are named."""
    wanted = set(keys)
    table = engine.table
    rows = table.rows.tolist()
    return {pod.key: pod for row in rows for pod in table.pods_at(row).values() if pod.key in wanted}
