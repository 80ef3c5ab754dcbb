"""Answer where pods of a plan would go: the scheduler's own choice among nodes, after all earlier moves."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from koordinator.descheduler.plan import Move, Rows
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.moves import Rehearsal


class Destinations:
    """The seam of `plan.find` to an engine, to be used as a context; within, the engine's table has the moves on it.

    `uids` and `nodes` are those of the plan by number. Columns that depend on the time must be current.
    """

    def __init__(self, engine: Engine, uids: Sequence[str], nodes: Sequence[str]) -> None:
        self._engine = engine
        self._nodes = nodes
        self._uids = uids
        self._moves: tuple[tuple[int, int], ...] = ()
        """(pod, target) of what is on the table."""
        self._rehearsal = Rehearsal(engine)

    def __enter__(self) -> Self:
        self._rehearsal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rehearsal.__exit__(kind, error, trace)

    def place(self, pod: int, rows: Rows, moves: Sequence[Move]) -> int | str:
        """Return which of `rows` (nodes,) the scheduler chooses for a pod, or why it takes none; see `plan.Place`."""
        wanted = tuple((move.pod, move.target) for move in moves)
        if wanted != self._moves or self._rehearsal.is_spoiled:
            self._begin_anew(wanted)
        named: dict[str, int] = {self._nodes[row]: row for row in rows.tolist()}
        found = self._rehearsal.move(self._uids[pod], named)
        if not found.node:
            return found.why
        self._moves = (*self._moves, (pod, named[found.node]))
        return named[found.node]

    def _begin_anew(self, moves: tuple[tuple[int, int], ...]) -> None:
        self._rehearsal.__exit__(None, None, None)
        self._rehearsal = Rehearsal(self._engine).__enter__()
        self._moves = moves
        for pod, target in moves:
            found = self._rehearsal.move(self._uids[pod], (self._nodes[target],))
            assert found.node, (self._uids[pod], self._nodes[target], found.why)
