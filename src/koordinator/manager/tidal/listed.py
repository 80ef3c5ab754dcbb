"""Objects for a pass as they were listed once, for whoever wants to know what the controller would do."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from koordinator import clock
from koordinator.api import pod_labels
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.tidal_pool import TidalPool
from koordinator.manager.tidal import survey
from koordinator.manager.tidal.membership import Membership
from koordinator.manager.tidal.nodes import TidalNode
from koordinator.manager.tidal.policy import PoolPolicy, policy_of
from koordinator.manager.tidal.pool_pass import PoolMemory, PoolPass, PoolPlaces, look


class ListedObjects:
    """The objects of a cluster, found as `pool_pass.PoolObjects` wants them."""

    def __init__(
        self,
        pools: Iterable[TidalPool],
        nodes: Iterable[Node],
        pods: Iterable[Pod],
        jobs: Iterable[PodMigrationJob],
        budgets: Iterable[PodDisruptionBudget],
    ) -> None:
        self.pools = {pool.metadata.name: pool for pool in pools}
        self._nodes = {node.metadata.name: node for node in nodes}
        self._pods: defaultdict[str, list[Pod]] = defaultdict(list)
        self._pending: list[Pod] = []
        self._jobs: defaultdict[str, list[PodMigrationJob]] = defaultdict(list)
        self._budgets: defaultdict[str, list[PodDisruptionBudget]] = defaultdict(list)
        for pod in pods:
            if pod.spec.node_name:
                self._pods[pod.spec.node_name].append(pod)
            elif pod_labels.is_unschedulable(pod):
                self._pending.append(pod)
        for job in jobs:
            self._jobs[job.spec.pod_ref.uid].append(job)
        for budget in budgets:
            self._budgets[budget.metadata.namespace].append(budget)

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def survey(self, name: str, policy: PoolPolicy) -> TidalNode | None:
        node = self._nodes.get(name)
        return None if node is None else survey.survey_node(node, self._pods[name], policy)

    def pending(self) -> Sequence[Pod]:
        return self._pending

    def jobs(self, pod_uid: str) -> Sequence[PodMigrationJob]:
        return self._jobs[pod_uid]

    def budgets(self, namespace: str) -> Sequence[PodDisruptionBudget]:
        return self._budgets[namespace]

    def look(self, name: str, now_s: float) -> PoolPass:
        """Return what the controller would decide about a pool now; the history of its load is not known here.

        Raises: KeyError without such a pool; ProtocolError when it cannot be read.
        """
        pool = self.pools[name]
        policy = policy_of(pool)
        membership = Membership()
        for each in self.pools.values():
            if each.metadata.deletion_timestamp is None and (readable := _policy(each)) is not None:
                membership.select(each, readable.selects)
        for node in self._nodes.values():
            membership.put(node)
        places = PoolPlaces(membership.members(name), membership.leaving(name), membership.lost(name))
        hold_s = clock.parse_rfc3339(pool.status.hold_until) if pool.status.hold_until else 0.0
        return look(name, policy, places, self, PoolMemory(hold_s), now_s)


def _policy(pool: TidalPool) -> PoolPolicy | None:
    try:
        return policy_of(pool)
    except ProtocolError:
        return None
