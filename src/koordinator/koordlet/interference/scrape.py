"""Read what services report of their latency, each second: bounded in size, time and number, apart from all other work.

A target that is away is asked less and less often (`AWAY_S_MAX`); that is said once, on its pod. Certificates are not
checked, as the kubelet does not check those of probes: nothing is sent but the request. Redirects are not followed.
"""

import abc
import asyncio
import contextlib
import logging
import ssl
from collections.abc import Mapping

from koordinator.api.annotations.koordlet import (
    LATENCY_OBJECTIVE,
    LATENCY_UNITS_S,
    AccessLogSource,
    LatencyObjective,
    PrometheusSource,
)
from koordinator.api.errors import ProtocolError
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.exchange import ConnectionPool, Origin
from koordinator.koordlet.degradation import INTERFERENCE
from koordinator.koordlet.interference import access_log, exposition
from koordinator.koordlet.interference.access_log import LogFile, LogSocket
from koordinator.koordlet.interference.exposition import BucketReader, FamilyError, QuantileReader
from koordinator.koordlet.interference.latency import BucketWindow, Latency, SampleWindow
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
TIMEOUT_S = 0.5
BODY_BYTES_MAX = 8 * 1024 * 1024
AT_ONCE = 8
"""Targets that are asked at the same time."""
TARGETS_MAX = 256
AWAY_S_MAX = 30.0
STALE_S = 3.0
"""Greatest age of an answer that still describes the present."""
NEWEST_S = 0.5
"""The same for what is to belong to this second, beyond the time between two answers: rounds of asking and of looking
are not in step."""
CALM_SLACK = 0.5
"""A service that has so much of its objective left is asked each `CALM_ROUNDS`th round only."""
CALM_ROUNDS = 2
NOT_HEARD = "LatencyNotHeard"
"""Reason of the event on a pod whose latency cannot be read."""
KEEP_ALIVE_S = 10.0


class SourceError(Exception):
    """A target that did not answer, or nothing of use; the message says why."""


class Target(abc.ABC):
    """One pod's objective, and what it reported."""

    calm_rounds = 1
    """It is asked each such round while its service is calm: logs, which go on growing, each."""

    def __init__(self, record: PodRecord, objective: LatencyObjective) -> None:
        self.record = record
        self.objective = objective
        self.target_s = objective.target_milliseconds / 1000
        self.share = objective.percentile / 100
        self.due_s = 0.0
        self.away_s = 0.0
        self.problem = ""
        self.is_calm = False
        """Its latency is far below its objective."""
        self.rounds_left = 0
        """Rounds in which it is not asked."""
        self.answered_s: float | None = None
        """Time of its last answer."""

    @property
    @abc.abstractmethod
    def place(self) -> str:
        """Return where it reports."""

    @abc.abstractmethod
    async def ask(self) -> None:
        """Take what it reports. Raises: SourceError, and what reading raises."""

    @abc.abstractmethod
    def measured(self, now_s: float) -> Latency | None:
        """Return the newest report, however old."""

    @abc.abstractmethod
    def newest(self) -> Latency | None:
        """Return the percentile of what came since the reading before; None with too few requests."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close what it is read by."""

    @property
    def is_answering(self) -> bool:
        """Return whether it has answered, and still does."""
        return self.answered_s is not None and not self.problem

    def is_due(self, now_s: float) -> bool:
        """Return whether to ask it in this round; to be called once in each."""
        self.rounds_left -= 1
        return self.rounds_left < 0 and self.due_s <= now_s

    def latency(self, now_s: float) -> Latency | None:
        """Return what is known of now."""
        found = self.measured(now_s)
        return found if found is not None and now_s - found.at_s <= STALE_S else None

    def this_second(self, now_s: float) -> Latency | None:
        """Return the latency without what came before the last reading: jumps show at once, and end at once."""
        found = self.newest()
        newest_s = NEWEST_S + INTERVAL_S * (self.calm_rounds if self.is_calm else 1)
        return found if found is not None and now_s - found.at_s <= newest_s else None


class PrometheusTarget(Target):
    """A histogram or summary over HTTP."""

    calm_rounds = CALM_ROUNDS

    def __init__(self, record: PodRecord, objective: LatencyObjective, source: PrometheusSource) -> None:
        super().__init__(record, objective)
        self._source = source
        wanted = exposition.family(source.metric, source.labels)
        self._unit_s = LATENCY_UNITS_S[source.unit]
        self._buckets = BucketReader(wanted)
        self._quantile = QuantileReader(wanted, self.share)
        self._window = BucketWindow(objective.window_seconds)
        self._summary: Latency | None = None
        self._address = ""
        self._request = b""
        self._pool: ConnectionPool | None = None

    @property
    def place(self) -> str:
        return f"{self._source.scheme}://{self._host}{self._source.path}"

    @property
    def _host(self) -> str:
        address = self.record.pod.status.pod_ip
        return f"[{address}]:{self._source.port}" if ":" in address else f"{address}:{self._source.port}"

    async def ask(self) -> None:
        """Scrape once. Raises: SourceError when the pod has no address or answers something else."""
        if not self.record.pod.status.pod_ip:
            raise SourceError("the pod has no address yet")
        answer = await self._connected().exchange(self._request, TIMEOUT_S)
        if answer.status != 200:
            raise SourceError(f"HTTP {answer.status}")
        try:
            self._parse(answer.body, asyncio.get_running_loop().time())
        except FamilyError as error:
            raise SourceError(str(error)) from error

    def _connected(self) -> ConnectionPool:
        address = self.record.pod.status.pod_ip
        if self._pool is None or address != self._address:
            self.close()
            self._address = address
            lines = (
                f"GET {self._source.path} HTTP/1.1",
                f"Host: {self._host}",
                "Accept: text/plain; version=0.0.4",
                "Accept-Encoding: identity",
            )
            self._request = "\r\n".join((*lines, "", "")).encode()
            tls = _unchecked() if self._source.scheme == "https" else None
            self._pool = ConnectionPool(
                Origin(host=address, port=self._source.port, tls=tls),
                connections_max=1,
                connect_timeout_s=TIMEOUT_S,
                keep_alive_s=KEEP_ALIVE_S,
                body_bytes_max=BODY_BYTES_MAX,
            )
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _parse(self, body: bytes, now_s: float) -> None:
        since_s, self.answered_s = self.answered_s, now_s
        increase = self._buckets.read(body)
        if self._buckets.is_there:
            self._check_ends()
            if increase is not None and since_s is not None:
                scaled = {end * self._unit_s: count for end, count in increase.items()}
                self._window.add(now_s, since_s, scaled)
            self._summary = None
            return
        found = self._quantile.read(body)
        if not self._quantile.is_there:
            raise SourceError(f"no series of metric {self._source.metric} with the wanted labels")
        if found is not None and since_s is not None:
            value, came = found
            rate = came / max(now_s - since_s, 1e-3)
            self._summary = Latency(now_s=value * self._unit_s, target_s=self.target_s, rate=rate, at_s=now_s)

    def _check_ends(self) -> None:
        largest = self._buckets.largest_end * self._unit_s
        if largest <= self.target_s:
            raise SourceError(f"the largest bucket ends at {largest:g} s, not above the target")

    def measured(self, now_s: float) -> Latency | None:
        return self._summary or self._window.latency(self.share, self.target_s, now_s)

    def newest(self) -> Latency | None:
        return self._summary or self._window.newest(self.share, self.target_s)


class LogTarget(Target):
    """An access log in a volume of the pod."""

    def __init__(
        self, record: PodRecord, objective: LatencyObjective, source: AccessLogSource, kubelet: str
    ) -> None:
        super().__init__(record, objective)
        self._source = source
        self._directory = access_log.directory_of(kubelet, record.uid, source)
        self._window = SampleWindow(objective.window_seconds)
        self._reader: LogFile | LogSocket | None = None

    @property
    def place(self) -> str:
        return f"volume {self._source.volume}, {self._source.path}"

    async def ask(self) -> None:
        if self._reader is None:
            self._reader = access_log.opened(self._directory, self._source)
        now_s = asyncio.get_running_loop().time()
        self._window.add(now_s, self._reader.read())
        self.answered_s = now_s

    def measured(self, now_s: float) -> Latency | None:
        return self._window.latency(self.share, self.target_s, now_s)

    def newest(self) -> Latency | None:
        return self._window.newest(self.share, self.target_s)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class LatencyScrapes:
    """A strategy that asks all targets each second."""

    name = "LatencyObjectives"
    gates: tuple[str, ...] = (INTERFERENCE,)
    interval_s = INTERVAL_S

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._rng = new_rng(shared.rng)
        self._listed: Mapping[str, PodRecord] | None = None
        self._rejected: dict[str, str] = {}
        """UID → annotation that cannot be read."""
        self._targets: dict[str, Target] = {}

    @property
    def targets(self) -> Mapping[str, Target]:
        """Return all targets, by UID of the pod."""
        return self._targets

    async def run(self) -> None:
        """Ask all targets that are due, each within its time."""
        if self._shared.view.pods is not self._listed:
            self._listed = self._shared.view.pods
            self._follow(self._listed)
        now_s = asyncio.get_running_loop().time()
        due = [each for each in self._targets.values() if each.is_due(now_s)]
        turns = iter(due)

        async def ask_in_turn() -> None:
            for each in turns:
                await self._ask(each)

        if due:
            await asyncio.gather(*(ask_in_turn() for _ in range(min(len(due), AT_ONCE))))

    def disable(self) -> None:
        """Put nothing back: it only reads."""

    def close(self) -> None:
        """Close all connections and files."""
        for target in self._targets.values():
            target.close()

    def _follow(self, pods: Mapping[str, PodRecord]) -> None:
        found: dict[str, Target] = {}
        self._rejected = {uid: text for uid, text in self._rejected.items() if uid in pods}
        for uid, record in pods.items():
            if LATENCY_OBJECTIVE.key not in record.pod.metadata.annotations or not record.is_active:
                continue
            if not any(each.is_running and not each.is_init for each in record.containers):
                continue  # nobody answers yet, which is no fault
            objective = self._objective(record)
            if objective is None:
                continue
            known = self._targets.get(uid)
            if known is not None and known.objective == objective:
                known.record = record
                found[uid] = known
            elif len(found) < TARGETS_MAX:
                found[uid] = self._target(record, objective)
        for uid, target in self._targets.items():
            if found.get(uid) is not target:
                target.close()
        self._targets = found

    def _target(self, record: PodRecord, objective: LatencyObjective) -> Target:
        if objective.prometheus is not None:
            return PrometheusTarget(record, objective, objective.prometheus)
        assert objective.access_log is not None
        return LogTarget(record, objective, objective.access_log, self._shared.host.roots.kubelet)

    def _objective(self, record: PodRecord) -> LatencyObjective | None:
        annotations = record.pod.metadata.annotations
        try:
            return LATENCY_OBJECTIVE.read(annotations, f"pod {record.key}")
        except ProtocolError as error:
            text = annotations[LATENCY_OBJECTIVE.key]
            if self._rejected.get(record.uid) != text:
                self._rejected[record.uid] = text
                log.warning("latency objective rejected", extra={"pod": record.key, "problem": str(error)})
            return None

    async def _ask(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        try:
            await target.ask()
        except (SourceError, TimeoutError, OSError, ValueError) as error:
            self._failed(target, str(error) or type(error).__name__, loop.time())
            return
        if target.problem:
            log.info("latency heard again", extra={"pod": target.record.key})
        found = target.latency(loop.time())
        target.is_calm = found is not None and found.slack >= CALM_SLACK
        target.rounds_left = target.calm_rounds - 1 if target.is_calm else 0
        target.problem, target.away_s, target.due_s = "", 0.0, 0.0

    def _failed(self, target: Target, problem: str, now_s: float) -> None:
        target.is_calm = False
        target.away_s = min(max(2 * target.away_s, INTERVAL_S), AWAY_S_MAX)
        target.due_s = now_s + target.away_s * self._rng.uniform(0.5, 1.0)
        if not target.problem:
            message = f"{target.place}: {problem}"
            log.warning("latency not heard", extra={"pod": target.record.key, "problem": message})
            self._shared.events.warning(target.record.pod, NOT_HEARD, message)
        target.problem = problem


def _unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLError):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
