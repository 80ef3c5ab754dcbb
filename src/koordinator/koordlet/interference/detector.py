"""Look after all services each second: what their indicators say, and who is to blame, published as
`view.interference`.

Indicators that this node lacks are said once in the log, and in the metric `koordlet_interference_sense_available`.
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from functools import partial

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.degradation import INTERFERENCE, Degradation, Indicator, Interference, Verdict
from koordinator.koordlet.interference import culprit, indicators, verdict_reporter
from koordinator.koordlet.interference.candidate_usage import CandidateUsage
from koordinator.koordlet.interference.counters import CounterSampler
from koordinator.koordlet.interference.culprit import History
from koordinator.koordlet.interference.scrape import LatencyScrapes
from koordinator.koordlet.interference.stalls import StallReader
from koordinator.koordlet.interference.verdict_reporter import VerdictReporter
from koordinator.koordlet.node_pods import ForeignContainer, PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
AGAIN_S = 10.0
"""Interval at which a verdict is reviewed while its victim stays degraded."""
UNSURE_S = 10.0
"""Age of an episode from which on somebody to blame is looked for only each `UNSURE_AGAIN_S`: on a node that is too
small for its services many stay degraded for hours, and nobody is to blame."""
UNSURE_AGAIN_S = 3.0


class InterferenceDetector:
    """A strategy that only looks: it publishes, and writes nothing on the node."""

    name = "InterferenceDetector"
    gates: tuple[str, ...] = (INTERFERENCE,)
    interval_s = INTERVAL_S
    after = Topic.USAGE

    def __init__(
        self, shared: Shared, scrapes: LatencyScrapes, counters: CounterSampler, reporter: VerdictReporter
    ) -> None:
        self._shared = shared
        self._scrapes = scrapes
        self._counters = counters
        self._reporter = reporter
        self._stalls = StallReader(shared.host)
        self._uses = CandidateUsage(shared)
        self._history = History()
        self._listed: Mapping[str, PodRecord] | None = None
        self._foreign: Mapping[str, ForeignContainer] | None = None
        self._services: dict[str, PodRecord] = {}
        self._candidates: dict[str, PodRecord] = {}
        self._logged: set[Indicator] = set()
        self._searched_s: dict[str, float] = {}
        """Degraded services for which nobody is sure, by UID: when that was found."""
        shared.metrics.interference_level.read = partial(verdict_reporter.reported_levels, shared.view)
        shared.metrics.latency_slack.read = partial(verdict_reporter.reported_slack, shared.view)

    def run(self) -> None:
        """Do one round."""
        self._follow()
        view = self._shared.view
        now_s = asyncio.get_running_loop().time()
        readings = self._shared.readings
        ratios = readings.pods(kinds.POD_THROTTLED) | readings.containers(kinds.CONTAINER_THROTTLED)
        throttled = {name for name, ratio in ratios.items() if ratio > 0}
        kubepods = cgroup_layout.class_dir(view.driver, KubeQoS.GUARANTEED)
        calm = {uid for uid, target in self._scrapes.targets.items() if target.is_calm}
        lost = self._stalls.read(self._services, kubepods, throttled, calm)
        self._log_available()
        before = view.interference or Interference(at_s=now_s)
        found: dict[str, Degradation] = {}
        levels: dict[str, float] = {}
        targets = self._scrapes.targets
        for uid in self._services:
            target = targets.get(uid)
            latency = target.latency(now_s) if target is not None else None
            profile = self._counters.levels(uid, now_s)
            by_indicator = indicators.levels(lost[uid], latency, profile)
            newest = target.this_second(now_s) if target is not None else None
            found[uid] = indicators.degradation(
                uid, by_indicator, latency, newest, before.services.get(uid), now_s
            )
            if target is None and not profile:
                levels[uid] = max(by_indicator.values(), default=math.nan)
                continue
            levels[uid] = max(indicators.levels(lost[uid], newest, {}).values(), default=math.nan)
        is_calm = all(each.since_s is None for each in found.values())
        use = self._uses.read(self._candidates, self._counters.moved, now_s, is_calm=is_calm)
        self._history.add(levels, readings.pods(kinds.POD_CPU), list(self._candidates), use)
        verdicts = self._verdicts(found, before.verdicts, now_s)
        view.interference = Interference(at_s=now_s, services=found, verdicts=verdicts)

    def disable(self) -> None:
        """Publish nothing any more."""
        self._shared.view.interference = None

    def _follow(self) -> None:
        """Take over new lists of pods: who is to be protected, and who may be to blame."""
        view = self._shared.view
        if self._listed is view.pods and self._foreign is view.foreign:
            return
        self._listed, self._foreign = view.pods, view.foreign
        active = {uid: pod for uid, pod in view.pods.items() if pod.is_active}
        self._services = {uid: pod for uid, pod in active.items() if node_pods.is_service(pod)}
        self._candidates = {uid: pod for uid, pod in active.items() if uid not in self._services}
        self._candidates |= {uid: each.record for uid, each in view.foreign.items()}

    def _verdicts(
        self, found: Mapping[str, Degradation], before: Mapping[str, Verdict], now_s: float
    ) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        searched_s, self._searched_s = self._searched_s, {}
        for uid, each in found.items():
            if each.since_s is None:
                continue
            known, last_s = before.get(uid), searched_s.get(uid, -math.inf)
            if known is not None and (known.culprit not in self._candidates or known.since_s != each.since_s):
                known = None
            is_open = now_s - each.since_s <= UNSURE_S or now_s - last_s >= UNSURE_AGAIN_S
            is_due = is_open and (known is None or now_s - known.at_s >= AGAIN_S)
            named = self._name(each, each.since_s, now_s) if is_due else None
            if named is not None:
                verdicts[uid] = named
                if known is None or known.culprit != named.culprit:
                    victim, accused = self._services[uid], self._candidates[named.culprit]
                    self._reporter.report(named, victim, accused, each.level)
                continue
            self._searched_s[uid] = now_s if is_due else last_s
            if known is not None:
                verdicts[uid] = known
        return verdicts

    def _name(self, each: Degradation, since_s: float, now_s: float) -> Verdict | None:
        found = culprit.name(*self._history.of(each.uid))
        if found is None:
            return None
        return Verdict(
            victim=each.uid,
            culprit=self._history.candidates[found.candidate],
            resource=found.resource,
            indicator=verdict_reporter.worst(each),
            confidence=found.confidence,
            runner_up=found.runner_up,
            share=found.share,
            since_s=since_s,
            at_s=now_s,
        )

    def _log_available(self) -> None:
        is_answering = any(target.is_answering for target in self._scrapes.targets.values())
        if self._scrapes.targets:
            self._shared.metrics.sense_available.set(float(is_answering), Indicator.LATENCY)
        for indicator, missing in (self._stalls.available | self._counters.available).items():
            self._shared.metrics.sense_available.set(float(not missing), indicator)
            if indicator in self._logged:
                continue
            self._logged.add(indicator)
            if missing:
                log.warning("sense not available", extra={"sense": indicator.value, "reason": missing})
