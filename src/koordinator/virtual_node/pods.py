"""Carry out the life of borrowed pods: each is one key, the uid of the borrower's pod. Source: behaviour/tidal 5."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import labels, pod_resources
from koordinator.api.core import PodSpec
from koordinator.api.errors import KoordinatorError
from koordinator.api.priority import PriorityClass
from koordinator.api.resource_vector import I64
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, RetryPolicy
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster, delete_if_same, get_if_there
from koordinator.cluster.transport import NotConnected
from koordinator.virtual_node import objects, offer, status, steps, translate
from koordinator.virtual_node.copies import ObjectCopies
from koordinator.virtual_node.metrics import VirtualNodeMetrics
from koordinator.virtual_node.objects import Json, Lending, PodDocument
from koordinator.virtual_node.steps import Action, Step
from koordinator.virtual_node.table import LenderTable, LentPod, request_vector
from koordinator.virtual_node.translate import Sharing

log = logging.getLogger(__name__)

WORKERS = 8
RETRIES = RetryPolicy(initial_s=0.1, max_s=10.0)
POLL_S = 10.0
"""Between two looks at a pod that waits for room, for an object, or for the lender's scheduler."""
SOON_S = 0.5
PLACED_WITHIN_S = 30.0
"""Time for which the lender's scheduler may fail to place a pod before it is given back."""

_NOT_DONE = (errors.TooManyRequests, errors.Unauthorized, errors.Conflict, errors.NotFound)
"""Answers to a create that surely created nothing, and may do so later."""
_NEVER = (errors.Forbidden, errors.Invalid, errors.BadRequest)
"""Answers to a create that will be the same next time."""


class PodRules(msgspec.Struct, frozen=True, kw_only=True):
    """`refuse_after_s`: how long a pod that fits no node of the lender may wait."""

    sharing: Sharing = Sharing()
    refuse_after_s: float = 300.0


class BorrowedPods:
    """Brings each borrower's pod on a virtual node to the lender, its status back, and both to their end."""

    def __init__(
        self,
        lender: Cluster,
        borrower: Cluster,
        lending: Lending,
        rules: PodRules,
        table: LenderTable,
        events: EventRecorder,
        metrics: VirtualNodeMetrics,
        group_of: Callable[[str], str],
    ) -> None:
        """`group_of` says which group of the lender's nodes a virtual node stands for."""
        self.controller: Controller[str] = Controller(
            "borrowed pods", self._reconcile, workers=WORKERS, retries=RETRIES
        )
        self.reasons: dict[str, str] = {}
        """Reasons for which pods are being reclaimed, by uid."""
        self._lender, self._borrower = lender, borrower
        self._lending, self._rules, self._table = lending, rules, table
        self._events, self._metrics = events, metrics
        self._group_of = group_of
        self._copies = ObjectCopies(lender, borrower, lending, rules.sharing)
        self._borrowed: dict[str, PodDocument] = {}
        self._lent: dict[str, PodDocument] = {}
        self._unsent: set[str] = set()
        """Pods that we marked, or are about to, and for which no create was sent."""
        self._copied: set[str] = set()
        self._waiting_since_s: dict[str, float] = {}
        self._carry_out: dict[Action, Callable[[str, Step], Awaitable[float | None]]] = {
            Action.ADMIT: self._admit,
            Action.MIRROR: self._mirror,
            Action.FAIL: self._lose,
            Action.DELETE: self._delete,
            Action.FINISH: self._finish,
        }

    # What is there

    def follow_borrower(self, informer: Informer[PodDocument]) -> None:
        """Follow the pods of one virtual node."""
        self._follow(informer, self._borrowed, lambda pod: pod.metadata.uid)

    def follow_lender(self, informer: Informer[PodDocument]) -> None:
        """Follow lent pods."""
        self._follow(informer, self._lent, objects.borrowed_uid)

    def _follow(
        self,
        informer: Informer[PodDocument],
        known: dict[str, PodDocument],
        uid_of: Callable[[PodDocument], str],
    ) -> None:
        def changed(pod: PodDocument) -> None:
            if uid := uid_of(pod):
                known[uid] = pod
                self.controller.queue.add(uid)

        def gone(pod: PodDocument) -> None:
            uid = uid_of(pod)
            if known.pop(uid, None) is not None:
                self.controller.queue.add(uid)

        informer.add_handler(changed, lambda _, new: changed(new), gone)

    def lent_pod(self, uid: str) -> PodDocument | None:
        """Return the pod in the lender that stands for the borrower's pod."""
        return self._lent.get(uid)

    def find(self, namespace: str, name: str) -> tuple[str, PodDocument] | None:
        """Return the virtual node of a borrower's pod, by its name, and the lent pod."""
        key = f"{namespace}/{name}"
        found = ((uid, pod) for uid, pod in self._borrowed.items() if pod.key == key)
        return next(
            ((str(pod.spec.get("nodeName")), self._lent[uid]) for uid, pod in found if uid in self._lent),
            None,
        )

    def recheck(self) -> None:
        """Have all pods looked at that wait for room."""
        for uid in self._waiting_since_s:
            self.controller.queue.add(uid)

    def refresh_copies(self) -> None:
        """Have the copies of all lent pods compared with their originals."""
        for uid in tuple(self._copied):
            self._copied.discard(uid)
            self.controller.queue.add(uid)

    # One pod

    async def _reconcile(self, uid: str) -> float | None:
        borrowed, lent = self._borrowed.get(uid), self._lent.get(uid)
        if borrowed is None and lent is None:
            self._forget(uid)
            return None
        if borrowed is not None and lent is not None and not borrowed.is_deleted:
            if not borrowed.has_ended and (why := self._why_unplaceable(lent)):
                await self._give_up(uid, borrowed, lent, why)
                return None
            if not (lent.has_ended or lent.is_deleted) and uid not in self._copied:
                await self._copy(uid, borrowed, lent)
        step = steps.next_step(borrowed, lent, is_unsent=uid in self._unsent)
        if step.action is Action.NOTHING:
            is_unplaced = lent is not None and not lent.spec.get("nodeName") and not lent.has_ended
            return POLL_S if is_unplaced else None
        return await self._carry_out[step.action](uid, step)

    def _forget(self, uid: str) -> None:
        """Let nothing of a pod stay in memory that is in neither cluster."""
        self._unsent.discard(uid)
        self._copied.discard(uid)
        self._waiting_since_s.pop(uid, None)
        self.reasons.pop(uid, None)
        self._table.give_back(uid)

    async def _admit(self, uid: str, _: Step) -> float | None:
        pod = self._borrowed[uid]
        problems = translate.problems(pod, self._rules.sharing)
        try:
            spec = objects.spec_of(pod)
            amounts = pod_resources.wire_sum(spec)
            problems += [f"no virtual node has {name}" for name in offer.unknown_resources(amounts)]
            request = request_vector(amounts)
        except (msgspec.ValidationError, KoordinatorError) as error:
            await self._fail(pod, status.REFUSED, f"its spec is unreadable: {error}")
            return None
        if problems:
            await self._fail(pod, status.REFUSED, "; ".join(problems))
            return None
        try:
            contents = await self._copies.read(pod)
        except errors.NotFound as error:
            await self._wait(pod, status.WAITING, str(error))
            return POLL_S
        node = self._take_room(pod, spec, request)
        if not node:
            return await self._wait_for_room(pod, amounts)
        self._waiting_since_s.pop(uid, None)
        try:
            await self._mark(pod)
            lent = await self._create(pod, node)
        except errors.ApiError:
            if uid in self._unsent:
                self._table.give_back(uid)
            raise
        if lent is not None:
            await self._copies.keep(lent, contents)
            self._copied.add(uid)
        return SOON_S

    def _take_room(self, pod: PodDocument, spec: PodSpec, request: I64) -> str:
        """Take room on a node of the lender; its name, or empty without any."""
        table, now_s = self._table, self._lender.clock.now()
        uid = pod.metadata.uid
        table.give_back(uid)
        group = table.of_group(self._group_of(spec.node_name))
        row = offer.place(request, table.room(now_s), group)
        if row == offer.NOWHERE:
            return ""
        is_free = spec.priority_class_name == PriorityClass.FREE
        lent = LentPod(uid, row, request, now_s, is_free, pod.metadata.namespace)
        table.lend(lent, objects.lent_name(pod))
        return table.names[row]

    async def _wait_for_room(self, pod: PodDocument, amounts: Json) -> float | None:
        """Refuse a pod that no node of the lender can hold: for now, and for good when that lasts."""
        uid, now_s = pod.metadata.uid, self._lender.clock.now()
        since_s = self._waiting_since_s.setdefault(uid, now_s)
        wanted = ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))
        message = f"no idle node of {self._lending.source} has room for {wanted or 'another pod'}"
        left_s = since_s + self._rules.refuse_after_s - now_s
        if self._rules.refuse_after_s and left_s <= 0:
            await self._fail(pod, status.OUT_OF_HOLE, message)
            return None
        await self._wait(pod, status.OUT_OF_HOLE, message)
        return min(POLL_S, left_s) if self._rules.refuse_after_s else POLL_S

    async def _mark(self, pod: PodDocument) -> None:
        meta = pod.metadata
        self._unsent.add(meta.uid)
        if labels.LENT_AS in meta.annotations:
            return
        name = f"{self._lending.namespace}/{objects.lent_name(pod)}"
        patch = {"metadata": {"uid": meta.uid, "annotations": {labels.LENT_AS: name}}}
        await self._borrower.patch(PodDocument, meta.name, patch, meta.namespace)

    async def _create(self, pod: PodDocument, node: str) -> PodDocument | None:
        """Create the pod in the lender; None when it refuses, which the borrower is told."""
        uid, name = pod.metadata.uid, objects.lent_name(pod)
        body = translate.lent_pod(pod, self._lending, node)
        self._unsent.discard(uid)
        try:
            made = await self._lender.create(PodDocument, body, self._lending.namespace)
        except errors.AlreadyExists:
            made = await self._lender.get(PodDocument, name, self._lending.namespace)
            if objects.borrowed_uid(made) != uid:
                self._table.give_back(uid)
                await self._fail(pod, status.REFUSED, f"{made.key} in the lender is another pod")
                return None
        except _NEVER as error:
            self._table.give_back(uid)
            await self._fail(pod, status.REFUSED, f"{self._lending.source} refuses it: {error}")
            return None
        except errors.ApiError as error:
            if _did_nothing(error):
                self._unsent.add(uid)
            raise
        self._events.normal(pod, "Lent", f"runs as {made.key} in {self._lending.source}")
        log.info("pod lent", extra={"pod": pod.key, "lent_as": made.key, "node": node})
        return made

    async def _copy(self, uid: str, borrowed: PodDocument, lent: PodDocument) -> None:
        try:
            await self._copies.keep(lent, await self._copies.read(borrowed))
        except errors.NotFound as error:
            log.info("copy kept: its original is gone", extra={"pod": borrowed.key, "error": str(error)})
        self._copied.add(uid)

    async def _mirror(self, uid: str, step: Step) -> float | None:
        assert step.patch is not None, step
        await self._patch_status(self._borrowed[uid], step.patch)
        return POLL_S if not (lent := self._lent.get(uid)) or not lent.spec.get("nodeName") else None

    async def _lose(self, uid: str, _: Step) -> float | None:
        """Tell the borrower that its pod is gone, once the lender itself has said so."""
        pod = self._borrowed[uid]
        if uid not in self._lent and await self._is_in_lender(pod):
            return SOON_S
        self._table.give_back(uid)
        why = self.reasons.pop(uid, "") or "it was deleted there"
        message = f"{self._lending.source} took its room back: {why}"
        await self._fail(pod, status.RECLAIMED, message)
        return None

    async def _delete(self, uid: str, step: Step) -> float | None:
        lent = self._lent[uid]
        if uid not in self._borrowed and await self._is_in_borrower(uid, lent):
            return POLL_S  # our cache of the borrower is behind
        await self._delete_lent(lent, step.grace_s, step.message)
        return None

    async def _finish(self, uid: str, _: Step) -> float | None:
        pod = self._borrowed[uid]
        if labels.LENT_AS in pod.metadata.annotations and await self._is_in_lender(pod):
            return SOON_S
        self._table.give_back(uid)
        if not await delete_if_same(self._borrower, pod, grace_period_s=0):
            log.debug("pod gone already", extra={"pod": pod.key})
        return None

    async def _give_up(self, uid: str, borrowed: PodDocument, lent: PodDocument, why: str) -> None:
        """Give back a pod for which the lender's scheduler finds no place; its node is offered no more for a while."""
        if (held := self._table.lent_pods.get(uid)) is not None:
            self._table.withhold(held.row)
        message = f"the scheduler of {self._lending.source} could not place it: {why}"
        await self._fail(borrowed, status.OUT_OF_HOLE, message)
        await self._delete_lent(lent, None, "it was not placed")

    def _why_unplaceable(self, lent: PodDocument) -> str:
        """Return why the lender's scheduler has not placed a pod for too long, empty while it may still."""
        if lent.spec.get("nodeName") or lent.is_deleted or not lent.metadata.creation_timestamp:
            return ""
        waited_s = self._lender.clock.now() - clock.parse_rfc3339(lent.metadata.creation_timestamp)
        if waited_s <= PLACED_WITHIN_S:
            return ""
        conditions = lent.status.get("conditions") or []
        refused = (one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False")
        return next((one.get("message") or "" for one in refused), "")

    # Requests

    async def _is_in_lender(self, pod: PodDocument) -> bool:
        """Ask the lender itself whether it has the pod. Raises: ApiError."""
        name = objects.lent_name(pod)
        found = await get_if_there(self._lender, PodDocument, name, self._lending.namespace)
        return found is not None and objects.borrowed_uid(found) == pod.metadata.uid

    async def _is_in_borrower(self, uid: str, lent: PodDocument) -> bool:
        """Ask the borrower itself whether it has the pod. Raises: ApiError."""
        namespace, _, name = lent.metadata.annotations.get(labels.BORROWED_POD, "").partition("/")
        found = await get_if_there(self._borrower, PodDocument, name, namespace)
        return found is not None and found.metadata.uid == uid

    async def _delete_lent(self, lent: PodDocument, grace_s: int | None, why: str) -> None:
        if await delete_if_same(self._lender, lent, grace_period_s=grace_s):
            log.info("lent pod deleted", extra={"pod": lent.key, "reason": why})
        else:
            log.debug("lent pod gone already", extra={"pod": lent.key})

    async def _wait(self, pod: PodDocument, reason: str, message: str) -> None:
        patch = status.waits(pod, reason, message)
        if patch is not None:
            await self._patch_status(pod, patch)
            self._events.warning(pod, reason, message)

    async def _fail(self, pod: PodDocument, reason: str, message: str) -> None:
        self._waiting_since_s.pop(pod.metadata.uid, None)
        patch = status.failed(pod, reason, message, self._borrower.clock.now())
        await self._patch_status(pod, patch)
        if reason != status.RECLAIMED:
            self._metrics.refused.inc(reason)
        self._events.warning(pod, reason, message)
        log.info("pod failed", extra={"pod": pod.key, "reason": reason, "message_text": message})

    async def _patch_status(self, pod: PodDocument, patch: dict[str, Any]) -> None:
        meta = pod.metadata
        guarded = {"metadata": {"uid": meta.uid}, **patch}
        try:
            await self._borrower.patch(PodDocument, meta.name, guarded, meta.namespace, subresource="status")
        except errors.NotFound:
            log.debug("pod gone already", extra={"pod": pod.key})


def _did_nothing(error: errors.ApiError) -> bool:
    """Return whether a create that failed so has surely created nothing."""
    if isinstance(error, errors.ConnectionFailed):
        return isinstance(error, NotConnected)
    return isinstance(error, (*_NOT_DONE, errors.ServiceUnavailable))
