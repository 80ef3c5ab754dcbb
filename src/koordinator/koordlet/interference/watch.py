"""Look after all services each second: what their senses say, published as `view.interference`.

Senses that this node lacks are said once in the log, and in the metric `koordlet_interference_sense_available`.
"""

import asyncio
import logging
from collections.abc import Mapping

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.koordlet.interference import senses
from koordinator.koordlet.interference.latency import Latency
from koordinator.koordlet.interference.scrape import LatencyScrapes
from koordinator.koordlet.interference.stalls import StallReader
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.suffering import INTERFERENCE, Interference, Sense, Suffering
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


class InterferenceWatch:
    """A strategy that only looks: it publishes, and writes nothing on the node."""

    name = "InterferenceWatch"
    gates: tuple[str, ...] = (INTERFERENCE,)
    interval_s = INTERVAL_S
    after = Topic.USAGE

    def __init__(self, shared: Shared, scrapes: LatencyScrapes) -> None:
        self._shared = shared
        self._scrapes = scrapes
        self._stalls = StallReader(shared.host)
        self._listed: Mapping[str, PodRecord] | None = None
        self._services: dict[str, PodRecord] = {}
        self._said: set[Sense] = set()

    def run(self) -> None:
        """Do one round."""
        view = self._shared.view
        if view.pods is not self._listed:
            self._listed = view.pods
            self._services = {
                uid: pod for uid, pod in view.pods.items() if pod.is_active and senses.is_service(pod)
            }
        now_s = asyncio.get_running_loop().time()
        kubepods = cgroup_layout.class_dir(view.driver, KubeQoS.GUARANTEED)
        lost = self._stalls.read(self._services, kubepods)
        self._say_available()
        before = view.interference.services if view.interference is not None else {}
        found: dict[str, Suffering] = {}
        for uid in self._services:
            latency = self._latency(uid, now_s)
            felt = senses.levels(lost[uid], latency, {})
            found[uid] = senses.suffering(uid, felt, latency, before.get(uid), now_s)
        view.interference = Interference(at_s=now_s, services=found)

    def disable(self) -> None:
        """Publish nothing any more."""
        self._shared.view.interference = None

    def _latency(self, uid: str, now_s: float) -> Latency | None:
        target = self._scrapes.targets.get(uid)
        return target.latency(now_s) if target is not None else None

    def _say_available(self) -> None:
        for sense, missing in self._stalls.available.items():
            self._shared.metrics.sense_available.set(float(not missing), sense)
            if sense in self._said:
                continue
            self._said.add(sense)
            if missing:
                log.warning("sense not available", extra={"sense": sense.value, "reason": missing})
