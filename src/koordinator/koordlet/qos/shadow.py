"""Shadow mode: strategies that the NodeSLO names decide all they would do, and do nothing (docs/shadow-mode.md).

A strategy in shadow is the same strategy with another host below it: reads go to the real node, writes to an overlay
that reads back as the kernel would show them, and evictions are noted (`ShadowEvictor`).
Entering shadow mode puts back
what the live one changed; leaving it starts a live one that knows nothing. `ShadowBill` has what each costs.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import decode, resources, slo
from koordinator.api.meta import Object, ObjectReference
from koordinator.api.qos import KubeQoS
from koordinator.api.slo import NodeSLOSpec, ShadowSettings
from koordinator.clock import rfc3339
from koordinator.cluster.events import EventRecorder, EventSeverity
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import CFS_PERIOD_US, UNLIMITED, Knob
from koordinator.host.errors import ContentError
from koordinator.host.host import Host
from koordinator.host.overlay import overlay_host
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Following, Shared, Strategy
from koordinator.koordlet.qos import shadow_bill
from koordinator.koordlet.qos.eviction import EvictionVictim
from koordinator.koordlet.qos.evictor import EvictionResult, Evictor
from koordinator.koordlet.qos.shadow_bill import BilledEviction, RoundCost, ShadowBill
from koordinator.koordlet.view import NodeView, Topic
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog

log = logging.getLogger(__name__)

PREDICTION = "Prediction"
"""Offer of what prod pods leave, as predicted: in shadow it is not made (`report.node_metric_reporter`)."""
ROUND_S_MAX = 60.0
"""A round that comes later than this after the one before is billed for so long only."""
MILLI = 1_000
Cost = Callable[[Shared], RoundCost]
"""Function that returns what the limits that stand on a host cost now."""


class SilentEvents(EventRecorder):
    """Tells nobody: what did not happen is no event."""

    def event(
        self,
        obj: Object | ObjectReference,
        severity: EventSeverity,
        reason: str,
        message: str,
        *,
        action: str = "",
        related: Object | None = None,
    ) -> None:
        log.debug("event in shadow mode", extra={"reason": reason, "event": message})


class ViewInShadow(NodeView):
    """Shows the real view, and keeps to itself what is set here."""

    def __init__(self, real: NodeView) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def changed(self, topic: Topic) -> None:
        """Tell nobody: what a strategy in shadow allows is not in force."""


class ShadowEvictor(Evictor):
    """Evicts nobody: who would have been evicted counts as leaving for as long as it is there."""

    leaving_s_max = float("inf")

    async def _evict(self, record: PodRecord, victim: EvictionVictim) -> EvictionResult:
        self._victims.evicted(record.uid, self._now_s())
        self._on_evicted(record, victim)
        return EvictionResult.EVICTED


class ShadowMode:
    """Knows which strategies only decide, by the NodeSLO in force, and has the node's bills."""

    def __init__(self, shared: Shared) -> None:
        self.bill = ShadowBill()
        self._shared = shared
        self._read: tuple[NodeSLOSpec | None, frozenset[str]] = (None, frozenset())

    @property
    def strategies(self) -> frozenset[str]:
        """Return the names of strategies that only decide now."""
        spec = self._shared.view.slo
        if spec is not self._read[0]:
            self._read = spec, _decoded(spec, self._read[1])
        return self._read[1]

    def body(self) -> dict[str, Any]:
        """Return the node's bills of the last day as JSON."""
        self.bill.expire(self._shared.clock.now())
        return self.bill.body(self.strategies)

    def bill_eviction(
        self, names: Mapping[str, str], record: PodRecord, victim: EvictionVictim, *, is_shadow: bool
    ) -> None:
        """Bill a pod that went, or would have gone; `names` are those of the strategies by feature."""
        now_s, name = self._shared.clock.now(), names.get(str(victim.feature), str(victim.feature))
        message = victim.message(record.pod.metadata.name)
        found = BilledEviction(record.key, str(victim.feature), message, rfc3339(now_s))
        self.bill.evict(name, now_s, found, is_shadow=is_shadow)
        if is_shadow:
            self._shared.metrics.shadow_evictions.inc(name)

    def shared_in_shadow(self) -> Shared:
        """Return what a strategy in shadow is given: the same node and measurements, and nothing that it can change."""
        real = self._shared
        host = overlay_host(real.host)
        audit = AuditLog(real.clock, is_enabled=False)
        return msgspec.structs.replace(
            real,
            host=host,
            view=ViewInShadow(real.view),
            audit=audit,
            executor=Executor(host.cgroups, real.clock, audit, RestoreLog()),
            rng=random.Random(0),
            metrics=AgentMetrics(real.config.node_name, real.clock),
            events=SilentEvents(real.cluster, "shadow", rng=random.Random(0)),
        )


def _decoded(spec: NodeSLOSpec | None, before: frozenset[str]) -> frozenset[str]:
    raw = slo.plain_extensions(spec.extensions).get(slo.SHADOW) if spec is not None else None
    if raw is None:
        return frozenset()
    try:
        named = frozenset(decode.from_builtins(raw, ShadowSettings).strategies)
    except msgspec.ValidationError as error:
        log.warning("extensions.shadow of the NodeSLO invalid, kept as it was", extra={"problem": str(error)})
        return before
    if unknown := named - frozenset(slo.SHADOW_STRATEGIES):
        log.warning("strategies without a shadow mode stay as they are", extra={"names": sorted(unknown)})
    return named & frozenset(slo.SHADOW_STRATEGIES)


class Shadowed:
    """Strategies that share state and one name in the NodeSLO: live ones, or their doubles while in shadow."""

    def __init__(
        self,
        name: str,
        mode: ShadowMode,
        shared: Shared,
        make: Callable[[Shared], Sequence[Strategy]],
        cost: Cost | None = None,
    ) -> None:
        self.name = name
        self._mode, self._shared, self._make, self._cost = mode, shared, make, cost
        self.live = make(shared)
        self._double: tuple[Shared, Sequence[Strategy]] | None = None
        self._billed_s: float | None = None

    def parts(self) -> list[Strategy]:
        """Return one strategy in place of each live one."""
        return [
            FollowingPart(self, number, part) if isinstance(part, Following) else Part(self, number, part)
            for number, part in enumerate(self.live)
        ]

    @property
    def in_force(self) -> Sequence[Strategy]:
        """Return those who had the last round."""
        return self._double[1] if self._double is not None else self.live

    def now(self) -> tuple[Shared, Sequence[Strategy]]:
        """Return those whose turn it is, after a change of mode."""
        is_shadow = self.name in self._mode.strategies
        if is_shadow and self._double is None:
            log.info("strategy decides and does nothing", extra={"strategy": self.name})
            for part in self.live:
                part.disable()
            shared = self._mode.shared_in_shadow()
            self._double, self._billed_s = (shared, self._make(shared)), None
        elif not is_shadow and self._double is not None:
            log.info("strategy acts again", extra={"strategy": self.name})
            self._double, self._billed_s = None, None
        self._shared.metrics.shadow_mode.set(is_shadow, self.name)
        return self._double if self._double is not None else (self._shared, self.live)

    def settle(self, shared: Shared) -> None:
        """Bill what stands since the round before."""
        now_s = self._shared.clock.now()
        seconds = min(max(now_s - self._billed_s, 0.0), ROUND_S_MAX) if self._billed_s is not None else 0.0
        self._billed_s = now_s
        is_shadow = self._double is not None
        cost = self._cost(shared) if self._cost is not None else shadow_bill.NO_COST
        self._mode.bill.charge(self.name, now_s, seconds, cost, is_shadow=is_shadow)
        if is_shadow:
            hour = self._mode.bill.hour(self.name, now_s, is_shadow=True)
            written = getattr(shared.host.files, "written", None)
            if written:
                hour.writes += len(written)
                self._shared.metrics.shadow_writes.inc(self.name, by=len(written))
                written.clear()
            shared.host.files.sweep()
            self._count(cost, seconds)

    def _count(self, cost: RoundCost, seconds: float) -> None:
        for kind, cores in (
            ("held-back", cost.held_back_cores),
            ("raised", cost.raised_cores),
            ("lent", cost.lent_cores),
        ):
            if cores:
                self._shared.metrics.shadow_core_seconds.inc(self.name, kind, by=cores * seconds)


class Part:
    """One strategy of several that share state, live or in shadow."""

    def __init__(self, whole: Shadowed, number: int, live: Strategy) -> None:
        self._whole, self._number, self.live = whole, number, live
        self.name, self.gates, self.interval_s = live.name, live.gates, live.interval_s

    async def run(self) -> None:
        """Do one round of the one whose turn it is; the first of several settles the bill."""
        shared, parts = self._whole.now()
        result = parts[self._number].run()
        if result is not None:
            await result
        self.interval_s = parts[self._number].interval_s
        if self._number == 0:
            self._whole.settle(shared)

    def disable(self) -> None:
        self.live.disable()


class FollowingPart(Part):
    """One whose rounds follow a change."""

    def __init__(self, whole: Shadowed, number: int, live: Strategy) -> None:
        super().__init__(whole, number, live)
        assert isinstance(live, Following)
        self.after = live.after


# What limits cost


def suppression_cost(shared: Shared) -> RoundCost:
    """Return what the limits of the best-effort groups hold back of what these use."""
    used_milli = shared.readings.latest(kinds.NODE_BE, kinds.BE_CPU_USED)
    top = cgroup_layout.class_dir(shared.view.driver, KubeQoS.BEST_EFFORT)
    used = None if used_milli is None else used_milli / MILLI
    return RoundCost(held_back_cores=shadow_bill.held_back_cores(used, limit_cores(shared.host, top)))


def closed_loop_cost(shared: Shared) -> RoundCost:
    """Return what the threshold that the closed loop allows holds back of what best-effort pods use."""
    percent = shared.view.allowance.cpu_threshold_percent
    used_milli = shared.readings.latest(kinds.NODE_BE, kinds.BE_CPU_USED)
    node = shared.readings.latest(kinds.NODE_CPU)
    if percent is None or used_milli is None or node is None:
        return shadow_bill.NO_COST
    used = used_milli / MILLI
    allowed = shared.view.capacity(resources.CPU) / MILLI * percent / 100 - max(node - used, 0.0)
    return RoundCost(held_back_cores=shadow_bill.held_back_cores(used, max(allowed, 0.0)))


def limit_cores(host: Host, group: str) -> float | None:
    """Return what a group may use at most by its quota and CPUs; None when neither can be read."""
    limits = []
    try:
        quota_us, cpus = host.cgroups.quota_us(group), host.cgroups.cpus(group)
    except ContentError:
        return None
    if quota_us is not None and quota_us != UNLIMITED:
        limits.append(quota_us / CFS_PERIOD_US)
    if cpus:
        limits.append(float(len(cpus)))
    return min(limits, default=None)


def burst_cost(shared: Shared) -> RoundCost:
    """Return by how much quotas are raised, and how much their containers were throttled."""
    before = {
        record.group: record.before
        for record in shared.executor.changed_by("CPUBurst")
        if record.knob == Knob.CPU_QUOTA
    }
    if not before:
        return shadow_bill.NO_COST
    throttled = shared.readings.containers(kinds.CONTAINER_THROTTLED)
    groups = {each.id: each.group for record in shared.view.pods.values() for each in record.containers}
    raised, ratio = 0.0, 0.0
    for container, group in groups.items():
        if group not in before:
            continue
        try:
            quota_us, base_us = shared.host.cgroups.quota_us(group), int(before[group].split()[0])
        except (ContentError, ValueError):
            continue  # no limit before, so nothing above it
        if quota_us is not None and quota_us > base_us > 0:
            raised += (quota_us - base_us) / CFS_PERIOD_US
            ratio += throttled.get(container, 0.0)
    return RoundCost(raised_cores=raised, throttled_ratio=ratio)
