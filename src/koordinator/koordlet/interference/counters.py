"""Count cycles, instructions and cache misses of containers, learn what is usual for their workloads, and notice when
it is not.

Decayed moments tell what is usual. A value beyond the mean by twice the deviation is a violation; a container with
three of them within five minutes that uses a quarter of a core at least is an outlier. Source: Zhang et al., CPI2,
EuroSys 2013, sections 3.1 and 4.1.

The cluster's profile of a workload on this CPU model (NodeSLO) goes before what this node has learnt. Where the CPU
does not count, that is said once, and nothing is guessed.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from koordinator.api import slo, workload_profile
from koordinator.api.interference import workload_of
from koordinator.api.slo import NodeSLOSpec
from koordinator.api.workload_profile import ContainerProfile, Moments, WorkloadProfiles
from koordinator.host import perf_events
from koordinator.host.errors import ContentError
from koordinator.host.perf_events import CYCLES_AND_INSTRUCTIONS, EventKind, EventPair
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.degradation import INTERFERENCE, Indicator, Learnt
from koordinator.koordlet.node_pods import NodeContainer, PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import CONTAINER_ROUNDS

DEVIATIONS = 2.0
VIOLATIONS, VIOLATION_WINDOW_S = 3, 300.0
CORES_MIN = 0.25
HALF_LIFE_S = 24 * 3600.0
WEIGHT_MIN = 100.0
"""So many samples make a profile; before that nothing is unusual."""
DEVIATION_SHARE_MIN = 0.05
"""The least deviation, as a share of the mean: a quiet workload's noise is no violation."""
_CALM_MAX = 0.99


def learnt(before: Moments, value: float, elapsed_s: float) -> Moments:
    """Return the moments with one more sample; older ones have faded by half each `HALF_LIFE_S`."""
    faded = before.weight * 0.5 ** (elapsed_s / HALF_LIFE_S)
    weight = faded + 1.0
    mean = before.mean + (value - before.mean) / weight
    spread = faded * (before.variance + (before.mean - mean) ** 2) + (value - mean) ** 2
    return Moments(weight=weight, mean=mean, variance=spread / weight)


def profile_level(known: Moments, value: float) -> float | None:
    """Return how far a value is on the way to a violation, which is 1; None while the profile is too young."""
    if known.weight < WEIGHT_MIN or known.mean <= 0:
        return None
    deviation = max(known.deviation, DEVIATION_SHARE_MIN * known.mean)
    return max(value - known.mean, 0.0) / (DEVIATIONS * deviation)


class Violations:
    """The violations of one container."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque(maxlen=VIOLATIONS)

    def level(self, level: float, cores: float, now_s: float) -> float:
        """Return the degradation by a new sample: below 1 until the container is an outlier."""
        if level > 1 and cores >= CORES_MIN:
            self._at_s.append(now_s)
        is_outlier = len(self._at_s) == VIOLATIONS and now_s - self._at_s[0] <= VIOLATION_WINDOW_S
        return level if is_outlier and cores >= CORES_MIN else min(level, _CALM_MAX)


CACHE_REFERENCES_AND_MISSES = EventPair(EventKind(0, 2), EventKind(0, 3))
LINE_BYTES = 64
"""Bytes that a miss of the last-level cache moves."""
INTERVAL_S, WINDOW_S = 10.0, 5.0
SAMPLE_S_MAX = 2 * (INTERVAL_S + WINDOW_S)
"""Greatest age of a sample that still describes the present."""
DESCRIPTORS_MAX = 4_096
_PER_CPU = 4
"""Descriptors for each container and CPU."""


class _Watched(NamedTuple):
    record: PodRecord
    container: NodeContainer


class _Known(msgspec.Struct):
    """One container of a workload."""

    workload: str
    name: str
    cpi: Moments = Moments()
    moved: Moments = Moments()
    learnt_s: float = 0.0
    cpi_violations: Violations = msgspec.field(default_factory=Violations)
    moved_violations: Violations = msgspec.field(default_factory=Violations)


_PAIRS = {Indicator.CPI: CYCLES_AND_INSTRUCTIONS, Indicator.MEMORY_BANDWIDTH: CACHE_REFERENCES_AND_MISSES}


class CounterSampler:
    """A strategy that counts for some seconds, now and then; readers ask it for what was found last."""

    name = "InterferenceCounters"
    gates: tuple[str, ...] = (INTERFERENCE,)
    interval_s = INTERVAL_S

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._known: dict[str, _Known] = {}
        """By container id."""
        self._cpu_model = ""
        self._read: tuple[NodeSLOSpec | None, WorkloadProfiles | None] = (None, None)
        self._levels: dict[str, dict[Indicator, float]] = {}
        self._at_s = float("-inf")
        self.available: dict[Indicator, str] = {}
        """Indicator → why it is missing; empty text when it is there."""
        self.moved: dict[str, float] = {}
        """Bytes per second from memory, by UID."""

    async def run(self) -> None:
        """Do one round."""
        self._probe()
        pairs = {indicator: pair for indicator, pair in _PAIRS.items() if not self.available[indicator]}
        if not pairs:
            return
        shared = self._shared
        host = shared.host
        try:
            cpus = sorted(host.machine.online_cpus())
        except ContentError:
            return
        watched = _running(shared.view.pods)[: DESCRIPTORS_MAX // (_PER_CPU * max(len(cpus), 1))]
        groups = [each.container.group for each in watched]
        watches = {
            indicator: perf_events.watch(host.cgroups, host.syscalls, groups, cpus, pair)
            for indicator, pair in pairs.items()
        }
        began_s = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(WINDOW_S)
            counts = {indicator: watch.read() for indicator, watch in watches.items()}
        finally:
            for watch in watches.values():
                watch.close()
        self._take(watched, counts, began_s)

    def disable(self) -> None:
        """Put nothing back: it only reads."""

    def levels(self, uid: str, now_s: float) -> Mapping[Indicator, float]:
        """Return the degradation of a service by its profile; empty while nothing is known."""
        return self._levels.get(uid, {}) if now_s - self._at_s <= SAMPLE_S_MAX else {}

    def _probe(self) -> None:
        if self.available:
            return
        self._cpu_model = self._shared.host.machine.cpu_model().model
        for indicator, pair in _PAIRS.items():
            found = perf_events.support(self._shared.host.syscalls, pair)
            self.available[indicator] = "" if found.is_supported else found.reason

    def _take(
        self,
        watched: list[_Watched],
        counts: Mapping[Indicator, Mapping[str, perf_events.Counts]],
        began_s: float,
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        seconds = max(now_s - began_s, 1e-3)
        cores = self._shared.readings.containers(kinds.CONTAINER_CPU, CONTAINER_ROUNDS + 1)
        levels: dict[str, dict[Indicator, float]] = {}
        moved: dict[str, float] = {}
        kept: dict[str, _Known] = {}
        for record, container in watched:
            group, used = container.group, cores.get(container.id, 0.0)
            cpi = counts.get(Indicator.CPI, {}).get(group)
            misses = counts.get(Indicator.MEMORY_BANDWIDTH, {}).get(group)
            bytes_per_s = misses.follower * LINE_BYTES / seconds if misses is not None else None
            if bytes_per_s is not None:
                moved[record.uid] = moved.get(record.uid, 0.0) + bytes_per_s
            if not node_pods.is_service(record):
                continue
            known = self._known.get(container.id) or _Known(workload_of(record.pod), container.name)
            kept[container.id] = known
            if used < CORES_MIN:
                continue
            per_core = bytes_per_s / used if bytes_per_s is not None else None
            own = self._learn(known, cpi.ratio if cpi is not None else None, per_core, used, now_s)
            of_pod = levels.setdefault(record.uid, {})
            for indicator, value in own.items():
                of_pod[indicator] = max(of_pod.get(indicator, 0.0), value)
        self._known, self._levels, self.moved, self._at_s = kept, levels, moved, now_s
        self._shared.view.learnt = {
            container: Learnt(
                workload=known.workload,
                name=known.name,
                cpu_model=self._cpu_model,
                profile=ContainerProfile(
                    cpi=known.cpi if known.cpi.weight else None,
                    memory_bandwidth=known.moved if known.moved.weight else None,
                ),
            )
            for container, known in kept.items()
        }

    def _learn(
        self, known: _Known, cpi: float | None, per_core: float | None, used: float, now_s: float
    ) -> dict[Indicator, float]:
        shared_profile = self._of_cluster(known)
        elapsed_s = now_s - known.learnt_s if known.learnt_s else 0.0
        known.learnt_s = now_s
        found: dict[Indicator, float] = {}
        if cpi is not None:
            level = profile_level((shared_profile and shared_profile.cpi) or known.cpi, cpi)
            if level is not None:
                found[Indicator.CPI] = known.cpi_violations.level(level, used, now_s)
            known.cpi = learnt(known.cpi, cpi, elapsed_s)
        if per_core is not None:
            of_cluster = shared_profile.memory_bandwidth if shared_profile is not None else None
            level = profile_level(of_cluster or known.moved, per_core)
            if level is not None:
                found[Indicator.MEMORY_BANDWIDTH] = known.moved_violations.level(level, used, now_s)
            known.moved = learnt(known.moved, per_core, elapsed_s)
        return found

    def _of_cluster(self, known: _Known) -> ContainerProfile | None:
        spec = self._shared.view.slo
        if spec is not self._read[0]:
            found = workload_profile.of_node_slo(slo.plain_extensions(spec.extensions)) if spec else None
            self._read = (spec, found)
        profiles = self._read[1]
        if profiles is None or profiles.cpu_model != self._cpu_model:
            return None
        return profiles.workloads.get(known.workload, {}).get(known.name)


def _running(pods: Mapping[str, PodRecord]) -> list[_Watched]:
    """Return the running containers, those of services first."""
    found = [
        _Watched(record, container)
        for record in pods.values()
        if record.is_active
        for container in record.containers
        if container.is_running
    ]
    return sorted(found, key=lambda each: not node_pods.is_service(each.record))
