"""An asyncio event loop whose clock jumps to the next timer when nothing is left to do.

Code under it never sleeps: a day of timers passes as fast as its callbacks run, always in the same order.
Work that the loop cannot foresee still counts as "something to do": ready sockets are served before time
moves, and while a job runs in an executor thread, time stands still.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from koordinator import clock

T = TypeVar("T")

EPOCH_S = 1_700_006_400.0  # Wednesday 2023-11-15 00:00 UTC; any fixed midnight makes runs repeat


ASKS_RARELY = 64
"""Turns of the loop that may pass before signals are looked for, where only they could arrive."""


class Deadlock(RuntimeError):
    """Every task waits, and no timer, socket, thread or process can wake one."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that answers "nothing happened for `timeout` seconds" by moving the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.threads_running = 0
        self.processes_running = 0
        self._unheard = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and len(self.get_map()) == 1 and not self.threads_running:
            # The self-pipe alone: nobody can be heard from, and asking the kernel costs more than a callback.
            self._unheard = (self._unheard + 1) % ASKS_RARELY
            if self._unheard:
                self.now_s += max(timeout, 0.0)
                return []
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.threads_running:
            return super().select(None)  # the end of the job wakes the loop through its self-pipe
        if timeout is not None:
            self.now_s += timeout
            return []
        # A socket besides the self-pipe: the other side may be another process. A child may close its pipes before it
        # ends; then the self-pipe alone tells of its end.
        if len(self.get_map()) > 1 or self.processes_running:
            return super().select(None)
        raise Deadlock("every task waits for something, and no timer, socket, thread or process can wake one")


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; its `time()` starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # Adding a waiting time to the clock may miss the timer by a rounding error; a microsecond covers it.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads_running += 1
        future.add_done_callback(self._thread_finished)
        return future

    async def subprocess_exec(
        self, protocol_factory: Callable[[], Any], *args: Any, **kwargs: Any
    ) -> tuple[asyncio.SubprocessTransport, Any]:
        def counted() -> Any:
            protocol = protocol_factory()
            tell_end = protocol.process_exited

            def exited() -> None:
                self._jumping.processes_running -= 1
                tell_end()

            protocol.process_exited = exited
            return protocol

        self._jumping.processes_running += 1
        try:
            return await super().subprocess_exec(counted, *args, **kwargs)
        except OSError:  # it never started
            self._jumping.processes_running -= 1
            raise

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self._jumping.threads_running += 1  # it joins the workers in a thread of its own
        try:
            await super().shutdown_default_executor()
        finally:
            self._jumping.threads_running -= 1

    def _thread_finished(self, _: object) -> None:
        self._jumping.threads_running -= 1


def run_virtual(main: Callable[[clock.LoopClock], Awaitable[T]], epoch_s: float = EPOCH_S) -> T:
    """Run `main(clock)` to its end under virtual time; `clock.now()` begins at `epoch_s`. Raises: Deadlock when nothing
    could ever wake the remaining tasks; whatever `main` raises."""

    async def start() -> T:
        return await main(clock.LoopClock(asyncio.get_running_loop(), epoch_s))

    coroutine: Coroutine[Any, Any, T] = start()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
