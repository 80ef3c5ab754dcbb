"""Record what the closed loop does: the audit log, events, metrics, HTTP, and what the node reports to
scheduler and descheduler (NodeMetric's `status.extensions.interference`)."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import interference as api
from koordinator.api.core import Pod
from koordinator.api.interference import CALM, Fading, InterferenceSettings, NodeInterference, WorkloadPair
from koordinator.koordlet.interference.control import FULL_PERCENT, Resource, Source, Stage
from koordinator.koordlet.interference.indicators import ControlInput
from koordinator.koordlet.parts import Shared

AUDIT_LEVEL = 1
REASON = "FollowServices"
"""Reason of lines in the audit log."""
SERVICES_SUFFER, CULPRIT_CAPPED = "ServicesSuffer", "CulpritCapped"
"""Reasons of events: on the node when an episode begins, on the culprit when it gets a quota of its own."""
KEPT_MAX = 256
"""Steps that are kept for whoever asks: those that changed something, some minutes of an episode."""
CHANGE_PERCENT = 5.0
"""A ceiling that moves less is no step of its own in the records."""
STOLEN_PERCENT_TOLD = 1.0
"""Share of the CPUs from which on it is told that a hypervisor takes them."""
REPORT_PERCENT = 10
"""Readers know how a level fades; it is reported anew when it is so much higher than that."""
PAIRS_MAX = 16
_STAGE_WORDS = {
    Stage.GROW: "grows",
    Stage.HOLD: "is held",
    Stage.SHRINK: "is shrunk",
    Stage.CAP: "is shrunk, and the culprit capped",
    Stage.EVICT: "is shrunk, and the culprit evicted",
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the controller and what it rests on."""

    at_s: float
    """Unix time."""
    stage: Stage
    source: Source
    slack: float
    """NaN without a fresh measurement."""
    resource: Resource
    ceilings: Mapping[Resource, float]
    culprit_percent: float
    signal: float
    victim: str
    culprit: str
    """UIDs, empty for nobody."""


class StepRecords:
    """Reports steps, each way only what is new there."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._last: Step | None = None
        self._kept: deque[Step] = deque(maxlen=KEPT_MAX)
        self._capped = ""
        self._is_episode_reported = False
        self._reported: Fading = CALM
        self._pairs: dict[tuple[str, str], WorkloadPair] = {}
        self._names: dict[str, str] = {}
        """Names of pods by UID, as of the steps that are kept."""

    def record(self, step: Step, known: ControlInput, settings: InterferenceSettings) -> None:
        """Record a step."""
        self._measure(step)
        if self._has_changed(step):
            self._last = step
            self._kept.append(step)
            for uid in filter(None, (step.victim, step.culprit)):
                self._names[uid] = self._name(uid)
            self._shared.audit.node(
                AUDIT_LEVEL, REASON, f"batch {_STAGE_WORDS[step.stage]}: {self.why(step, known)}"
            )
        self._emit_events(step, known)
        self._report_to_cluster(step, known, settings)

    def end(self) -> None:
        """Report nothing any more: the loop is off."""
        if self._last is None:
            return
        self._last, self._is_episode_reported, self._capped = None, False, ""
        self._reported, self._pairs = CALM, {}
        self._extend(None)
        metrics = self._shared.metrics
        for gauge in (metrics.interference_slack, metrics.interference_ceiling, metrics.interference_stage):
            gauge.reset()
        for gauge in (metrics.interference_culprit, metrics.interference_signal):
            gauge.reset()
        self._shared.audit.node(AUDIT_LEVEL, REASON, "batch is as configured: the closed loop is off")

    def report(self) -> dict[str, Any]:
        """Return the last steps for people: `GET /interference`."""
        return {"steps": [self._shown(step) for step in self._kept]}

    def why(self, step: Step, known: ControlInput) -> str:
        """Return how degraded services are and what follows, in words."""
        parts = []
        if step.source is Source.FIXED:
            parts.append("nothing fresh is known of services")
        else:
            by = "latency" if step.source is Source.LATENCY else "waiting"
            parts.append(f"{self._name(step.victim)} has {step.slack:.0%} left by its {by}")
        stolen_percent = float(np.asarray(known.measured.stolen_percent).max())
        if stolen_percent >= STOLEN_PERCENT_TOLD:
            parts.append(f"the hypervisor takes {stolen_percent:.0f}% of the CPUs")
        if known.verdict is not None:
            parts.append(
                f"{self._name(known.verdict.culprit)} is named for {known.verdict.resource.value} "
                f"with {known.verdict.confidence:.2f}"
            )
        parts.append(
            ", ".join(
                f"{each.name.lower()} {percent:.0f}%"
                for each, percent in step.ceilings.items()
                if _is_shown(each, percent)
            )
        )
        if step.culprit_percent < FULL_PERCENT:
            parts.append(f"culprit {step.culprit_percent:.0f}% of what it used")
        return "; ".join(parts)

    # Each way

    def _has_changed(self, step: Step) -> bool:
        old = self._last
        if old is None or (old.stage, old.source, old.resource) != (step.stage, step.source, step.resource):
            return True
        if old.culprit != step.culprit or abs(old.culprit_percent - step.culprit_percent) >= CHANGE_PERCENT:
            return True
        return any(
            abs(old.ceilings[each] - percent) >= CHANGE_PERCENT for each, percent in step.ceilings.items()
        )

    def _measure(self, step: Step) -> None:
        metrics = self._shared.metrics
        metrics.interference_slack.reset()
        if not math.isnan(step.slack):
            metrics.interference_slack.set(step.slack, step.source.name.lower())
        for resource, percent in step.ceilings.items():
            metrics.interference_ceiling.set(percent, resource.name.lower())
        for stage in Stage:
            metrics.interference_stage.set(float(stage is step.stage), stage.name.lower())
        metrics.interference_culprit.set(step.culprit_percent)
        metrics.interference_signal.set(step.signal)
        if self._last is None or self._last.stage is not step.stage:
            metrics.interference_steps.inc(step.stage.name.lower())

    def _emit_events(self, step: Step, known: ControlInput) -> None:
        """One event when an episode begins, and one for each culprit that is capped; evictions have their own."""
        if step.stage is Stage.GROW:
            self._is_episode_reported, self._capped = False, ""
        if (
            step.stage >= Stage.SHRINK
            and not self._is_episode_reported
            and self._shared.view.node is not None
        ):
            self._is_episode_reported = True
            self._shared.events.warning(self._shared.view.node, SERVICES_SUFFER, self.why(step, known))
        if step.stage is Stage.CAP and step.culprit and step.culprit != self._capped:
            self._capped = step.culprit
            pod = self._pod(step.culprit)
            if pod is not None:
                self._shared.events.warning(pod, CULPRIT_CAPPED, self.why(step, known))

    def _report_to_cluster(self, step: Step, known: ControlInput, settings: InterferenceSettings) -> None:
        half_life_s = settings.signal_half_life_seconds
        if half_life_s <= 0:
            self._extend(None)
            return
        if step.at_s < self._reported.at_s:
            # The clock was set back: what was told would not fade for so long.
            self._reported, self._pairs = CALM, {}
            self._extend(None)
        percent = round(step.signal * FULL_PERCENT)
        is_paired = step.stage >= Stage.CAP and self._pair(step, known, half_life_s)
        is_risen = percent >= max(self._reported.level(step.at_s) + REPORT_PERCENT, REPORT_PERCENT)
        if not is_paired and not is_risen:
            if (
                self._reported.percent
                and not self._reported.level(step.at_s)
                and not self._live_pairs(step.at_s)
            ):
                self._reported = CALM
                self._extend(None)
            return
        self._reported = Fading(percent, step.at_s, half_life_s)
        self._extend(
            NodeInterference(
                percent=percent,
                at=clock.rfc3339(step.at_s),
                half_life_seconds=half_life_s,
                resource=step.resource.name.lower(),
                pairs=self._live_pairs(step.at_s),
            )
        )

    def _pair(self, step: Step, known: ControlInput, half_life_s: float) -> bool:
        """Remember who should not meet again; return whether that is worth a report."""
        verdict = known.verdict
        victim = self._pod(verdict.victim) if verdict is not None else None
        culprit = self._pod(verdict.culprit) if verdict is not None else None
        if verdict is None or victim is None or culprit is None:
            return False
        key = api.workload_of(victim), api.workload_of(culprit)
        old = self._pairs.get(key)
        until_s = step.at_s + half_life_s
        if old is not None and clock.parse_rfc3339(old.until) > until_s - half_life_s / 4:
            return False
        self._pairs.pop(key, None)
        while len(self._pairs) >= PAIRS_MAX:
            del self._pairs[next(iter(self._pairs))]
        self._pairs[key] = WorkloadPair(
            victim=key[0], culprit=key[1], resource=verdict.resource.value, until=clock.rfc3339(until_s)
        )
        return True

    def _live_pairs(self, now_s: float) -> list[WorkloadPair]:
        self._pairs = {
            key: pair for key, pair in self._pairs.items() if clock.parse_rfc3339(pair.until) > now_s
        }
        return list(self._pairs.values())

    def _extend(self, found: NodeInterference | None) -> None:
        self._shared.view.extend(api.INTERFERENCE, None if found is None else _whole(found))

    def _shown(self, step: Step) -> dict[str, Any]:
        return {
            "at": clock.rfc3339(step.at_s),
            "stage": step.stage.name.lower(),
            "source": step.source.name.lower(),
            "slack": None if math.isnan(step.slack) else round(step.slack, 3),
            "resource": step.resource.name.lower(),
            "victim": self._names.get(step.victim, step.victim),
            "culprit": self._names.get(step.culprit, step.culprit),
            "culpritPercent": round(step.culprit_percent, 1),
            "ceilings": {each.name.lower(): round(percent, 1) for each, percent in step.ceilings.items()},
        }

    def _pod(self, uid: str) -> Pod | None:
        record = self._shared.view.pods.get(uid)
        return record.pod if record is not None else None

    def _name(self, uid: str) -> str:
        record = self._shared.view.pods.get(uid)
        return record.key if record is not None else uid or "nobody"


def _is_shown(resource: Resource, percent: float) -> bool:
    """Return whether a ceiling is worth words: CPU always, others when they are shrunk."""
    return resource is Resource.CPU or percent < FULL_PERCENT


def _whole(found: NodeInterference) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(found, field)) for field, name in _WIRE_NAMES}


_WIRE_NAMES = [(field.name, field.encode_name) for field in msgspec.structs.fields(NodeInterference)]
