"""CPU time of the stages of a pod's way, measured by clocks around the functions that do the work."""

import contextlib
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer
from koordinator.cluster.memory import MemoryCluster
from koordinator.scheduler.engine.cycle import Cycle
from koordinator.scheduler.loop.binding import Binder
from koordinator.scheduler.loop.outcomes import Outcomes
from koordinator.scheduler.queue.scheduling_queue import SchedulingQueue
from koordinator.scheduler.table.nodes import NodeTable

OTHER = "event loop, scheduling loop, the rest"

_SYNC: tuple[tuple[type, str, str], ...] = (
    (Cycle, "run", "cycles (the engine)"),
    (SchedulingQueue, "pop", "queue"),
    (Informer, "_apply", "informer, handlers"),
    (NodeTable, "_refresh", "confirming pods in table and plugins"),
    (Outcomes, "bound", "outcomes: metrics, recording events"),
    (EventRecorder, "_settled", "events written"),
)
_ASYNC: tuple[tuple[type, str, str], ...] = (
    (Binder, "_carry_out", "binder: checks, PreBind"),
    (MemoryCluster, "bind", "store: binding"),
    (EventRecorder, "_step", "events written"),
)


class Stages:
    """Exclusive CPU nanoseconds per stage: a stage inside another does not count for the outer one."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}
        self._stack: list[str] = [OTHER]
        self._since_ns = time.process_time_ns()

    def enter(self, stage: str) -> None:
        self._book()
        self._stack.append(stage)

    def leave(self) -> None:
        self._book()
        self._stack.pop()

    def _book(self) -> None:
        now_ns = time.process_time_ns()
        stage = self._stack[-1]
        self.spent_ns[stage] = self.spent_ns.get(stage, 0) + now_ns - self._since_ns
        self._since_ns = now_ns


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], list[tuple[str, float]]]]:
    """Put clocks around the stages; the function tells each one's share, largest first.

    Counting begins with the first cycle and ends with the last binding, so that setting up is left out.
    """
    stages = Stages()
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in (*_SYNC, *_ASYNC)]
    first = [True]

    def sync(original: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if first[0] and stage == _SYNC[0][2]:
                first[0] = False
                stages.spent_ns.clear()
            stages.enter(stage)
            try:
                return original(*args, **kwargs)
            finally:
                stages.leave()

        return call

    def asynchronous(original: Callable[..., Coroutine[Any, Any, Any]], stage: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await _steps(stages, stage, original(*args, **kwargs))

        return call

    for owner, name, stage in _SYNC:
        setattr(owner, name, sync(getattr(owner, name), stage))
    for owner, name, stage in _ASYNC:
        setattr(owner, name, asynchronous(getattr(owner, name), stage))

    def shares() -> list[tuple[str, float]]:
        total = sum(stages.spent_ns.values())
        ordered = sorted(stages.spent_ns.items(), key=lambda item: -item[1])
        return [(stage, spent / total) for stage, spent in ordered]

    try:
        yield shares
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


@types.coroutine
def _steps(stages: Stages, stage: str, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run a coroutine, counting only while it runs, not while it waits."""
    step: Callable[[], Any] = lambda: work.send(None)  # noqa: E731
    while True:
        stages.enter(stage)
        try:
            waits_for = step()
        except StopIteration as end:
            return end.value
        finally:
            stages.leave()
        try:
            sent = yield waits_for
            step = lambda sent=sent: work.send(sent)  # type: ignore[misc]  # noqa: E731
        except BaseException as error:
            step = lambda error=error: work.throw(error)  # type: ignore[misc]  # noqa: E731
