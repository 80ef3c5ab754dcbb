"""Can tidal pools do their work: is the gate on, does a descheduler run, can they be read, what is in their way?"""

from collections.abc import Iterator

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.tidal_pool import TidalPool
from koordinator.doctor.checks.components import leads
from koordinator.doctor.finding import Finding, edit
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.manager.tidal import status as pool_status
from koordinator.manager.tidal.policy import policy_of


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what all pools lack, then pool by pool, then nodes whose pool is gone."""
    pools = snapshot.of(TidalPool)
    if pools:
        yield from _components(snapshot, [pool.metadata.name for pool in pools])
    for pool in pools:
        yield from _pool(pool)
    yield from _orphans(snapshot, {pool.metadata.name for pool in pools})


def _components(snapshot: ClusterSnapshot, names: list[str]) -> Iterator[Finding]:
    unseen = [pool.metadata.name for pool in snapshot.of(TidalPool) if not pool.status.conditions]
    if unseen:
        yield Finding.warning(
            ("TidalPool", unseen),
            "no controller has looked at them",
            why="no node is lent: the feature gate TidalPool of koord-manager is off by default",
            do=("koordinator install --apply --set featureGates=TidalPool=true",),
        )
    if not leads(snapshot, ComponentName.DESCHEDULER):
        yield Finding.warning(
            ("TidalPool", names),
            "no descheduler leads",
            why="online pods leave nodes by PodMigrationJobs, which it carries out: nodes with pods are not lent",
            do=("koordinator install --apply --set descheduler.enabled=true",),
        )


def _pool(pool: TidalPool) -> Iterator[Finding]:
    try:
        policy_of(pool)
    except ProtocolError as error:
        yield Finding.error(
            pool,
            f"{error.field}: {error.reason}",
            why="none of its nodes moves",
            do=(edit(pool),),
        )
        return
    for each in pool.status.conditions:
        is_bad = each.status == "True" and each.type in (pool_status.CONFLICT, pool_status.DRAIN_BLOCKED)
        is_stuck = each.type == pool_status.READY and each.reason in ("Blocked", "NoMembers")
        if is_bad or (is_stuck and each.status == "False"):
            yield Finding.warning(
                pool,
                each.message,
                why="fewer nodes are lent than its schedule says",
                do=(f"koordinator explain tidalpool {pool.metadata.name}",),
            )


def _orphans(snapshot: ClusterSnapshot, pools: set[str]) -> Iterator[Finding]:
    marked = [
        node.metadata.name
        for node in snapshot.of(Node)
        if (pool := node.metadata.labels.get(labels.TIDAL_POOL)) and pool not in pools
    ]
    if marked:
        yield Finding.warning(
            ("Node", marked),
            "bear marks of a TidalPool that does not exist",
            why="their taints keep pods away; koord-manager takes them off while its feature gate TidalPool is on",
            do=(
                f"kubectl label node {marked[0]} {labels.TIDAL_POOL}- {labels.TIDAL_PHASE}-",
                f"kubectl taint node {marked[0]} {labels.TIDAL_BATCH_PHASE_TAINT}-",
            ),
        )
