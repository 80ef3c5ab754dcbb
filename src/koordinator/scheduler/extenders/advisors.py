"""Ask HTTP extenders: what all together say about a pod (nodes that they refuse, scores, victims, bindings).

Only pods in which some extender has an interest cost anything. Source: behaviour/scheduler B3 (7) and B8.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import aiohttp

from koordinator.api.core import Node, Pod
from koordinator.api.meta import Object, to_wire
from koordinator.api.pod_labels import is_reserve_pod
from koordinator.cluster.errors import ApiError
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.config.config import Extender
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import ExtenderAdvice
from koordinator.scheduler.extenders.client import ExtenderClient, ExtenderError, Json
from koordinator.scheduler.plugin.capabilities import ReviewedPreemption, ReviewedVictims
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import BindPlugin, Handle, Plugin, Watch
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status, error, unresolvable, unschedulable
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

EXTENDER = "Extender"
"""Stands for all of them where plugins are named. Nobody knows what they look at, so any event may help."""


class WholePod(Object, frozen=True, kw_only=True):
    """A pod with all of its members, for others to read."""

    resource = Pod.resource

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class WholeNode(Object, frozen=True, kw_only=True):
    """A node with all of its members."""

    resource = Node.resource

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class Advisors:
    """The extenders of a configuration. `cluster` is where whole pods are read, `table` knows which run where."""

    def __init__(self, clients: Sequence[ExtenderClient], cluster: Cluster, table: NodeTable) -> None:
        self._clients = clients
        self._cluster = cluster
        self._table = table
        self._nodes: dict[str, Json] = {}
        self._session: aiohttp.ClientSession | None = None

    def watches(self) -> list[Watch[Any]]:
        """Whole nodes are needed only by extenders that do not keep their own."""
        if all(client.config.node_cache_capable for client in self._clients):
            return []
        return [
            Watch.newest(WholeNode, self._set_node, lambda node: self._nodes.pop(node.metadata.name, None))
        ]

    def _set_node(self, node: WholeNode) -> None:
        self._nodes[node.metadata.name] = to_wire(node)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Who is asked

    def is_concerned(self, pod: PodInfo) -> bool:
        """Return whether the pod's attempts have to wait for answers."""
        return self.advises(pod) or self.preempts(pod)

    def advises(self, pod: PodInfo) -> bool:
        """Return whether nodes of the pod have to be shown to somebody."""
        return any(each.config.filter_verb or each.config.prioritize_verb for each in self._interested(pod))

    def preempts(self, pod: PodInfo) -> bool:
        return any(each.config.preempt_verb for each in self._interested(pod))

    def _interested(self, pod: PodInfo) -> list[ExtenderClient]:
        return [each for each in self._clients if not each.managed or each.managed & _named(pod.pod)]

    # Filter and prioritize

    async def advise(self, pod: PodInfo, names: list[str]) -> ExtenderAdvice:
        """About the nodes that passed all filters."""
        try:
            whole = await self._whole(pod)
        except ApiError as failure:
            return ExtenderAdvice(frozenset(names), failure=error(str(failure)))
        refused: dict[str, Status] = {}
        left = names
        for client in self._interested(pod):
            if not client.config.filter_verb or not left:
                continue
            try:
                answer = await client.filter(self._http(), self._args(client, whole, left), left)
            except ExtenderError as failure:
                if client.config.ignorable:
                    log.warning("extender skipped: %s", failure)
                    continue
                return ExtenderAdvice(frozenset(names), failure=error(str(failure)))
            passing = set(answer.passing)
            for name in left:
                if name in passing:
                    continue
                if name in answer.failed and name not in answer.hopeless:
                    refused[name] = unschedulable(answer.failed[name]).by(EXTENDER)
                else:  # as upstream, no eviction helps where nobody says why
                    reason = answer.hopeless.get(name, f"node(s) didn't pass extender {client.name}")
                    refused[name] = unresolvable(reason).by(EXTENDER)
            left = [name for name in left if name not in refused]
        scores = await self._scores(pod, whole, left) if len(left) > 1 else {}
        return ExtenderAdvice(frozenset(names), refused, scores)

    async def _scores(self, pod: PodInfo, whole: Json, names: list[str]) -> dict[str, int]:
        """Sums over all extenders; the opinion of one that fails is not missed."""
        asked = [each for each in self._interested(pod) if each.config.prioritize_verb]
        answers = await asyncio.gather(
            *(each.prioritize(self._http(), self._args(each, whole, names)) for each in asked),
            return_exceptions=True,
        )
        sums: dict[str, int] = {}
        for answer in answers:
            if isinstance(answer, ExtenderError):
                log.warning("extender's scores skipped: %s", answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for name, score in answer.items():
                    sums[name] = sums.get(name, 0) + score
        # Totals below zero would look like nodes that are out of the question.
        lowest = min(0, *(sums.get(name, 0) for name in names))
        return {name: sums.get(name, 0) - lowest for name in names} if sums else sums

    def _args(self, client: ExtenderClient, whole: Json, names: list[str]) -> Json:
        if client.config.node_cache_capable:
            return {"Pod": whole, "Nodes": None, "NodeNames": names}
        items = [self._nodes[name] for name in names if name in self._nodes]
        return {
            "Pod": whole,
            "Nodes": {"apiVersion": "v1", "kind": "NodeList", "items": items},
            "NodeNames": None,
        }

    # Preempt

    async def reconsider(
        self, pod: PodInfo, victims: dict[str, tuple[list[PodInfo], int]]
    ) -> dict[str, ReviewedVictims] | Status:
        """Return what is left of proposals (node → pods to evict, budgets violated), or why nobody can tell."""
        proposed = {name: {each.uid: each for each in chosen} for name, (chosen, _) in victims.items()}
        left = {
            name: ReviewedVictims([each.uid for each in chosen], count)
            for name, (chosen, count) in victims.items()
        }
        try:
            whole = await self._whole(pod)
        except ApiError as failure:
            return error(str(failure))
        for client in self._interested(pod):
            if not client.config.preempt_verb or not left:
                continue
            try:
                args = self._preemption_args(client, whole, left, proposed)
                answer = await client.preempt(self._http(), args)
                for name, chosen in list(answer.items()):
                    self._pods_on(name, chosen.uids, client, proposed)
                    if not chosen.uids and not client.config.ignorable:
                        reason = f'expected at least one victim pod on node "{name}"'
                        raise ExtenderError(client.name, reason)
                    if not chosen.uids or name not in left:
                        del answer[name]
            except ExtenderError as failure:
                if client.config.ignorable:
                    log.warning("extender skipped: %s", failure)
                    continue
                return error(str(failure))
            left = answer
        return left

    def _preemption_args(
        self,
        client: ExtenderClient,
        whole: Json,
        left: dict[str, ReviewedVictims],
        proposed: dict[str, dict[str, PodInfo]],
    ) -> Json:
        """Raises: ExtenderError when a pod that an extender named has gone meanwhile."""
        if client.config.node_cache_capable:
            meta = {
                name: {"Pods": [{"UID": uid} for uid in each.uids], "NumPDBViolations": each.violations}
                for name, each in left.items()
            }
            return {"Pod": whole, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
        full = {
            name: {
                "Pods": [to_wire(found.pod) for found in self._pods_on(name, each.uids, client, proposed)],
                "NumPDBViolations": each.violations,
            }
            for name, each in left.items()
        }
        return {"Pod": whole, "NodeNameToVictims": full, "NodeNameToMetaVictims": None}

    def _pods_on(
        self,
        node_name: str,
        uids: Sequence[str],
        client: ExtenderClient,
        proposed: dict[str, dict[str, PodInfo]],
    ) -> list[PodInfo]:
        """Return pods of a node by uid: others than were proposed, too, and proposed ones that have gone. Raises:
        ExtenderError when one of them was never there, or there is no such node."""
        row = self._table.row_of(node_name)
        if row is None and node_name not in proposed:
            raise ExtenderError(client.name, f'claims to preempt on node "{node_name}", which is not known')
        there = {} if row is None else self._table.pods_at(row)
        known = {**there, **proposed.get(node_name, {})}
        for uid in uids:
            if uid not in known:
                reason = f'claims to preempt pod (UID: {uid}) on node "{node_name}", but it is not there'
                raise ExtenderError(client.name, reason)
        return [known[uid] for uid in uids]

    # Bind

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Skip when no extender binds this pod."""
        binder = next((each for each in self._interested(pod) if each.config.bind_verb), None)
        if binder is None or is_reserve_pod(pod.pod.metadata.annotations):
            return SKIP  # what stands for a Reservation is no pod that anybody else could bind
        meta = pod.pod.metadata
        args = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node_name}
        try:
            await binder.bind(self._http(), args)
        except ExtenderError as failure:
            if binder.config.ignorable:
                log.warning("extender skipped: %s", failure)
                return SKIP
            return error(str(failure))
        return SUCCESS

    async def _whole(self, pod: PodInfo) -> Json:
        """Return the pod with all of its members. Raises: ApiError."""
        meta = pod.pod.metadata
        if is_reserve_pod(meta.annotations):
            return to_wire(pod.pod)  # it stands for a Reservation, and is nowhere else
        return to_wire(await self._cluster.get(WholePod, meta.name, meta.namespace))

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session


class ExtenderBinder(BindPlugin[None]):
    """Lets the extender that binds do so, before all Bind plugins."""

    name = EXTENDER

    def __init__(self, advisors: Advisors, handle: Handle) -> None:
        super().__init__(None, handle)
        self._advisors = advisors

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        return await self._advisors.bind(pod, node_name)


class ExtenderWakeUps(Plugin[None]):
    """The events that wake pods that extenders refused: all."""

    name = EXTENDER
    wakes_on = tuple(ClusterEvent)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        return True

    def is_relevant_update(self, old: PodInfo, new: PodInfo) -> bool:
        return old.pod.spec != new.pod.spec or old.pod.metadata.labels != new.pod.metadata.labels


def connect(configs: Sequence[Extender], engine: Engine, cluster: Cluster) -> Advisors | None:
    """Return the configured extenders, made known to the profiles of an engine; None when there are none."""
    if not configs:
        return None
    clients = [ExtenderClient(each, index) for index, each in enumerate(configs)]
    advisors = Advisors(clients, cluster, engine.table)
    binder = ExtenderBinder(advisors, engine.handles[0])
    for profile in engine.profiles.values():
        profile.binds = (binder, *profile.binds)
        for plugin in profile.post_filters:
            if isinstance(plugin, ReviewedPreemption):
                plugin.review_by(advisors)
    return advisors


def _named(pod: Pod) -> set[str]:
    """Resources that some container names."""
    found: set[str] = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        found.update(container.resources.requests, container.resources.limits)
    return found
