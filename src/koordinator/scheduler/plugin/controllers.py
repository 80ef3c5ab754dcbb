"""Choose and run the loops of plugins beside scheduling. Source: behaviour/scheduler A2 and C11."""

import random
from collections.abc import Iterable
from typing import Self

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.supervise import Guard, supervise
from koordinator.scheduler.plugin.capabilities import BackgroundController

RESTARTS = BackoffPolicy(initial_s=1.0, max_s=60.0, factor=2.0, jitter_ratio=0.1)


class ControllerFilterError(KoordinatorError, ValueError):
    """The flag `--controller-plugins` cannot be understood."""

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(entry, reason)
        self.entry, self.reason = entry, reason

    def __str__(self) -> str:
        return f"controller plugins: {self.entry!r}: {self.reason}"


class ControllerFilter(msgspec.Struct, frozen=True):
    """Plugins whose controllers run: all but `unwanted` with `*`, else only `wanted`. "No" wins over "yes"."""

    wanted: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()
    all: bool = True

    @classmethod
    def of(cls, entries: Iterable[str], known: Iterable[str] | None = None) -> Self:
        """From the entries of the flag: `*`, `Name`, `-Name`. `known` are names that plugins have.

        Raises: ControllerFilterError for empty entries and names that no plugin has.
        """
        wanted: set[str] = set()
        unwanted: set[str] = set()
        for entry in map(str.strip, entries):
            into, name = (unwanted, entry[1:]) if entry.startswith("-") else (wanted, entry)
            if not name:
                raise ControllerFilterError(entry, "expected *, a plugin's name, or -name")
            if known is not None and name != "*" and name not in set(known):
                raise ControllerFilterError(entry, f"no plugin with controllers is called {name!r}")
            into.add(name)
        return cls(frozenset(wanted - {"*"}), frozenset(unwanted), "*" in wanted)

    def allows(self, plugin: str) -> bool:
        """Return whether the controllers of the plugin run."""
        if plugin in self.unwanted or "*" in self.unwanted:
            return False
        return self.all or plugin in self.wanted


ALL_CONTROLLERS = ControllerFilter()


async def run_for_ever(controller: BackgroundController, rng: random.Random) -> None:
    """Run the loop until cancelled; one that fails or returns starts anew after a growing pause."""
    backoff = Backoff(RESTARTS, rng)

    async def once() -> float:
        await controller.run()
        return backoff.next_s(None)

    await supervise(once, backoff, Guard(f"controller {controller.name}"))
