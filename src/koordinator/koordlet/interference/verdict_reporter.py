"""Report who degrades a service: events on both pods, a line in the audit log, metrics, and the answer to
`GET /interference`."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.koordlet.degradation import Degradation, Indicator, Interference, Verdict
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import NodeView

SLOWED = "SlowedByNeighbour"
"""Reason of the event on the service, and in the audit log."""
SLOWS = "SlowsNeighbour"
"""Reason of the event on the culprit."""
AGAIN_S = 60.0
"""The same verdict is not reported again within that time: a service may be calm for a second now and then."""
VERDICTS_MAX = 64
"""Verdicts that are kept for who asks later."""


class ReportedVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A verdict in words and names, as `GET /interference` answers."""

    at: str
    victim: str
    """`namespace/name`."""
    culprit: str
    resource: str
    sense: str
    """The indicator that is highest."""
    confidence: float
    runner_up: float
    share: float
    after_seconds: float
    """From the first degraded second to the verdict."""
    message: str


def sentence(verdict: Verdict, victim: str, culprit: str, level: float) -> str:
    """Return the verdict in words."""
    return (
        f"{victim} suffers ({verdict.indicator} at {level:.1f} of what it bears) from {culprit}, "
        f"which takes {verdict.resource}: {verdict.share:.0%} of what speaks against anybody, "
        f"confidence {verdict.confidence:.2f}, next {verdict.runner_up:.2f}"
    )


class VerdictReporter:
    """Reports each verdict once."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._verdicts: deque[ReportedVerdict] = deque(maxlen=VERDICTS_MAX)
        self._reported_s: dict[tuple[str, str], float] = {}

    def report(self, verdict: Verdict, victim: PodRecord, culprit: PodRecord, level: float) -> None:
        """Report a new verdict everywhere."""
        shared, pair = self._shared, (verdict.victim, verdict.culprit)
        self._reported_s = {
            each: at_s for each, at_s in self._reported_s.items() if verdict.at_s - at_s < AGAIN_S
        }
        if pair in self._reported_s:
            return
        self._reported_s[pair] = verdict.at_s
        message = sentence(verdict, victim.key, culprit.key, level)
        shared.events.warning(victim.pod, SLOWED, message)
        if culprit.uid in shared.view.pods:  # a container of another runtime is no object of the API
            shared.events.warning(culprit.pod, SLOWS, message)
        meta = victim.pod.metadata
        shared.audit.pod(1, meta.namespace, meta.name, SLOWED, message)
        shared.metrics.interference_verdicts.inc(verdict.resource)
        self._verdicts.appendleft(
            ReportedVerdict(
                at=clock.rfc3339_micro(shared.clock.now()),
                victim=victim.key,
                culprit=culprit.key,
                resource=verdict.resource,
                sense=verdict.indicator,
                confidence=round(verdict.confidence, 3),
                runner_up=round(verdict.runner_up, 3),
                share=round(verdict.share, 3),
                after_seconds=round(verdict.at_s - verdict.since_s, 3),
                message=message,
            )
        )

    def answer(self, pod: str = "") -> dict[str, Any]:
        """Return how services are now, and the newest verdicts; of one pod (`namespace/name`) when it is named."""
        view = self._shared.view
        now = view.interference
        services = now.services if now is not None else {}
        found = {
            view.pods[uid].key: _shown(each, now)
            for uid, each in services.items()
            if uid in view.pods and pod in ("", view.pods[uid].key)
        }
        verdicts = [each for each in self._verdicts if pod in ("", each.victim, each.culprit)]
        return {"services": found, "verdicts": msgspec.to_builtins(verdicts)}


def _shown(each: Degradation, now: Interference | None) -> dict[str, Any]:
    degraded_s = now.at_s - each.since_s if now is not None and each.since_s is not None else None
    return {
        "suffers": each.is_degraded,
        "level": round(each.level, 3),
        "senses": {indicator.value: round(level, 3) for indicator, level in each.indicators.items()},
        "slack": None if each.slack is None else round(each.slack, 3),
        "sufferingSeconds": None if degraded_s is None else round(degraded_s, 1),
    }


def reported_levels(view: NodeView) -> dict[tuple[str, ...], float]:
    """Return how degraded services are by indicator, as metrics have it."""
    return {
        (*_labels(record.pod), indicator): level
        for each, record in _known(view)
        for indicator, level in each.indicators.items()
    }


def reported_slack(view: NodeView) -> dict[tuple[str, ...], float]:
    """Return what is left of latency objectives, as metrics have it."""
    return {_labels(record.pod): each.slack for each, record in _known(view) if each.slack is not None}


def _known(view: NodeView) -> Iterator[tuple[Degradation, PodRecord]]:
    """Yield the services that are there."""
    if view.interference is None:
        return
    for uid, each in view.interference.services.items():
        record = view.pods.get(uid)
        if record is not None:
            yield each, record


def worst(each: Degradation) -> Indicator:
    """Return the indicator that is highest."""
    return max(each.indicators, key=lambda indicator: each.indicators[indicator])


def _labels(pod: Pod) -> tuple[str, str, str]:
    return pod.metadata.uid, pod.metadata.name, pod.metadata.namespace
