"""The operator put together: one loop per YARN cluster, one for nodes without a NodeManager, one that writes nodes.

Every instance follows the cluster; only the one that holds the lease talks to ResourceManagers or changes anything.
Source: behaviour/yarn 3.
"""

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.meta import ObjectReference
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy, Rate, new_rng
from koordinator.cluster.controller import Controller, RetryPolicy
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.leader import LeaderElector, lead_while_elected
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard, supervise
from koordinator.cluster.write_through import FencedCluster
from koordinator.prometheus import Labels
from koordinator.yarn import amounts, hadoop_config, handover, node_sync
from koordinator.yarn.cluster_loop import ClusterLoop, LoopCallbacks, SyncRules
from koordinator.yarn.hadoop_config import FolderError, HadoopConfigError, Loaded, Stamp, YarnCluster
from koordinator.yarn.handover import SchedulerTotals
from koordinator.yarn.metrics import OperatorMetrics
from koordinator.yarn.node_sync import SyncOutcome
from koordinator.yarn.resource_managers import Observe, ResourceManagers
from koordinator.yarn.table import NodeManagerKey, NodeRow, NodeTable, slim_node, slim_pod

log = logging.getLogger(__name__)

CONFIG_S = 5.0
"""Interval at which the configuration folder is looked at."""
ALONE_S = 1.0
"""Interval at which nodes that have lost their NodeManager are looked at."""
STALE_RESYNCS = 5
"""Totals are not raised once the API server has been away for so many times `SyncRules.resync_s`."""
WRITERS = 8
_RM_RETRY = BackoffPolicy(initial_s=1.0, max_s=10.0, jitter_ratio=0.2)
_RETRY = BackoffPolicy(initial_s=0.5, max_s=10.0)
_WRITE_RETRY = RetryPolicy(initial_s=0.2, max_s=60.0, overall=Rate(per_s=50.0, burst=500))

Connect = Callable[[YarnCluster, Observe], ResourceManagers]
"""Makes the client of a YARN cluster."""

_EVENTS = {
    SyncOutcome.BAD_NODE_ID.name: "YarnNodeIdInvalid",
    SyncOutcome.BAD_ORIGIN.name: "YarnBatchPoolUnreadable",
}
_UNKNOWN_CLUSTER = "YarnClusterUnknown"


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` has the Hadoop XML files; `about` is what events about whole YARN clusters are attached to."""

    folder: Path
    environment: Mapping[str, str] = {}
    rules: SyncRules = SyncRules()
    namespace: str = ""
    has_keytab: bool = False
    """It can prove by Kerberos who calls."""
    about: ObjectReference = ObjectReference(
        api_version="apps/v1", kind="Deployment", namespace="koordinator-system", name="koord-yarn-operator"
    )


class YarnOperator:
    """All loops."""

    def __init__(
        self, cluster: Cluster, config: OperatorConfig, connect: Connect, rng: random.Random
    ) -> None:
        self.config = config
        self.metrics = OperatorMetrics()
        self.synced = asyncio.Event()
        self.table = NodeTable(self._on_change)
        self.clusters: dict[str, ClusterLoop] = {}
        self._loaded = Loaded({}, {})
        self._stamp: Stamp | None = None
        self._told: dict[str, str] = {}
        """Problems of configured clusters that people were told of."""
        self._connect = connect
        self._rng = rng
        self._election: LeaderElector | None = None
        self._cluster = FencedCluster(cluster, self._may_act)
        self._events = EventRecorder(self._cluster, "koord-yarn-operator", rng=new_rng(self._rng))
        self._informers = InformerFactory(
            cluster,
            new_rng(self._rng),
            namespace=config.namespace,
            transforms={Pod: slim_pod, Node: slim_node},
        )
        self._writer: Controller[str] = Controller(
            "yarn allocations", self._write, workers=WRITERS, retries=_WRITE_RETRY
        )
        self._callbacks = LoopCallbacks(
            record=lambda row: self._writer.queue.add(row.name),
            withdraw=self._withdraw,
            node_problem=self._node_problem,
            cluster_problem=self._cluster_problem,
            may_act=self._may_act,
            may_raise=self._may_raise,
        )
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._alone: dict[str, None] = {}
        self.metrics.show(lambda: list(self.table.rows_with_a_manager()), self._ages)

    def _may_act(self) -> bool:
        return self._election is None or self._election.may_act

    def _may_raise(self) -> bool:
        """Return whether what is known of Kubernetes is fresh enough to give YARN more by it."""
        since_s = self._informers.failing_since_s
        age_s = 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s
        return age_s <= STALE_RESYNCS * self.config.rules.resync_s

    def _on_change(self, cluster: str) -> None:
        loop = self.clusters.get(cluster)
        if loop is not None:
            loop.wake.set()

    def _ages(self) -> dict[Labels, float]:
        now_s = asyncio.get_running_loop().time()
        return {
            (name,): now_s - loop.polled_s
            for name, loop in self.clusters.items()
            if loop.polled_s is not None
        }

    # Following

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keep caches, from the first full lists on; on the way out they end."""
        nodes, pods = self._informers.informer(Node), self._informers.informer(Pod)
        loop, table = asyncio.get_running_loop(), self.table
        nodes.add_handler(
            lambda node: table.node_changed(node, loop.time()),
            lambda _, node: table.node_changed(node, loop.time()),
            table.node_gone,
        )
        pods.add_handler(table.pod_changed, lambda _, pod: table.pod_changed(pod), table.pod_gone)
        async with asyncio.TaskGroup() as group:
            self._informers.start(group)
            recorder = group.create_task(self._events.run(), name="events of the YARN operator")
            try:
                await self._informers.wait_synced()
                self.synced.set()
                yield
            finally:
                recorder.cancel()
                await self._informers.stop()

    # Leading

    async def run(self, election: LeaderElector | None = None) -> None:
        """Follow, and lead while elected, until cancelled; without an election this is the only instance.

        Raises: FolderError, HadoopConfigError when no cluster can be used; LeaseLost (in a group).
        """
        self._election = election
        self._read()
        if hadoop_config.start_fails(self._loaded, hadoop_config.Dialect.HADOOP):
            raise next(iter(self._loaded.errors.values()))
        async with self.following():
            await lead_while_elected(election, self.lead)

    async def lead(self) -> None:
        """Keep both views in step until cancelled; only while `following`."""
        self.metrics.is_leader.set(1)
        self.table.begin(asyncio.get_running_loop().time())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._writer.run(), name="yarn allocations")
                for name, step in (
                    ("configuration", self._reload),
                    ("nodes without YARN", self._settle_alone),
                ):
                    backoff = Backoff(_RETRY, new_rng(self._rng))
                    group.create_task(supervise(step, backoff, Guard(f"yarn {name}")), name=name)
                self._group = group
                self._start_clusters(group)
        finally:
            self.metrics.is_leader.set(0)
            for loop in self.clusters.values():
                loop.close()
            self.clusters.clear()
            self._tasks.clear()

    # Configuration

    async def _reload(self) -> float:
        """Take the configuration anew when the folder has changed."""
        try:
            before = self._loaded
            if hadoop_config.stamp(self.config.folder) != self._stamp:
                self._read()
        except FolderError as error:
            log.warning("configuration not read", extra={"error": str(error)})
            return CONFIG_S
        problems = {name: str(error) for name, error in self._loaded.errors.items()}
        for name, problem in problems.items():
            if self._told.get(name) != problem:
                self._cluster_problem(name, "YarnConfigurationInvalid", problem)
        self._told = problems
        if self._loaded is not before and self._group is not None:
            self._start_clusters(self._group)
        return CONFIG_S

    def _read(self) -> None:
        """Read the folder; a cluster whose files are bad now keeps what it had. Raises: FolderError."""
        folder = self.config.folder
        self._stamp = hadoop_config.stamp(folder)
        loaded = hadoop_config.load(hadoop_config.read_folder(folder), self.config.environment)
        for name, cluster in list(loaded.clusters.items()):
            if why := hadoop_config.refusal(cluster, has_keytab=self.config.has_keytab):
                loaded.errors[name] = HadoopConfigError(name, hadoop_config.AUTHENTICATION, why)
                del loaded.clusters[name]
        self.metrics.config_errors.values.clear()
        for name, error in loaded.errors.items():
            self.metrics.config_errors.set(1, name)
            log.warning("YARN cluster not configured", extra={"cluster": name, "error": str(error)})
            if name in self._loaded.clusters:
                loaded.clusters[name] = self._loaded.clusters[name]
        for name in loaded.clusters.keys() - loaded.errors.keys():
            self.metrics.config_errors.set(0, name)
        self._loaded = loaded

    def _start_clusters(self, group: asyncio.TaskGroup) -> None:
        """Have exactly the configured clusters served."""
        wanted = self._loaded.clusters
        for name in list(self.clusters):
            if wanted.get(name) != self.clusters[name].configured:
                self._tasks.pop(name).cancel()
                self.clusters.pop(name).close()
                self.metrics.forget(name)
                self.table.mark_cluster(name)
        for name, cluster in wanted.items():
            if name in self.clusters:
                continue
            managers = self._connect(cluster, functools.partial(self.metrics.called, name))
            backoff = Backoff(_RM_RETRY, new_rng(self._rng))
            loop = ClusterLoop(
                cluster,
                managers,
                self.table,
                self.config.rules,
                self._callbacks,
                self.metrics,
                backoff,
                self._cluster.clock,
            )
            self.clusters[name] = loop
            retry = Backoff(_RETRY, new_rng(self._rng))
            self._tasks[name] = group.create_task(
                supervise(loop.step, retry, Guard(f"YARN cluster {name}")), name=f"YARN cluster {name}"
            )
            log.info("YARN cluster served", extra={"cluster": name, "managers": len(cluster.managers)})

    # Nodes without YARN

    async def _settle_alone(self) -> float:
        """Look at nodes whose NodeManager is gone, cannot be named, or belongs to a cluster that is not configured."""
        for cluster in [name for name in self.table.changed if name not in self.clusters]:
            for row in self.table.take_changed(cluster):
                self._alone[row.name] = None
        for name in list(self._alone):
            alone = self.table.rows.get(name)
            if alone is None or alone.known.cluster in self.clusters or not self._settle_one(alone):
                self._alone.pop(name, None)
        return ALONE_S

    def _settle_one(self, row: NodeRow) -> bool:
        """Record what a node without a NodeManager is believed to hold; return whether that may change by itself."""
        now_s, rules = asyncio.get_running_loop().time(), self.config.rules
        if row.known.cluster:
            message = f"YARN cluster {row.known.cluster} is not configured"
            self._node_problem(row, _UNKNOWN_CLUSTER, message)
            if row.belonged is not None:
                self._withdraw(row.belonged)
            return False
        loop = self.clusters.get(row.belonged[0]) if row.belonged is not None else None
        report = None
        if row.belonged is not None and loop is not None and row.belonged not in self.table.nodes_of:
            report = loop.reports.get(row.belonged[1])
            self._withdraw(row.belonged)
        has_polled = row.belonged is None or (loop is not None and loop.polled_s is not None)
        use = node_sync.use_to_count(report, row.held, has_polled, now_s, rules.hold_s)
        row.held, row.used = use.held, use.used
        row.total = row.sent = row.granted = None
        made = node_sync.plan(row.known, use, rules.policy)
        self._node_problem(row, row.known.outcome.name, row.known.reason)
        row.record = handover.hand_over(
            made, SchedulerTotals(total=None), rules.policy, rules.thresholds
        ).record
        if row.record is not None and row.recorded is not None and row.record != row.recorded:
            self._writer.queue.add(row.name)
        return use.held is not None

    def _withdraw(self, manager: NodeManagerKey) -> None:
        """Take back what a NodeManager was offered, unless a pod announces it."""
        cluster, node = manager
        if cluster in self.clusters and manager not in self.table.nodes_of:
            self.clusters[cluster].withdraw(node)

    # Writing and telling

    async def _write(self, name: str) -> None:
        """Make our entry on a node what it should be."""
        row = self.table.rows.get(name)
        if row is None or row.node is None or row.record is None:
            return
        key = labels.NODE_THIRD_PARTY_ALLOCATIONS
        text = row.node.metadata.annotations.get(key)
        wanted = amounts.new_text(text, row.record)
        if wanted is None:
            return
        guard = {"uid": row.node.metadata.uid}
        if any(each.name != amounts.ALLOCATION_NAME for each in amounts.read(text)):
            # The list is shared: only what we read may be replaced.
            guard["resourceVersion"] = row.node.metadata.resource_version
        patch = {"metadata": {**guard, "annotations": {key: wanted}}}
        with contextlib.suppress(errors.NotFound):
            node = await self._cluster.patch(Node, name, patch)
            self.table.node_changed(slim_node(node), asyncio.get_running_loop().time())

    def _node_problem(self, row: NodeRow, outcome: str, message: str) -> None:
        """Tell people once what is wrong with a node."""
        reason = _EVENTS.get(outcome, outcome if outcome == _UNKNOWN_CLUSTER else "")
        problem = f"{reason}: {message}" if reason else ""
        if problem == row.problem:
            return
        row.problem = problem
        about = row.pod or row.node
        if reason and about is not None:
            self._events.warning(about, reason, message)

    def _cluster_problem(self, cluster: str, reason: str, message: str) -> None:
        self._events.warning(self.config.about, reason, message)
