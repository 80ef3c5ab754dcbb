"""Define an eviction strategy: one file that declares its gates, flags, settings, victims and how much is enough.

`evictions` lists them. A strategy only says what it wants (`EvictionTask`); rounds, pauses, disruption budgets, events,
the audit log and metrics are the same for all (`evictor`).
"""

import abc
import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from koordinator.api import decode, resources, slo
from koordinator.api.core import Pod
from koordinator.api.feature_gates import FeatureGate
from koordinator.api.slo import NodeSLOSpec
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.config import QoSConfig
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.eviction import EvictionTask
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

_MILLI = 1_000
SLACK_RATIO = 1.1
"""Rates are measured over a moment and may come out a little high."""

S = TypeVar("S", bound=msgspec.Struct)


class Flag(msgspec.Struct, frozen=True):
    """A flag of the command line with a whole number of seconds."""

    name: str
    default_s: int
    words: str

    def of(self, config: QoSConfig) -> float:
        """Return what the command line says."""
        return config.evictions.get(self.name, self.default_s)


class CoolDown:
    """No round within `cool_s` after one that evicted. Times are those of a clock that never goes back."""

    def __init__(self, cool_s: float, since_s: float | None = None) -> None:
        """`since_s`: when the first rest begins; None for none."""
        self._cool_s = cool_s
        self._since_s = since_s

    def is_over(self, now_s: float) -> bool:
        """Return whether a round may evict."""
        return self._since_s is None or now_s - self._since_s >= self._cool_s

    def begin(self, now_s: float) -> None:
        """Rest from now on: somebody was evicted."""
        self._since_s = now_s


class CarriesOut(Protocol):
    """The evictor, as strategies see it."""

    async def carry_out(self, tasks: Sequence[EvictionTask]) -> bool:
        """Do one round over the tasks; return whether any pod was newly evicted."""
        ...


class EvictionStrategy(abc.ABC):
    """Asks for tasks and hands them to the evictor; after an eviction it rests."""

    name: str
    gates: tuple[str, ...]
    """Its features: the feature gates that a user sets and a pod names in its eviction policy."""
    new_gates: Mapping[str, FeatureGate] = {}
    """Gates that the reference does not have (`api.feature_gates` has the others)."""
    interval: Flag
    cool_down: Flag
    rests_first = False
    """After the start it rests once, so that there is something to average."""
    after = Topic.USAGE

    def __init__(self, shared: Shared, evictor: CarriesOut) -> None:
        self._shared = shared
        self._evictor = evictor
        self._features = frozenset(gate for gate in self.gates if shared.gates.is_on(gate))
        self._cool_down: CoolDown | None = None
        self._read_settings: tuple[NodeSLOSpec, msgspec.Struct | None] | None = None
        self.interval_s = self.interval.of(shared.config.qos)

    @abc.abstractmethod
    def tasks(self, now_s: float) -> list[EvictionTask]:
        """Return what its features want by what was measured last, in the order in which they count."""

    async def run(self) -> None:
        """Do one round."""
        now_s = asyncio.get_running_loop().time()
        if self._cool_down is None:
            rest_s = self.cool_down.of(self._shared.config.qos)
            self._cool_down = CoolDown(rest_s, now_s if self.rests_first else None)
        tasks = self.tasks(now_s)
        if tasks and self._cool_down.is_over(now_s) and await self._evictor.carry_out(tasks):
            self._cool_down.begin(asyncio.get_running_loop().time())

    def disable(self) -> None:  # noqa: B027 # nothing to do, for all of them
        """Put nothing back: who was evicted stays so."""

    def active_pods(self) -> list[Pod]:
        """Return the pods that are Pending or Running, and containers of other runtimes, as pods."""
        view = self._shared.view
        found = [record.pod for record in view.pods.values() if record.is_active]
        return found + [each.record.pod for each in view.foreign.values()]

    def used_cores(self) -> Mapping[str, float]:
        """Return the CPU in use by pods and containers of other runtimes, by UID."""
        shared = self._shared
        return shared.readings.pods(kinds.POD_CPU) | _used_or_requested(
            shared, kinds.FOREIGN_CPU, resources.CPU
        )

    def used_bytes(self) -> Mapping[str, float]:
        """Return the memory in use by pods and containers of other runtimes, by UID."""
        shared = self._shared
        return shared.readings.pods(kinds.POD_MEMORY) | _used_or_requested(
            shared, kinds.FOREIGN_MEMORY, resources.MEMORY
        )

    def settings(self, gate: str, view: type[S]) -> S | None:
        """Return the settings of a gate that only NodeSLO's `extensions` has; None without any that can be read."""
        spec = self._shared.view.slo
        if spec is None:
            return None
        if self._read_settings is None or self._read_settings[0] is not spec:
            self._read_settings = spec, _decoded(spec, gate, view)
        found = self._read_settings[1]
        return found if isinstance(found, view) else None


def _decoded(spec: NodeSLOSpec, gate: str, view: type[S]) -> S | None:
    of_all = slo.plain_extensions(spec.extensions).get(slo.EVICTION)
    raw = of_all.get(gate) if isinstance(of_all, Mapping) else None
    if raw is None:
        return None
    try:
        return decode.from_builtins(raw, view)
    except msgspec.ValidationError as error:
        log.warning("eviction settings invalid", extra={"feature": gate, "problem": str(error)})
        return None


def _used_or_requested(shared: Shared, kind: str, resource: str) -> dict[str, float]:
    """Return what containers of other runtimes use, by UID; what they asked for where that is not measured.

    Units: cores and bytes. Source: behaviour/yarn 8.6.
    """
    foreign = shared.view.foreign
    if not foreign:
        return {}
    measured = shared.readings.containers(kind)
    unit = _MILLI if resource == resources.CPU else 1
    return {
        uid: measured[uid] if uid in measured else eviction.request(each.record.pod, resource).amount / unit
        for uid, each in foreign.items()
    }


def plausible(value: float | None, capacity: float) -> float | None:
    """Return the value if a machine of that capacity can have it, else None: nobody is evicted on other numbers."""
    return value if value is not None and 0 <= value <= capacity * SLACK_RATIO else None


class PlausibleUsage(Mapping[str, float]):
    """Usage by UID, without values that cannot be true; read only when somebody asks."""

    def __init__(self, read: Callable[[], Mapping[str, float]], capacity: float) -> None:
        self._read = read
        self._capacity = capacity
        self._known: dict[str, float] | None = None

    def __getitem__(self, uid: str) -> float:
        return self._values()[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def _values(self) -> dict[str, float]:
        if self._known is None:
            read = self._read().items()
            self._known = {uid: value for uid, value in read if plausible(value, self._capacity) is not None}
        return self._known
