"""The process put together: what the lender has, the nodes that stand for it in the borrower, the pods on them.

Every instance follows both clusters; only the one that holds the lease, which is in the lender, changes anything.
Source: behaviour/tidal 5.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping

import msgspec
import numpy as np

from koordinator.api import labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.groups import Lease
from koordinator.api.label_selector import compile_selector
from koordinator.api.node_metric import NodeMetric
from koordinator.api.resource_vector import I64
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy, new_rng
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.leader import LeaderElector, lead_while_elected
from koordinator.cluster.protocol import Cluster, PatchType, get_if_there
from koordinator.cluster.supervise import Guard, supervise
from koordinator.cluster.write_through import FencedCluster
from koordinator.virtual_node import node, objects, offer, reclaim
from koordinator.virtual_node.metrics import VirtualNodeMetrics
from koordinator.virtual_node.node import KubeletAddress, NodeOffer
from koordinator.virtual_node.objects import Lending, PodDocument
from koordinator.virtual_node.offer import LendingPolicy
from koordinator.virtual_node.pods import BorrowedPods, PodRules
from koordinator.virtual_node.reclaim import Victim
from koordinator.virtual_node.table import LenderTable, LentPod, request_of

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Between two statuses of a node, two renewals of its lease, and two looks at who needs room."""
PUBLISHED_WITHIN_S = 5.0
"""Time that online pods wait for the borrower to hear of it first."""
COPIES_S = 60.0
"""Interval at which copies are compared with their originals; a kubelet takes as long to notice a change."""
GRACE_S_MAX = 30
"""The longest grace period of a pod whose room an online pod needs."""
WAITING_MAX = 64
"""Online pods that are looked at in one pass; the others have their turn in the next."""
_RETRY = BackoffPolicy(initial_s=0.5, max_s=PERIOD_S)


class VirtualNodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The lender's name, and the rules of lending. `node_per` is a label of the lender's nodes: one virtual node for
    each of its values."""

    source: str
    node_name: str = ""
    selector: LabelSelector = LabelSelector()
    node_per: str = ""
    scheduler: str = "koord-scheduler"
    address: KubeletAddress = KubeletAddress()
    policy: LendingPolicy = LendingPolicy()
    rules: PodRules = PodRules()

    @property
    def base_name(self) -> str:
        """Return the name of the virtual node, or what those of all groups begin with."""
        return self.node_name or f"tidal-{self.source}"

    def name_of(self, group: str) -> str:
        """Return the name of the virtual node of a group."""
        if not self.node_per:
            return self.base_name
        return f"{self.base_name}-{objects.hostname(group.lower().replace('_', '-'))}"


class VirtualNodes:
    """All loops, between one lender and one borrower."""

    def __init__(
        self,
        lender: Cluster,
        borrower: Cluster,
        config: VirtualNodeConfig,
        *,
        borrower_uid: str,
        rng: random.Random,
    ) -> None:
        """`borrower_uid` names the borrower, see `identity_of`."""
        self.config = config
        self.metrics = VirtualNodeMetrics()
        self.synced = asyncio.Event()
        self.clock = lender.clock
        self._election: LeaderElector | None = None
        self._lender = FencedCluster(lender, self._may_write)
        self._borrower = FencedCluster(borrower, self._may_write)
        self.lending = Lending(source=config.source, borrower=borrower_uid, scheduler=config.scheduler)
        self.table = LenderTable(
            self.lending,
            config.policy,
            selects=compile_selector(config.selector),
            group_label=config.node_per,
        )
        self._rng = rng
        self._events = EventRecorder(self._borrower, "virtual-node", rng=new_rng(self._rng))
        self.pods = BorrowedPods(
            self._lender,
            self._borrower,
            self.lending,
            config.rules,
            self.table,
            self._events,
            self.metrics,
            self._group_of,
        )
        self._of_lender = InformerFactory(lender, new_rng(self._rng), transforms={Pod: objects.slim})
        self._of_borrower = InformerFactory(borrower, new_rng(self._rng))
        self._nodes: dict[str, str] = {}
        """Virtual nodes → the group of each."""
        self._leaving: dict[str, Victim] = {}
        """Pods that have to leave, by uid, until they hold nothing any more."""
        self._wake = asyncio.Event()
        self._accounted_s: float | None = None

    def _may_write(self) -> bool:
        return self._election is None or self._election.may_act

    # Following

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keep caches of both clusters, from the first full lists on; on the way out they end."""
        lender, borrower = self._of_lender, self._of_borrower
        nodes, pods = lender.informer(Node), lender.informer(Pod)
        metrics = lender.informer(NodeMetric)
        lent = lender.informer(PodDocument, self.lending.namespace, label_selector=self.lending.selector)
        ours = f"{labels.VIRTUAL_NODE_SOURCE}={self.config.source},{node.TYPE_LABEL}={node.TYPE}"
        registered = borrower.informer(Node, label_selector=ours)
        async with asyncio.TaskGroup() as group:
            lender.start(group)
            borrower.start(group)
            recorder = group.create_task(self._events.run(), name="virtual node events")
            try:
                await lender.wait_synced()
                # In this order: a node's first report is judged by what the node has, and by the pods on it.
                self.table.on_need = self._wake.set
                nodes.add_handler(
                    self.table.node_changed, lambda _, new: self.table.node_changed(new), self.table.node_gone
                )
                pods.add_handler(
                    self.table.pod_changed, lambda _, new: self.table.pod_changed(new), self.table.pod_gone
                )
                metrics.add_handler(self.table.reported, lambda _, new: self.table.reported(new))
                self.pods.follow_lender(lent)
                await borrower.wait_synced()
                registered.add_handler(self._found)
                await borrower.wait_synced()
                self.synced.set()
                yield
            finally:
                recorder.cancel()
                await lender.stop()
                await borrower.stop()

    def _found(self, found: Node) -> None:
        """Follow the pods of a virtual node that is there, perhaps since an earlier process registered it."""
        group = found.metadata.labels.get(self.config.node_per, "")
        if self.config.name_of(group) == found.metadata.name:
            self._follow_node(found.metadata.name, group)

    def _follow_node(self, name: str, group: str) -> None:
        if name not in self._nodes:
            self._nodes[name] = group
            self.pods.follow_borrower(
                self._of_borrower.informer(PodDocument, field_selector=f"spec.nodeName={name}")
            )

    def _group_of(self, virtual_node: str) -> str:
        return self._nodes.get(virtual_node, "")

    # Leading

    async def run(self, election: LeaderElector | None = None) -> None:
        """Follow, and lead while elected, until cancelled; without an election this is the only instance.

        Raises: LeaseLost (in a group) when the lease could not be kept.
        """
        self._election = election
        async with self.following():
            await lead_while_elected(election, self.lead)

    async def lead(self) -> None:
        """Offer, lend and reclaim until cancelled; only while `following`."""
        self.metrics.is_leader.set(1)
        loops = {"offer": self._pass, "leases": self._renew, "copies": self._refresh}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.pods.controller.run(), name="borrowed pods")
                for name, step in loops.items():
                    backoff = Backoff(_RETRY, new_rng(self._rng))
                    group.create_task(supervise(step, backoff, Guard(f"virtual node {name}")), name=name)
        finally:
            self.metrics.is_leader.set(0)

    async def _pass(self) -> float:
        """One look at the lender: what is offered, told to the borrower first, and who has to leave."""
        self._wake.clear()
        trouble = await self._trouble_of_lender()
        self._leaving |= {victim.pod.uid: victim for victim in self._victims()}
        for uid in self._leaving.keys() - self.table.lent_pods.keys():
            del self._leaving[uid]
        try:
            async with asyncio.timeout(PUBLISHED_WITHIN_S):
                await self._publish(trouble)
        except (errors.ApiError, TimeoutError) as error:
            # The lender's online pods need not wait for the borrower.
            log.warning("offer not told", extra={"error": str(error)})
        for victim in tuple(self._leaving.values()):
            await self._evict(victim)
        self._account()
        self.pods.recheck()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_S):
                await self._wake.wait()
        return SETTLE_S

    async def _trouble_of_lender(self) -> str:
        """Return why nothing can be lent, empty when it can; makes the namespace of lent pods."""
        name = self.lending.namespace
        try:
            if await get_if_there(self._lender, Namespace, name) is None:
                body = {"metadata": {"name": name, "labels": dict(_NAMESPACE_LABELS)}}
                await self._lender.create(Namespace, body)
        except errors.ApiError as error:
            return "" if isinstance(error, errors.AlreadyExists) else str(error)
        return ""

    # What is offered

    async def _publish(self, trouble: str) -> None:
        """Tell the borrower what each virtual node has. Raises: ApiError."""
        table, now_s = self.table, self.clock.now()
        room = table.room(now_s)
        for group in table.groups if self.config.node_per else ("",):
            self._follow_node(self.config.name_of(group), group)
        self.metrics.idle_nodes.set(int(room.any(axis=1).sum()))
        self.metrics.lent_pods.set(len(table.lent_pods))
        for name, group in self._nodes.items():
            mine = table.of_group(group)
            await self._report(name, group, self._offer(room * mine[:, None], mine, trouble))

    def _offer(self, room: I64, mine: offer.Mask, trouble: str) -> NodeOffer:
        """Return what a virtual node has: pods that leave count no more, as their successors must not be promised the
        same room."""
        hole = offer.largest_hole(room)
        nothing = np.zeros(len(offer.RESOURCES), np.int64)
        lent = self.table.lent * mine[:, None]
        for victim in self._leaving.values():
            if (held := self.table.lent_pods.get(victim.pod.uid)) is not None and mine[held.row]:
                lent[held.row] -= held.request
        amounts = offer.offered(nothing[None] if trouble else room, lent)
        return NodeOffer(amounts, nothing if trouble or hole == offer.NOWHERE else room[hole], trouble)

    async def _report(self, name: str, group: str, offered: NodeOffer) -> None:
        clock_s = self.clock.now()
        try:
            before = await self._borrower.get(Node, name)
        except errors.NotFound:
            common = {self.config.node_per: group} if self.config.node_per else {}
            before = await self._borrower.create(Node, node.body(name, self.config.source, common))
            log.info("virtual node registered", extra={"node": name})
        hole = node.hole_text(offered.hole)
        if before.metadata.annotations.get(labels.LARGEST_FREE) != hole:
            await self._borrower.patch(Node, name, {"metadata": {"annotations": {labels.LARGEST_FREE: hole}}})
        status = node.status(offered, self.config.address, clock_s, before)
        await self._borrower.patch(Node, name, status, patch_type=PatchType.STRATEGIC, subresource="status")
        for column, resource in enumerate(offer.RESOURCES):
            self.metrics.offered.set(int(offered.amounts[column]), name, resource)
            self.metrics.largest_free.set(int(offered.hole[column]), name, resource)

    async def _renew(self) -> float:
        for name in tuple(self._nodes):
            spec = {"spec": node.lease_spec(name, self.clock.now())}
            try:
                await self._borrower.patch(Lease, name, spec, node.LEASE_NAMESPACE)
            except errors.NotFound:
                with contextlib.suppress(errors.NotFound):  # the node is not registered yet
                    owner = await self._borrower.get(Node, name)
                    lease = node.lease(name, owner.metadata.uid, self.clock.now())
                    await self._borrower.create(Lease, lease, node.LEASE_NAMESPACE)
        return PERIOD_S if self._nodes else SETTLE_S

    async def _refresh(self) -> float:
        self.pods.refresh_copies()
        return COPIES_S

    # Who has to leave

    def _victims(self) -> list[Victim]:
        """Return who leaves now; the nodes that they leave are not offered from here on."""
        table, now_s = self.table, self.clock.now()
        pods_of = table.pods_by_row()
        busy = reclaim.busy(table.usage(now_s), table.allocatable, table.lent, table.policy)
        rows = dict.fromkeys(busy, (reclaim.BUSY, "its own pods use the node"))
        for row in pods_of:
            if not table.selected[row]:
                rows[row] = reclaim.WITHDRAWN, "the node is lent no more"
        found: dict[str, Victim] = {}
        for row, (reason, message) in rows.items():
            table.withhold(row)
            for pod in reclaim.in_order(pods_of.get(row, ()), table.allocatable, now_s):
                found[pod.uid] = Victim(pod, reason, f"{message} ({table.names[row]})")
        for uid in tuple(table.waiting)[:WAITING_MAX]:
            for victim in self._for_waiting(table.waiting[uid], pods_of, now_s):
                found.setdefault(victim.pod.uid, victim)
        return list(found.values())

    def _for_waiting(self, pod: Pod, pods_of: Mapping[int, list[LentPod]], now_s: float) -> list[Victim]:
        table, uid = self.table, pod.metadata.uid
        if table.claimed_row(uid) != offer.NOWHERE:
            return []  # room was made for it; its scheduler has not looked yet
        request = request_of(pod)
        given = reclaim.for_waiting(
            request,
            table.allocatable,
            table.others,
            pods_of,
            table.lent,
            table.present,
            lambda row: objects.may_run(pod, table.nodes[table.names[row]]),
            now_s,
        )
        if given is None:
            return []
        table.claim(uid, given.row, request)
        table.withhold(given.row)
        message = f"{pod.key} needs its place on {table.names[given.row]}"
        return [Victim(one, reclaim.NEEDED, message) for one in given.victims]

    async def _evict(self, victim: Victim) -> None:
        """Evict a lent pod in the lender; one that cannot be evicted now comes again with the next pass."""
        lent = self.pods.lent_pod(victim.pod.uid)
        if lent is None or lent.is_deleted:
            return
        self.pods.reasons[victim.pod.uid] = victim.message
        own_s = lent.spec.get("terminationGracePeriodSeconds", GRACE_S_MAX)
        meta = lent.metadata
        try:
            await self._lender.evict(
                meta.namespace, meta.name, uid=meta.uid, grace_period_s=min(int(own_s), GRACE_S_MAX)
            )
        except (errors.NotFound, errors.Conflict):
            return
        except errors.ApiError as error:
            log.warning("lent pod not evicted", extra={"pod": lent.key, "error": str(error)})
            return
        self.metrics.reclaimed.inc(victim.reason)
        log.info("lent pod evicted", extra={"pod": lent.key, "reason": victim.message})

    def _account(self) -> None:
        now_s = self.clock.now()
        passed_s = now_s - (self._accounted_s if self._accounted_s is not None else now_s)
        self._accounted_s = now_s
        for pod in self.table.lent_pods.values():
            cores = int(pod.request[offer.CPU]) / 1000
            if cores > 0 < passed_s:
                self.metrics.core_seconds.inc(self.config.source, pod.namespace, by=cores * passed_s)


SETTLE_S = 0.2
"""The least between two passes: what happens at once is seen at once."""
_NAMESPACE_LABELS = {"pod-security.kubernetes.io/enforce": "baseline"}


async def identity_of(borrower: Cluster) -> str:
    """Return what tells a cluster from all others: the uid of its kube-system namespace. Raises: ApiError."""
    return (await borrower.get(Namespace, "kube-system")).metadata.uid
