"""Carrying out evictions: through the Kubernetes API, by stopping a pod's containers, or through the agent of another
runtime whose container it is.

One evictor serves all strategies, one round at a time, so that none counts on what another has just evicted. Nothing
waits without bound and nothing is queued: what could not be done now is decided anew by the next round, from what is
measured then. Source: behaviour/koordlet-act 5.4 and 5.5.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping, Sequence

from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.transport import refused_by_budget
from koordinator.host import cgroup_layout, copilots
from koordinator.host.copilots import CopilotError
from koordinator.host.kill_group import kill_group
from koordinator.koordlet.node_pods import ForeignContainer, PodRecord
from koordinator.koordlet.parts import Shared, container_runtimes
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.eviction import (
    EVENT_FAIL,
    EVENT_SUCCESS,
    LEAVING_S_MAX,
    Arbitration,
    EvictionTask,
    EvictionVictim,
    Victims,
)

log = logging.getLogger(__name__)

AUDIT_LEVEL = 0
EVICTED = "evicted"
CALL_S_MAX = 8.0
"""An API server that takes longer is away."""
ROUND_S_MAX = 10.0
"""After that the measurements of a round are history: the next one begins with new ones."""
VERSION_S_MAX = 600.0
"""Time for which an answer about the server's version of evictions counts."""
AWAY = BackoffPolicy(initial_s=2.0, max_s=30.0, jitter_ratio=0.2)
"""Pauses while the API server is away, so that an outage costs neither requests nor log lines each second."""
_DISCOVERY = "/api/v1"
_EVICTION = "pods/eviction"
_SUPPORTED = ("policy", "v1")


class EvictionResult(enum.Enum):
    """The end of an attempt."""

    EVICTED = "evicted"
    REFUSED = "this pod cannot be evicted now"
    AWAY = "nobody can be evicted now"


class Evictor:
    """Evicts pods; `only_evict_by_api` chooses the way. `on_evicted` hears of each that was evicted."""

    leaving_s_max = LEAVING_S_MAX

    def __init__(
        self, shared: Shared, on_evicted: Callable[[PodRecord, EvictionVictim], None] = lambda *_: None
    ) -> None:
        self._shared = shared
        self._on_evicted = on_evicted
        self._victims = Victims(self.leaving_s_max)
        self._lock = asyncio.Lock()
        self._backoff = Backoff(AWAY, shared.rng)
        self._away_until_s = float("-inf")
        self._version: tuple[float, str] | None = None
        self._runtimes = container_runtimes(shared)

    async def carry_out(self, tasks: Sequence[EvictionTask]) -> bool:
        """One round over the tasks; whether any pod was newly evicted.

        Another strategy's round is waited for, and then the tasks are out of date: nothing is evicted, the next round
        measures what is left.
        """
        if self._lock.locked() or self._now_s() < self._away_until_s:
            return False
        async with self._lock:
            return await self._round(tasks)

    async def _round(self, tasks: Sequence[EvictionTask]) -> bool:
        pods = self._records()
        known = self._victims.look(pods, self._now_s())
        narrowed = eviction.narrowed(tasks, known.leaving, known.spared)
        arbitration = Arbitration(narrowed, known.leaving)
        end_s = self._now_s() + ROUND_S_MAX
        while (victim := arbitration.next_victim()) is not None and self._now_s() < end_s:
            record = self._records().get(victim.uid)
            if record is None or record.pod.metadata.deletion_timestamp is not None:
                arbitration.settle(victim, False)  # it went while the ones before were evicted
                continue
            fate = await self._evict(record, victim)
            arbitration.settle(victim, fate is EvictionResult.EVICTED)
            if fate is EvictionResult.AWAY:
                break
        return bool(arbitration.evicted)

    async def _evict(self, record: PodRecord, victim: EvictionVictim) -> EvictionResult:
        shared, meta = self._shared, record.pod.metadata
        message = victim.message(meta.name)
        if shared.executor.is_dry_run:
            shared.executor.perform(f"pod {record.key}", EVICTED, _nothing, victim.feature, message)
            return EvictionResult.EVICTED
        # Before the call, whatever comes of it: an eviction must never go untold.
        shared.audit.pod(AUDIT_LEVEL, meta.namespace, meta.name, EVICTED, message)
        if (container := shared.view.foreign.get(record.uid)) is not None:
            fate, problem = await self._by_copilot(container, message)
        elif shared.config.qos.only_evict_by_api:
            fate, problem = await self._by_api(record)
        else:
            fate, problem = await self._by_runtime(record)
        facts = {"pod": record.key, "feature": str(victim.feature), "problem": problem}
        if fate is EvictionResult.EVICTED:
            log.info("pod evicted", extra=facts)
            shared.events.warning(self._involved_object(record), EVENT_SUCCESS, message)
            shared.metrics.eviction.inc(EVICTED)
            shared.metrics.eviction_detail.inc(meta.namespace, meta.name, EVICTED)
            self._on_evicted(record, victim)
            self._backoff.reset()
        else:
            log.warning("pod not evicted", extra=facts)
            if problem:
                shared.events.warning(self._involved_object(record), EVENT_FAIL, f"{message}: {problem}")
        return fate

    def _records(self) -> Mapping[str, PodRecord]:
        """Return all who can be evicted, by UID: pods, and containers of other runtimes."""
        view = self._shared.view
        if not view.foreign:
            return view.pods
        return {**view.pods, **{uid: each.record for uid, each in view.foreign.items()}}

    def _involved_object(self, record: PodRecord) -> Object:
        """Return the object whose events tell of an eviction; the node for containers that are no objects."""
        node = self._shared.view.node
        return node if node is not None and record.uid in self._shared.view.foreign else record.pod

    # Through the API

    async def _by_api(self, record: PodRecord) -> tuple[EvictionResult, str]:
        meta = record.pod.metadata
        try:
            async with asyncio.timeout(CALL_S_MAX):
                unsupported = await self._unsupported()
                if not unsupported:
                    await self._shared.cluster.evict(meta.namespace, meta.name, uid=meta.uid)
        except TimeoutError:
            return self._away(None), f"the API server did not answer within {CALL_S_MAX:.0f} s"
        except (errors.NotFound, errors.Conflict):
            return self._refused(record.uid)  # gone already, or another pod of that name: nobody to tell
        except errors.TooManyRequests as error:
            if not refused_by_budget(error):
                return self._away(error), str(error)
            return self._refused(record.uid, str(error))
        except (errors.ServiceUnavailable, errors.Timeout, errors.Unauthorized) as error:
            return self._away(error), str(error)
        except errors.ApiError as error:
            return self._refused(record.uid, str(error))
        if unsupported:
            return self._away(None), unsupported
        self._victims.evicted(record.uid, self._now_s())
        return EvictionResult.EVICTED, ""

    def _refused(self, uid: str, problem: str = "") -> tuple[EvictionResult, str]:
        """Leave a pod alone for a while."""
        self._victims.refused(uid, self._now_s())
        return EvictionResult.REFUSED, problem

    def _away(self, error: Exception | None) -> EvictionResult:
        self._away_until_s = self._now_s() + self._backoff.next_s(error)
        return EvictionResult.AWAY

    async def _unsupported(self) -> str:
        """Return why the server's evictions cannot be used; empty when they can. Raises: ApiError."""
        now_s = self._now_s()
        if self._version is None or now_s - self._version[0] >= VERSION_S_MAX:
            answer = await self._shared.cluster.request("GET", _DISCOVERY)
            self._version = now_s, _version_problem(answer.get("resources"))
        return self._version[1]

    # Through the agent of another runtime

    async def _by_copilot(self, container: ForeignContainer, reason: str) -> tuple[EvictionResult, str]:
        """Ask the owner to end a container; while it is away, end all that is in its group."""
        uid, problem = container.record.uid, ""
        is_away = not container.socket
        if not is_away:
            try:
                await copilots.kill(container.socket, container.record.pod.metadata.name, reason)
            except CopilotError as error:
                is_away, problem = error.is_away, str(error)
        if is_away:
            problem = await kill_group(self._shared.host, container.record.group)
        if problem:
            return self._refused(uid, problem)
        self._victims.evicted(uid, self._now_s())
        return EvictionResult.EVICTED, ""

    # Through the runtime

    async def _by_runtime(self, record: PodRecord) -> tuple[EvictionResult, str]:
        running = [container for container in record.containers if container.is_running]
        if not running:
            return self._refused(record.uid, "no container is running")
        ids = [cgroup_layout.parse_container_id(container.id) for container in running]
        unreachable = next(filter(None, (self._runtimes.problem(each.runtime) for each in ids)), "")
        if unreachable:
            return self._away(None), unreachable
        problems = await asyncio.gather(*map(self._runtimes.stop, ids))
        failed = [
            f"container {container.name}: {problem}"
            for container, problem in zip(running, problems, strict=True)
            if problem
        ]
        if failed:
            return self._refused(record.uid, "; ".join(failed))
        self._victims.killed(record.uid, [container.id for container in running], self._now_s())
        return EvictionResult.EVICTED, ""

    def _now_s(self) -> float:
        """Return the loop's time: that of the clock may be set back."""
        return asyncio.get_running_loop().time()


def _version_problem(found: object) -> str:
    for each in found if isinstance(found, list) else []:
        if isinstance(each, dict) and each.get("name") == _EVICTION:
            version = each.get("group"), each.get("version")
            return (
                "" if version == _SUPPORTED else f"evictions of group and version {version} are not supported"
            )
    return f"the API server has no {_EVICTION}"


def _nothing() -> None:
    """Evict nothing, as a dry run does."""
