"""The manager put together: its controllers and admission handlers on one cluster.

Every instance follows the cluster and answers admission requests (`following`); controllers run on the leader
(`lead`), and only while it surely leads can they change anything. `--controllers` chooses them by name
(behaviour/manager 2.1). Where the handlers are served is the caller's choice: over HTTPS (`webhooks.serving`) or in
process.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cluster import proof
from koordinator.cluster.config import ANONYMOUS, Credentials
from koordinator.cluster.controller import is_controller_enabled
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.leader import LeaderElector, lead_while_elected
from koordinator.cluster.proof import Prove
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.write_through import FencedCluster
from koordinator.manager import caches
from koordinator.manager.config import addons
from koordinator.manager.config.slo_configs import SLOConfigs
from koordinator.manager.metrics import EXPIRE_PERIOD_S, ManagerMetrics
from koordinator.manager.noderesource.controller import NodeResourceController
from koordinator.manager.noderesource.ledger_answers import LentAnswers
from koordinator.manager.options import ManagerOptions
from koordinator.manager.parts import ManagerContext, ManagerController
from koordinator.manager.per_node.node_objects import NodeMetricController, NodeSLOController
from koordinator.manager.per_node.workload_profiles import WorkloadProfileController
from koordinator.manager.profiles.profile_controller import ColocationProfileController
from koordinator.manager.quota.profile_controller import QuotaProfileController
from koordinator.manager.tidal.controller import TidalPoolController
from koordinator.manager.webhooks import all as webhooks
from koordinator.manager.webhooks.review import Handler

COMPONENT = "koord-manager"


class Manager:
    """All loops of the manager, and what it answers at admission."""

    def __init__(
        self,
        cluster: Cluster,
        options: ManagerOptions = ManagerOptions(),  # noqa: B008
        gates: FeatureGates | None = None,
        *,
        prove: Prove | None = None,
        credentials: Credentials = ANONYMOUS,
    ) -> None:
        """`prove` is the scheduler of this process, if there is one; `credentials` are for one that runs elsewhere."""
        if options.scheduler_url:
            ca_file = options.scheduler_ca_file
            prove = proof.over_http(options.scheduler_url, credentials, ca_file, "--scheduler-ca-file")
        rng = random.Random(options.seed)
        factory = InformerFactory(cluster, rng, namespace=options.namespace, transforms=caches.TRANSFORMS)
        events = EventRecorder(cluster, COMPONENT, rng=rng)
        self.shared = ManagerContext(
            cluster=cluster,
            clock=cluster.clock,
            rng=rng,
            factory=factory,
            events=events,
            options=options,
            gates=FeatureGates.of(Component.MANAGER) if gates is None else gates,
            metrics=ManagerMetrics(cluster.clock),
            configs=SLOConfigs(
                factory,
                events,
                namespace=options.config_namespace,
                name=options.slo_config_name,
                addons=addons.installed(),
            ),
            prove=prove,
        )
        self.shared.metrics.show_config_problems(lambda: self.shared.configs.problems)
        self.admission = webhooks.admission(self.shared)
        self._election: LeaderElector | None = None
        fenced = FencedCluster(cluster, lambda: self._election is None or self._election.may_act)
        self.controllers = controllers(msgspec.structs.replace(self.shared, cluster=fenced))
        self.synced = asyncio.Event()
        """Set once every cache is filled: from then on the handlers may be asked."""
        self.is_leaving = False
        """Told to stop: nobody should send us anything new."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Return the admission handlers by URL path."""
        return self.admission.handlers

    @property
    def lent(self) -> LentAnswers | None:
        """Return who answers where what nodes lend came from; None without the controller that decides it."""
        controller = self.controllers.get("noderesource")
        return controller.answers if isinstance(controller, NodeResourceController) else None

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keep caches, from the first full list on; on the way out they end."""
        async with asyncio.TaskGroup() as group:
            self.shared.factory.start(group)
            tasks = [
                group.create_task(self.shared.events.run(), name="manager events"),
                group.create_task(self._expire(), name="manager metrics"),
            ]
            if self.shared.options.resync_s > 0:
                tasks.append(group.create_task(self._resync(), name="manager resync"))
            await self.shared.factory.wait_synced()
            await self.shared.configs.ready()
            self.synced.set()
            yield
            for task in tasks:
                task.cancel()
            await self.shared.factory.stop()

    async def lead(self) -> None:
        """Run the controllers until cancelled; only while `following`."""
        is_leader = self.shared.metrics.is_leader
        is_leader.set(1)
        try:
            with self.shared.configs.speaking():
                async with asyncio.TaskGroup() as group:
                    for name, controller in self.controllers.items():
                        group.create_task(controller.run(), name=name)
                    await asyncio.Event().wait()  # also without any controller: webhooks are still answered
        finally:
            is_leader.set(0)

    async def run(
        self, election: LeaderElector | None = None, *, linger_s: float = 0.0, stays: bool = False
    ) -> None:
        """Follow, and lead while elected, until cancelled; without an election this is the only instance.

        A cancelled one gives the lease up at once and keeps its caches for `linger_s` more, for admission requests
        that still come: who sends them learns a little later than we do that this instance goes.

        Raises: LeaseLost (in a group) when the lease could not be kept: start a new manager. One that `stays`, since
        its process has more to do, is a candidate again instead.
        """
        self._election = election
        async with self.following():
            try:
                await lead_while_elected(election, self.lead, stays=stays)
            except asyncio.CancelledError:
                self.is_leaving = True
                await asyncio.sleep(linger_s)
                raise

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.shared.options.resync_s)
            await self.shared.factory.resync()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_PERIOD_S)
            self.shared.metrics.node_allocatable.expire()


BY_NAME: Mapping[str, Callable[[ManagerContext], ManagerController]] = {
    "nodemetric": NodeMetricController,
    "noderesource": NodeResourceController,
    "nodeslo": NodeSLOController,
    "quotaprofile": QuotaProfileController,
    "colocationprofile": ColocationProfileController,
    "tidalpool": TidalPoolController,
    "workloadprofile": WorkloadProfileController,
}
_GATES = {
    "colocationprofile": "ColocationProfileController",
    "tidalpool": "TidalPool",
    "workloadprofile": "WorkloadProfiles",
}
"""Controllers that a feature gate must switch on, too."""


def controllers(shared: ManagerContext) -> dict[str, ManagerController]:
    """Return the controllers that the options choose and feature gates allow, by name."""
    chosen, gates = shared.options.controllers, shared.gates
    return {
        name: build(shared)
        for name, build in BY_NAME.items()
        if is_controller_enabled(name, chosen) and (name not in _GATES or gates.is_on(_GATES[name]))
    }
