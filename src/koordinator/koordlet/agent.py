"""The node agent: all parts put together, started in order, ended in order. Source: spec 10, section 2.4.

states ─ what the cluster and the kubelet say ─┐
collectors ─ what the node does ───────────────┴─ NodeView, SeriesStore ─ strategies, hooks ─ Executor ─ the node
                                                                        └ predict, reports ─ the cluster
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from koordinator.api.feature_gates import FeatureGates
from koordinator.clock import Clock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.host.host import Host
from koordinator.koordlet import loops, upkeep
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig
from koordinator.koordlet.dry_run import DryRunCluster
from koordinator.koordlet.executor import Executor
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos import all as qos
from koordinator.koordlet.readings import Readings
from koordinator.koordlet.report import all as report
from koordinator.koordlet.restore_log import RestoreLog
from koordinator.koordlet.series import SeriesStore
from koordinator.koordlet.states.driver import FALLBACK
from koordinator.koordlet.states.kubelet import KubeletIdentity, NodeKubelet
from koordinator.koordlet.states.states import States
from koordinator.koordlet.view import NodeView

log = logging.getLogger(__name__)

EVENTS_FROM = "koordlet-qosManager"
COLLECT_S_MIN = 1.0
"""Who collects more often than that collects nothing, and acts on nothing."""
JOURNAL = "koordlet/restore.jsonl"
"""Below /run: what files said before they were changed."""


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
        identity: KubeletIdentity | None = None,
        on_dry_run: Callable[[str], None] | None = None,
    ) -> None:
        self.is_started = asyncio.Event()
        """All parts run."""
        self.shared = _shared(config, gates, host, cluster, clock, rng, identity, on_dry_run)
        assert isinstance(self.shared.kubelet, NodeKubelet)
        self._kubelet = self.shared.kubelet
        self.states = States(self.shared, self._kubelet)
        trainer = Trainer(self.shared)
        self._reporters = [trainer, *report.reporters(self.shared, trainer)]
        self._strategies = qos.strategies(self.shared)

    def troubles(self) -> Mapping[str, str]:
        """What the agent waits for, or misses, by name."""
        found = self.states.troubles()
        return found if self.is_started.is_set() or found else {"koordlet": "starting"}

    async def run(self) -> None:
        """Watch, measure, protect, report, until cancelled; then put back what was changed, if that is asked for."""
        shared = self.shared
        shared.metrics.start_time.set(shared.clock.now())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(shared.events.run(), name="events")
                group.create_task(upkeep.expire(shared), name="upkeep")
                group.create_task(upkeep.flush_audit(shared), name="audit log")
                self.states.start(group)
                await self.states.wait_synced()
                self._start(group)
        finally:
            self._end()
            await self._kubelet.close()

    def _start(self, group: asyncio.TaskGroup) -> None:
        shared = self.shared
        log.info("node known, parts start", extra={"node": shared.config.node_name})
        loops.start_reporters(self._reporters, group)
        if shared.config.collect.used_interval_s >= COLLECT_S_MIN:
            loops.start(self._strategies, shared, group)
        self.is_started.set()

    def _end(self) -> None:
        shared = self.shared
        if shared.config.qos.restore_on_exit:
            self._restore()
        shared.audit.flush()
        shared.host.close()

    def _restore(self) -> None:
        """Put back everything, whoever changed it."""
        guard = Guard("restoring")
        for strategy in self._strategies:
            guard.call(strategy.disable)
        for owner in self.shared.executor.owners():
            guard.call(self.shared.executor.restore, owner)


def _shared(
    config: AgentConfig,
    gates: FeatureGates,
    host: Host,
    cluster: Cluster,
    clock: Clock,
    rng: random.Random,
    identity: KubeletIdentity | None,
    on_dry_run: Callable[[str], None] | None,
) -> Shared:
    metrics = AgentMetrics(config.node_name, clock)
    view = NodeView(FALLBACK)
    store = SeriesStore()
    audit = AuditLog(
        clock,
        directory="" if on_dry_run is not None else config.audit.directory,
        verbose=config.audit.verbose,
        disk_mb_max=config.audit.disk_mb_max,
        is_enabled=gates.is_on("AuditEvents"),
    )
    if on_dry_run is not None:
        cluster = DryRunCluster(cluster, on_dry_run)
    events = EventRecorder(
        cluster, EVENTS_FROM, host=config.node_name, rng=random.Random(rng.getrandbits(64))
    )
    return Shared(
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
        events=events,
        kubelet=NodeKubelet(config.kubelet, view, metrics, identity or KubeletIdentity()),
    )


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
