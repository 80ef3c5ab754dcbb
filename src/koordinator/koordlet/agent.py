"""The node agent: all parts put together, started in order, ended in order. Source: behaviour/koordlet-observe 2.4.

states ─ what the cluster and the kubelet say ─┐
collectors ─ what the node does ───────────────┴─ NodeView, SeriesStore ─ strategies, hooks ─ Executor ─ the node
                                                                        └ predict, reports ─ the cluster

Each loop has one round at once, then each an interval after the end of the one before, whatever happens.
On a dry run, a cluster in which nothing is changed tells what would be written.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from koordinator.api import decode
from koordinator.api.core import Event
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.meta import Object
from koordinator.api.qos import KubeQoS
from koordinator.clock import Clock
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.cluster.write_through import ReadThrough
from koordinator.host import cgroup_layout
from koordinator.host.gpu import GPUs, open_gpus
from koordinator.host.host import Host, probe_features
from koordinator.koordlet import audit, wakeups
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.collect import all as collect
from koordinator.koordlet.collect.all import CollectorRunner
from koordinator.koordlet.config import AgentConfig
from koordinator.koordlet.gpu_shares import BATCH_GPU
from koordinator.koordlet.hooks.all import RuntimeHooks
from koordinator.koordlet.interference.all import InterferenceParts
from koordinator.koordlet.isolation.probe import clean_left_overs
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.node_pods import GroupOwners
from koordinator.koordlet.parts import Following, Kubelet, Reporter, Shared, Strategy
from koordinator.koordlet.predict.gpu_trainer import GPUTrainer
from koordinator.koordlet.predict.hour_trainer import GATE as PEAKS_BY_HOUR
from koordinator.koordlet.predict.hour_trainer import HourTrainer
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos import all as qos
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.report import all as report
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.states.pods import FALLBACK
from koordinator.koordlet.states.states import States
from koordinator.koordlet.view import NodeView, Topic
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog

T = TypeVar("T", bound=Object)

WRITE_METHODS = frozenset(("POST", "PUT", "PATCH", "DELETE"))


class DryRunCluster(ReadThrough):
    """Reads from `cluster`; each write is handed to `report` as one line and answered as if it had been done."""

    def __init__(self, cluster: Cluster, report: Callable[[str], None]) -> None:
        super().__init__(cluster)
        self._report = report

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        if view is Event:
            about = obj.get("involvedObject", {})
            name = "/".join(filter(None, (about.get("namespace"), about.get("name"))))
            self._report(f"event on {about.get('kind')} {name}: {obj.get('reason')}: {obj.get('message')}")
        else:
            self._print_write("create", view, namespace, obj.get("metadata", {}).get("name", ""), obj)
        return decode.from_builtins(dict(obj), view)

    async def patch(
        self,
        view: type[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        subresource: str = "",
        **_: Any,
    ) -> T:
        self._print_write("patch", view, namespace, "/".join(filter(None, (name, subresource))), patch)
        return await self._inner.get(view, name, namespace)

    async def delete(self, view: type[T], name: str, namespace: str = "", **_: Any) -> None:
        self._print_write("delete", view, namespace, name, {})

    async def bind(self, namespace: str, pod: str, node: str, **_: Any) -> None:
        self._report(f"bind pods {namespace}/{pod} to {node}")

    async def evict(self, namespace: str, pod: str, **_: Any) -> None:
        self._report(f"evict pods {namespace}/{pod}")

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if method not in WRITE_METHODS:
            return await self._inner.request(method, path, body, params)
        self._report(f"{method} {path} {_text(body)}")
        return dict(body or {})

    def _print_write(self, verb: str, view: type[Object], namespace: str, name: str, body: Any) -> None:
        where = "/".join(filter(None, (namespace, name)))
        self._report(f"{verb} {view.resource.qualified} {where} {_text(body)}".rstrip())


def _text(body: Any) -> str:
    return msgspec.json.encode(body).decode() if body else ""


log = logging.getLogger(__name__)

LATE_INTERVALS = 2.0
"""A round that follows a change comes after so many intervals even without one."""

FAILED_S_MAX = 10.0
"""The longest pause after rounds that failed in a row; a service waits for its protection meanwhile."""
PAUSE_S_MIN = 0.1
Pause = Callable[[], Awaitable[None]]


class Pace:
    """The pauses of one loop. Rounds that follow a topic are at least `interval_s` less half of `change_interval_s`
    apart, where `change_interval_s` is how often the topic changes.

    A strategy that acts on samples and runs by a clock of its own sees each sample up to an interval late. One that
    follows the measuring reacts at once, and when nothing is measured any more it still gets its rounds.
    """

    def __init__(
        self,
        interval_s: float,
        view: NodeView,
        after: Topic | None,
        name: str,
        change_interval_s: float = 1.0,
    ) -> None:
        self._interval_s = interval_s
        self._gap_s = max(interval_s - change_interval_s / 2, 0.0)
        self._is_following = after is not None
        self._due: asyncio.Future[None] | None = None
        self._last_s = float("-inf")
        self._is_overdue = False
        if after is not None:
            view.listen(after, name, self._changed)

    async def pause(self) -> None:
        """Until the next round is due; to be called after each."""
        if not self._is_following:
            await wakeups.sleep(self._interval_s)
            return
        loop = asyncio.get_running_loop()
        if not self._is_overdue:
            self._due = loop.create_future()
            try:
                async with asyncio.timeout(self._interval_s * LATE_INTERVALS):
                    await self._due
            except TimeoutError:
                pass
            finally:
                self._due = None
        self._is_overdue = False
        self._last_s = loop.time()

    def _changed(self) -> None:
        if self._due is None:
            self._is_overdue = True  # while the round was running: the next one follows at once
        elif asyncio.get_running_loop().time() - self._last_s >= self._gap_s and not self._due.done():
            self._due.set_result(None)


def is_on(strategy: Strategy, gates: FeatureGates) -> bool:
    """Return whether a strategy runs at all."""
    return strategy.interval_s > 0 and (not strategy.gates or any(map(gates.is_on, strategy.gates)))


def start(strategies: Iterable[Strategy], shared: Shared, group: asyncio.TaskGroup) -> None:
    """Run strategies as tasks of `group`; who is off puts back what a former run of the agent changed."""
    for strategy in strategies:
        guard = Guard(strategy.name)
        if is_on(strategy, shared.gates):
            group.create_task(repeat(strategy, _pace_of(strategy, shared), guard), name=strategy.name)
        else:
            log.info("strategy is off", extra={"strategy": strategy.name, "gates": strategy.gates})
            guard.call(strategy.disable)


def disable(strategies: Iterable[Strategy]) -> None:
    """Let all put back what a former run of the agent changed."""
    for strategy in strategies:
        Guard(strategy.name).call(strategy.disable)


def start_reporters(reporters: Iterable[Reporter], group: asyncio.TaskGroup) -> None:
    """Run reporters as tasks of `group`, with the caches that they read."""
    for reporter in reporters:
        for informer in reporter.informers:
            group.create_task(informer.run(), name=informer.guard.name)
        group.create_task(repeat(reporter, _pause_of(reporter), Guard(reporter.name)), name=reporter.name)


async def repeat(part: Strategy | Reporter, pause: Pause, guard: Guard) -> NoReturn:
    """Rounds until cancelled. One that fails is logged; pauses then grow, up to a limit."""
    failed_s = 0.0
    while True:
        if await guard.call_async(_round, part) is None:
            failed_s = 0.0
            await pause()
        else:
            failed_s = min(max(failed_s * 2, part.interval_s, PAUSE_S_MIN), FAILED_S_MAX)
            await asyncio.sleep(failed_s)


async def _round(part: Strategy | Reporter) -> None:
    result = part.run()
    if result is not None:
        await result


def _pace_of(strategy: Strategy, shared: Shared) -> Pause:
    if not isinstance(strategy, Following):
        return _pause_of(strategy)
    every_s = shared.config.collect.used_interval_s
    return Pace(
        strategy.interval_s, shared.view, strategy.after, strategy.name, change_interval_s=every_s
    ).pause


def _pause_of(part: Strategy | Reporter) -> Pause:
    def pause() -> Awaitable[None]:
        return wakeups.sleep(max(part.interval_s, PAUSE_S_MIN))  # it may be another one by now

    return pause


EXPIRE_S = 60.0

EVENTS_FROM = "koordlet-qosManager"
COLLECT_S_MIN = 1.0
"""Shortest collect interval: a shorter one would collect nothing, and nothing would act."""
MEASURE_S, MEASURE_ROUNDS = 5.0, 3.0
"""Seconds that strategies wait for first samples, and their least number of rounds."""
END_S = 3.0
"""Time that putting back may take at the end."""
JOURNAL = "koordlet/restore.jsonl"
"""Below /run: what files said before they were changed."""
KubeletFactory = Callable[[NodeView, AgentMetrics], Kubelet]
"""Makes the way to the kubelet; the view says where it is."""


async def expire(shared: Shared) -> NoReturn:
    """Drop what nobody touched, once a minute."""
    guard = Guard("upkeep")
    while True:
        await wakeups.sleep(EXPIRE_S)
        for drop in (shared.metrics.expire, shared.executor.expire, shared.host.files.sweep):
            guard.call(drop)


async def flush_audit(shared: Shared) -> NoReturn:
    """Write audit events; log a full or missing disk once."""
    guard = Guard("audit log")
    reported = ""
    while True:
        await wakeups.sleep(audit.FLUSH_INTERVAL_S)
        guard.call(shared.audit.flush)
        problem = "" if shared.audit.problem is None else str(shared.audit.problem)
        if problem and problem != reported:
            log.warning("audit log not written", extra={"problem": problem})
        reported = problem


class Agent:
    """One node's agent. `run` until cancelled; `shared` is there for whoever serves or looks into it.

    `on_dry_run` makes it a dry run: nothing is changed, on the node or in the cluster; each change is one printed line.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        gates: FeatureGates,
        host: Host,
        cluster: Cluster,
        clock: Clock,
        rng: random.Random,
        kubelet: KubeletFactory,
        on_dry_run: Callable[[str], None] | None = None,
    ) -> None:
        self.is_started = asyncio.Event()
        """All parts run."""
        self.are_hooks_started = asyncio.Event()
        """Hooks know the node, its policies and its pods, or that nothing is to be known of them."""
        view, metrics = NodeView(FALLBACK), AgentMetrics(config.node_name, clock)
        self._kubelet = kubelet(view, metrics)
        if on_dry_run is not None:
            cluster = DryRunCluster(cluster, on_dry_run)
            config = msgspec.structs.replace(
                config,
                predict=msgspec.structs.replace(config.predict, checkpoints=""),
                kubelet=msgspec.structs.replace(config.kubelet, pod_resources_proxy=""),
            )
        audit = AuditLog(
            clock,
            directory="" if on_dry_run is not None else config.audit.directory,
            verbose=config.audit.verbose,
            disk_mb_max=config.audit.disk_mb_max,
            is_enabled=gates.is_on("AuditEvents"),
        )
        store = SeriesStore()
        self.shared = Shared(
            config=config,
            gates=gates,
            clock=clock,
            rng=rng,
            host=host,
            view=view,
            store=store,
            readings=Readings(store, clock, config.collect.used_interval_s),
            executor=_executor(config, host, clock, audit, metrics, on_dry_run, view),
            audit=audit,
            metrics=metrics,
            cluster=cluster,
            events=EventRecorder(cluster, EVENTS_FROM, host=config.node_name, rng=new_rng(rng)),
            kubelet=self._kubelet,
            gpus=_gpus(config, gates, host),
        )
        self.shadow = ShadowMode(self.shared)
        """Strategies that only decide, and what that would have come to."""
        self.states = States(self.shared, self._kubelet)
        self._parts: Parts | None = None

    def troubles(self) -> Mapping[str, str]:
        """Return what the agent waits for, or misses, by name."""
        found = dict(self.states.troubles())
        if not self.is_started.is_set():
            found["koordlet"] = "parts are not started yet"
        return found

    @property
    def hooks(self) -> RuntimeHooks:
        """Return the runtime hooks, once `are_hooks_started`."""
        assert self._parts is not None
        return self._parts.hooks

    def interference(self, pod: str) -> dict[str, Any]:
        """Return how services suffer, who was named, of one pod (`namespace/name`) when that is not empty, and what was
        done about it."""
        return self._parts.interference.answer(pod) if self._parts is not None else {}

    async def run(self) -> None:
        """Watch, measure, protect, report, until cancelled; then put back what was changed, if that is asked for."""
        shared = self.shared
        shared.metrics.start_time.set(shared.clock.now())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(shared.events.run(), name="events")
                group.create_task(expire(shared), name="upkeep")
                group.create_task(flush_audit(shared), name="audit log")
                self.states.start(group)
                await self.states.wait_synced()
                await self._start(group)
        finally:
            await self._end()

    async def _start(self, group: asyncio.TaskGroup) -> None:
        """Hooks and reporters at once; strategies when there is something to act upon.

        They are not kept waiting for collectors that have nothing to measure on this node, or take their time.
        """
        shared = self.shared
        log.info("node, pods and policies loaded", extra={"node": shared.config.node_name})
        _log_missing(shared)
        await Guard("isolation probe").call_async(clean_left_overs, shared)
        parts = self._parts = Parts(shared, self.shadow)
        group.create_task(parts.collecting.run(), name="collectors")
        start_reporters(parts.reporters, group)
        parts.hooks.start()
        group.create_task(parts.hooks.run(), name=parts.hooks.name)
        self.are_hooks_started.set()
        used_interval_s = shared.config.collect.used_interval_s
        await parts.collecting.wait_started(max(MEASURE_S, MEASURE_ROUNDS * used_interval_s))
        if shared.config.collect.used_interval_s >= COLLECT_S_MIN:
            start(parts.strategies, shared, group)
        else:
            log.warning("strategies are off: collect-res-used-interval is below 1s")
            disable(parts.strategies)
        self.is_started.set()

    async def _end(self) -> None:
        shared = self.shared
        try:
            async with asyncio.timeout(END_S):
                if shared.config.qos.restore_on_exit:
                    await self._restore()
                await self._kubelet.close()
                if self._parts is not None:
                    self._parts.interference.close()
        except TimeoutError:
            log.warning("not all files restored in time", extra={"seconds": END_S})
        shared.audit.flush()
        shared.host.close()

    async def _restore(self) -> None:
        """Put back everything, also what was changed before a restart and by parts that never started."""
        guard = Guard("restoring")
        if self._parts is not None:
            disable(self._parts.strategies)
            await guard.call_async(self._parts.hooks.disable)
        for owner in self.shared.executor.owners():
            guard.call(self.shared.executor.restore, owner)


class Parts:
    """The parts that measure, act and report; made once it is known how the kubelet names groups."""

    def __init__(self, shared: Shared, mode: ShadowMode) -> None:
        used_interval_s = shared.config.collect.used_interval_s
        trainer = Trainer(shared)
        lends_gpus = shared.gates.is_on(BATCH_GPU) and shared.gpus is not None
        gpu_trainer = GPUTrainer(shared) if lends_gpus else None
        hour_trainer = HourTrainer(shared) if shared.gates.is_on(PEAKS_BY_HOUR) else None
        trainers = [each for each in (trainer, gpu_trainer, hour_trainer) if each is not None]
        self.collecting = CollectorRunner(collect.collectors(shared), used_interval_s)
        self.reporters: list[Reporter] = [
            *trainers,
            *report.reporters(shared, mode, trainer, gpu_trainer, hour_trainer),
        ]
        evictor = qos.live_evictor(shared, mode)
        self.interference = InterferenceParts(shared, evictor, mode)
        # Those who decide what batch is allowed come before those who act on it, in the same round of samples.
        self.strategies = [*self.interference.strategies, *qos.strategies(shared, mode, evictor)]
        self.hooks = RuntimeHooks(shared)


def _log_missing(shared: Shared) -> None:
    """Say once which features this host does not have, and why: strategies that need them have no effect."""
    kubepods = cgroup_layout.class_dir(shared.view.driver, KubeQoS.GUARANTEED)
    for feature, support in probe_features(shared.host, kubepods).items():
        if not support.is_supported:
            log.info(
                "feature not supported on this host", extra={"feature": feature, "reason": support.reason}
            )


def _gpus(config: AgentConfig, gates: FeatureGates, host: Host) -> GPUs | None:
    if not gates.is_on("Accelerators") or config.collect.xpu_only_files:
        return None
    return open_gpus(host.files, host.roots)[0]


def _executor(
    config: AgentConfig,
    host: Host,
    clock: Clock,
    audit: AuditLog,
    metrics: AgentMetrics,
    on_dry_run: Callable[[str], None] | None,
    view: NodeView,
) -> Executor:
    def on_update(kind: str, is_success: bool, seconds: float) -> None:
        status = "success" if is_success else "failed"
        metrics.resource_update.of(kind, status).observe(seconds * 1000)

    records = RestoreLog(
        f"{host.roots.run}/{JOURNAL}", host.machine.boot_id(), is_read_only=on_dry_run is not None
    )
    return Executor(
        host.cgroups,
        clock,
        audit,
        records,
        force_update_s=config.qos.force_update_s,
        on_dry_run=None if on_dry_run is None else lambda write: on_dry_run(str(write)),
        on_update=on_update,
        owner_of=GroupOwners(lambda: view.pods).of,
    )
