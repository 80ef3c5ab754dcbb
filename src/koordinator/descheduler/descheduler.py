"""The descheduler put together: caches, profiles and their cycles, the controller of migration jobs.

Every instance follows the cluster; cycles, arbitration and migration run on the leader (`lead`), and only while it
surely leads can they change anything. Source: behaviour/descheduler 1 and 3.1.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator

from koordinator.api.affinity import LabelSelector
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.label_selector import compile_selector
from koordinator.cluster.config import ANONYMOUS, Credentials
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.leader import LeaderElector, lead_while_elected
from koordinator.cluster.plugin_registry import PluginRegistry
from koordinator.cluster.proof import Prove
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.cluster.write_through import FencedCluster
from koordinator.descheduler.caches import Caches
from koordinator.descheduler.configuration import DEFAULT_PROFILE, DeschedulerConfig
from koordinator.descheduler.cycle import CycleReport, CycleRunner, Profile
from koordinator.descheduler.metrics import DeschedulerMetrics
from koordinator.descheduler.migration.controller import Migration
from koordinator.descheduler.plugin import LiveHandle, Plugin
from koordinator.descheduler.plugins.low_node_load.cycle import LowNodeLoad
from koordinator.descheduler.plugins.migration_controller import MigrationController

log = logging.getLogger(__name__)

CYCLES_KEPT = 10


class Descheduler:
    """All loops of the descheduler. `config` is checked; `prove` asks the scheduler that runs in this process,
    `credentials` are for one that runs elsewhere."""

    def __init__(
        self,
        cluster: Cluster,
        config: DeschedulerConfig,
        registry: PluginRegistry[Plugin],
        *,
        gates: FeatureGates | None = None,
        rng: random.Random,
        prove: Prove | None = None,
        credentials: Credentials = ANONYMOUS,
    ) -> None:
        gates = FeatureGates.of(Component.DESCHEDULER) if gates is None else gates
        self.config = config
        self.registry = registry
        self.clock = cluster.clock
        self.metrics = DeschedulerMetrics()
        self.caches = Caches(cluster, gates, rng)
        self._election: LeaderElector | None = None
        fenced = FencedCluster(cluster, lambda: self._election is None or self._election.may_act)
        self.events = EventRecorder(cluster, DEFAULT_PROFILE, rng=rng)
        name = MigrationController.name
        migrating = [one for one in config.profiles if name in (*one.enabled.evict, *one.enabled.filter)]
        self._has_migration = bool(migrating)
        lease = config.leader_election
        self.migration = Migration(
            fenced,
            self.caches,
            self.events,
            self.metrics,
            MigrationController.read(migrating[0].raw_args(MigrationController.name) if migrating else {}),
            owner=f"{lease.resource_namespace}/{lease.resource_name}",
            rng=rng,
            without_claims=gates.is_on("DisablePVCReservation"),
        )
        handle = LiveHandle(
            may_evict=lambda _: False,
            may_evict_now=lambda _: False,
            cluster=fenced,
            caches=self.caches,
            events=self.events,
            metrics=self.metrics,
            migration=self.migration,
            limits=config.limits,
            refusal=lambda _: "",
            prove=prove,
            credentials=credentials,
        )
        self.profiles = [Profile(one, config, registry, handle) for one in config.profiles]
        by_load = [
            one for each in self.profiles for one in each.plugins.values() if isinstance(one, LowNodeLoad)
        ]
        if by_load:
            self.caches.need_metrics()
        if any(one.is_planning for one in by_load):
            self.caches.need_budgets()
        self.runner = CycleRunner(fenced, self.metrics, self.profiles, config.limits, config.dry_run)
        self.reports: deque[CycleReport] = deque(maxlen=CYCLES_KEPT)
        """The last cycles, the newest last."""
        self.synced = asyncio.Event()
        self._guard = Guard("descheduling")
        self._matches = compile_selector(config.node_selector or LabelSelector())

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keep caches, from the first full list on; on the way out they end."""
        async with asyncio.TaskGroup() as group:
            self.caches.start(group)
            recorder = group.create_task(self.events.run(), name="descheduler events")
            await self.caches.synced()
            self.synced.set()
            try:
                yield
            finally:
                recorder.cancel()
                await self.caches.factory.stop()

    async def lead(self) -> None:
        """Run cycles and migrations until cancelled; only while `following`."""
        self.metrics.is_leader.set(1)
        try:
            async with asyncio.TaskGroup() as group:
                if self._has_migration:
                    group.create_task(self.migration.run(), name="migration")
                group.create_task(self._cycles(), name="cycles")
        finally:
            self.metrics.is_leader.set(0)

    async def run(self, election: LeaderElector | None = None, *, stays: bool = False) -> None:
        """Follow, and lead while elected, until cancelled; without an election this is the only instance.

        Raises: LeaseLost (in a group) when the lease could not be kept. One that `stays`, since its process has more
        to do, is a candidate again instead.
        """
        self._election = election
        async with self.following():
            await lead_while_elected(election, self.lead, stays=stays)

    async def cycle(self) -> CycleReport:
        """Run one cycle now; what it did, or why it could not."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        report = CycleReport(self.clock.now(), evictions=[], counts={})
        seen = self.caches.observe(report.started_s, self._matches)
        error = await self._guard.call_async(self.runner.run, seen, report)
        report.seconds = loop.time() - began_s
        if error is not None:
            report.error = str(error)
        if report.error:
            self.metrics.cycle_failures.inc()
        self.metrics.cycle_seconds.of().observe(report.seconds)
        self.reports.append(report)
        log.log(
            logging.INFO if report.counts or report.error else logging.DEBUG,
            "cycle done",
            extra={
                "seconds": round(report.seconds, 3),
                "nodes": report.nodes,
                **report.counts,
                "error": report.error,
            },
        )
        return report

    async def _cycles(self) -> None:
        """Cycles, each an interval after the start of the one before, or at once when that took longer."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.cycle()
            interval_s = self.config.interval_s
            if interval_s <= 0:
                return
            await asyncio.sleep(max(0.0, began_s + interval_s - loop.time()))
