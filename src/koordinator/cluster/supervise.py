"""The one place where any exception is survived: a loop must outlive what goes wrong inside it.

`supervise` repeats a step for ever; `Guard` shields a loop from the callbacks it runs. Both log with traceback and
count. Inside `strictly()` (tests, simulation) an unexpected exception is raised instead. The few other places that
catch any exception are listed with their reasons in `tests/test_broad_excepts.py`.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn, TypeVar

from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff

log = logging.getLogger(__name__)

_AWAY = (errors.ServiceUnavailable, errors.TooManyRequests)
"""The server is away, or has no time: all requests fail alike until it is back."""
_LOST_RACE = (errors.Conflict, errors.AlreadyExists)
"""Somebody (perhaps we, and our cache does not know yet) was faster: the next try reads afresh."""

T = TypeVar("T")

Step = Callable[[], Awaitable[float]]
"""One round of a loop; returns the seconds to pause before the next."""

_strict: contextvars.ContextVar[bool] = contextvars.ContextVar("strict", default=False)


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Unexpected exceptions end the loops started inside, instead of being logged and survived."""
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


class Guard:
    """Counts and reports the failures of one named thing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure_count = 0
        self.last_error: Exception | None = None
        self._away_count = 0

    def call(self, callback: Callable[..., Any], *args: Any) -> bool:
        """Run a callback; False when it raised (which was logged and counted)."""
        try:
            callback(*args)
        except Exception as error:
            self.failed(error, callback)
            return False
        return True

    def answer(self, callback: Callable[..., T], *args: Any, otherwise: Callable[[Exception], T]) -> T:
        """Return what a callback answers. When it raises, log and count that, and return what `otherwise` says."""
        try:
            return callback(*args)
        except Exception as error:
            self.failed(error, callback)
            return otherwise(error)

    async def call_async(self, callback: Callable[..., Awaitable[Any]], *args: Any) -> Exception | None:
        """Await a callback; the exception that it raised, or None."""
        try:
            await callback(*args)
        except Exception as error:
            self.failed(error, callback)
            return error
        self.succeeded()
        return None

    def failed(self, error: Exception, callback: Callable[..., Any] | None = None) -> None:
        """Count and log a failure. An `ApiError` is the world's fault; anything else is ours, with traceback.

        While the server is away, the first, tenth, hundredth… failure is told: a restart would fill the log with
        one line for each loop, object and try.

        Raises: `error` itself inside `strictly()`, unless it is an `ApiError`.
        """
        self.failure_count += 1
        self.last_error = error
        facts = {"loop": self.name, "error": str(error), "failures": self.failure_count}
        if callback is not None:
            facts["callback"] = getattr(callback, "__qualname__", repr(callback))
        if isinstance(error, _LOST_RACE):
            log.debug("%s retries after a conflict: %s", self.name, error, extra=facts)
            return
        if isinstance(error, errors.ApiError):
            self._away_count += isinstance(error, _AWAY)
            is_reported = not isinstance(error, _AWAY) or str(self._away_count).rstrip("0") == "1"
            level = logging.WARNING if is_reported else logging.DEBUG
            log.log(level, "%s failed: %s", self.name, error, extra=facts)
            return
        if _strict.get():
            raise error
        log.error("%s raised %r", self.name, error, extra=facts, exc_info=error)

    def succeeded(self) -> None:
        """Note that what was away is back."""
        if self._away_count > 1:
            log.info("%s recovered", self.name, extra={"loop": self.name, "failures": self._away_count})
        self._away_count = 0


def attempt(make: Callable[..., T], *args: Any) -> T | Exception:
    """Run code of strangers once (a module imported, a plugin made); return its result, or what it raised for the
    caller to report."""
    try:
        return make(*args)
    except Exception as error:
        return error


async def supervise(step: Step, backoff: Backoff, guard: Guard) -> NoReturn:
    """Repeat `step` until cancelled; after a failure, pause as `backoff` says."""
    while True:
        error = None
        pause_s = 0.0
        try:
            pause_s = await step()
        except Exception as caught:  # CancelledError is not an Exception
            error = caught
        if error is None:
            guard.succeeded()
            backoff.reset()
        else:
            guard.failed(error)
            pause_s = backoff.next_s(error)
        await asyncio.sleep(pause_s)
