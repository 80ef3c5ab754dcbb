"""Define what every runtime hook has: a name, which is its gate and the owner of its writes, rules, and a way back.

Source: behaviour/koordlet-act 13.1 and 13.6.
"""

import abc
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gate_tables import FeatureGate
from koordinator.host.cgroups import KernelSupport
from koordinator.koordlet.hooks.commands import Runner
from koordinator.koordlet.hooks.idle_groups import IdleGroups
from koordinator.koordlet.hooks.registry import HookRegistry
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

T = TypeVar("T")


class HookRule(Generic[T]):
    """The rule that a hook took from the view; malformed input keeps the last good one."""

    def __init__(
        self,
        name: str,
        topics: Collection[Topic],
        parse: Callable[[], T | None],
        initial: T,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`parse` answers None while nothing is known. Raises (parse): KoordinatorError."""
        self.name = name
        self.topics = frozenset(topics)
        self.value = initial
        self.changed = changed
        """Called after all rules of a topic were read, when this one differs."""
        self._parse = parse
        self._problem = ""

    def refresh(self) -> bool:
        """Read again; whether it differs now."""
        try:
            value = self._parse()
        except KoordinatorError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("rule not changed", extra={"rule": self.name, "problem": self._problem})
            return False
        self._problem = ""
        if value is None or value == self.value:
            return False
        self.value = value
        return True


class HookTools(msgspec.Struct, frozen=True):
    """The tools that hooks share; `runner` runs commands of the host in place of the host's own."""

    idle: IdleGroups
    runner: Runner | None = None


class Hook(abc.ABC):
    """One feature. Subclasses say what they answer where; nothing runs before `register`."""

    name: ClassVar[str]
    """Its feature gate."""

    new_gate: ClassVar[FeatureGate | None] = None
    """The gate where the reference has none of that name (`api.feature_gate_tables` has the others)."""

    waits: ClassVar[bool] = False
    """It has work of its own in `follow`."""

    needs_runtime: ClassVar[bool] = False
    """Only a container runtime that asks hooks can carry its answers out."""

    wants_idle: ClassVar[bool] = False
    """It makes groups idle by `tools.idle`."""

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        self.shared = shared
        self.invalidate: Callable[[], None] = lambda: None
        """To be called when answers change otherwise than by a rule: all pods are asked for anew."""

    def support(self) -> KernelSupport:
        """Return whether this host can do it at all; asked at the start and, while not, now and then."""
        return KernelSupport(True)

    def rules(self) -> Sequence[HookRule[Any]]:
        """Return what it follows."""
        return ()

    @abc.abstractmethod
    def register(self, registry: HookRegistry) -> None:
        """Say which functions answer where."""

    def on_pods(self) -> None:  # noqa: B027 - most hooks need none
        """All pods were reconciled: once per refresh."""

    def disable(self) -> None:
        """Put back what it changed."""
        self.shared.executor.restore(self.name)

    async def follow(self) -> None:  # noqa: B027 - most hooks need none
        """Work that waits (commands, say), after each change and every reconcile interval."""

    async def close(self) -> None:  # noqa: B027 - most hooks need none
        """Undo what `follow` did; awaited by whoever disables the hook."""
