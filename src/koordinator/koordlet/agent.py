"""The node agent: all parts put together, started in order, ended in order. Source: behaviour/koordlet-observe 2.4.

states ─ what the cluster and the kubelet say ─┐
collectors ─ what the node does ───────────────┴─ NodeView, SeriesStore ─ strategies, hooks ─ Executor ─ the node
                                                                        └ predict, reports ─ the cluster
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec

from koordinator.api.feature_gates import FeatureGates
from koordinator.api.qos import KubeQoS
from koordinator.clock import Clock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.host import capabilities, cgroup_layout
from koordinator.host.gpu import GPUs, open_gpus
from koordinator.host.host import Host
from koordinator.koordlet import audit, loops
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.collect import all as collect
from koordinator.koordlet.collect.runner import CollectorRunner
from koordinator.koordlet.config import AgentConfig
from koordinator.koordlet.dry_run import DryRunCluster
from koordinator.koordlet.hooks.all import RuntimeHooks
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Kubelet, Reporter, Shared
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos import all as qos
from koordinator.koordlet.readings import Readings
from koordinator.koordlet.report import all as report
from koordinator.koordlet.series import SeriesStore
from koordinator.koordlet.states.driver import FALLBACK
from koordinator.koordlet.states.states import States
from koordinator.koordlet.view import NodeView
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog

log = logging.getLogger(__name__)

EXPIRE_S = 60.0

EVENTS_FROM = "koordlet-qosManager"
COLLECT_S_MIN = 1.0
"""Who collects more often than that collects nothing, and acts on nothing."""
MEASURE_S, MEASURE_ROUNDS = 5.0, 3.0
"""How long strategies wait for first samples, and how many rounds at least."""
END_S = 3.0
"""How long putting back may take at the end."""
JOURNAL = "koordlet/restore.jsonl"
"""Below /run: what files said before they were changed."""
KubeletFactory = Callable[[NodeView, AgentMetrics], Kubelet]
"""Makes the way to the kubelet; the view says where it is."""


async def expire(shared: Shared) -> NoReturn:
    """Drop what nobody touched, once a minute."""
    guard = Guard("upkeep")
    while True:
        await asyncio.sleep(EXPIRE_S)
        for drop in (shared.metrics.expire, shared.executor.expire, shared.host.files.sweep):
            guard.call(drop)


async def flush_audit(shared: Shared) -> NoReturn:
    """Write audit events; a disk that is full, or gone, is told once."""
    guard = Guard("audit log")
    told = ""
    while True:
        await asyncio.sleep(audit.FLUSH_INTERVAL_S)
        guard.call(shared.audit.flush)
        problem = "" if shared.audit.problem is None else str(shared.audit.problem)
        if problem and problem != told:
            log.warning("audit log not written", extra={"problem": problem})
        told = problem


class Agent:
    """One node's agent. `run` until cancelled; `shared` is there for whoever serves or looks into it.

    `on_dry_run` makes it a dry run: nothing is changed, on the node or in the cluster; each change is told in a line.
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
            executor=_executor(config, host, clock, audit, metrics, on_dry_run),
            audit=audit,
            metrics=metrics,
            cluster=cluster,
            events=EventRecorder(
                cluster, EVENTS_FROM, host=config.node_name, rng=random.Random(rng.getrandbits(64))
            ),
            kubelet=self._kubelet,
            gpus=_gpus(config, gates, host),
        )
        self.states = States(self.shared, self._kubelet)
        self._parts: Parts | None = None

    def troubles(self) -> Mapping[str, str]:
        """Return what the agent waits for, or misses, by name."""
        found = dict(self.states.troubles())
        if not self.is_started.is_set():
            found["koordlet"] = "parts are not started yet"
        return found

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
        log.info("node, pods and policies are known", extra={"node": shared.config.node_name})
        _log_missing(shared)
        parts = self._parts = Parts(shared)
        group.create_task(parts.collecting.run(), name="collectors")
        loops.start_reporters(parts.reporters, group)
        parts.hooks.start()
        group.create_task(parts.hooks.run(), name=parts.hooks.name)
        used_interval_s = shared.config.collect.used_interval_s
        await parts.collecting.wait_started(max(MEASURE_S, MEASURE_ROUNDS * used_interval_s))
        if shared.config.collect.used_interval_s >= COLLECT_S_MIN:
            loops.start(parts.strategies, shared, group)
        else:
            log.warning("strategies are off: collect-res-used-interval is below 1s")
            loops.disable(parts.strategies)
        self.is_started.set()

    async def _end(self) -> None:
        shared = self.shared
        try:
            async with asyncio.timeout(END_S):
                if shared.config.qos.restore_on_exit:
                    await self._restore()
                await self._kubelet.close()
        except TimeoutError:
            log.warning("not everything was put back in time", extra={"seconds": END_S})
        shared.audit.flush()
        shared.host.close()

    async def _restore(self) -> None:
        """Put back everything, also what was changed before a restart and by parts that never started."""
        guard = Guard("restoring")
        if self._parts is not None:
            for strategy in self._parts.strategies:
                guard.call(strategy.disable)
            await guard.call_async(self._parts.hooks.disable)
        for owner in self.shared.executor.owners():
            guard.call(self.shared.executor.restore, owner)


class Parts:
    """The parts that measure, act and report; made once it is known how the kubelet names groups."""

    def __init__(self, shared: Shared) -> None:
        used_interval_s = shared.config.collect.used_interval_s
        trainer = Trainer(shared)
        self.collecting = CollectorRunner(collect.collectors(shared), used_interval_s)
        self.reporters: list[Reporter] = [trainer, *report.reporters(shared, trainer)]
        self.strategies = qos.strategies(shared)
        self.hooks = RuntimeHooks(shared)


def _log_missing(shared: Shared) -> None:
    """Say once which features this host does not have, and why: strategies that need them have no effect."""
    kubepods = cgroup_layout.class_dir(shared.view.driver, KubeQoS.GUARANTEED)
    for feature, support in capabilities.probe(shared.host, kubepods).items():
        if not support.is_supported:
            log.info("feature missing on this host", extra={"feature": feature, "reason": support.reason})


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
) -> Executor:
    def told(kind: str, is_success: bool, seconds: float) -> None:
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
        on_update=told,
    )
