"""The loops beside ElasticQuota: reserved quotas, statuses, over-use, and who may try again. Source: spec 06,
sections 2.2, 15 and 16.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from koordinator.api import duration, labels, resource_list
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.annotations.codec import Annotation
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.clock import parse_rfc3339
from koordinator.cluster import errors
from koordinator.prometheus import Labels, Reading
from koordinator.scheduler.capabilities import BackgroundController
from koordinator.scheduler.framework import Handle
from koordinator.scheduler.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugins.elastic_quota import revoke
from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos, amounts_of, nanos_per_unit, to_units
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.checks import Place, QuotaChecks
from koordinator.scheduler.plugins.elastic_quota.pods import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.preempt import Rival
from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT, ROOT, SYSTEM, Quota
from koordinator.scheduler.status import Status

log = logging.getLogger(__name__)

STATUS_PERIOD_S = 1.0
REFRESH_PERIOD_S = 10.0
SETTLING_S = 3.0
"""How long admission's sum of requests stands after it grew: its pods may be on their way to us."""


class QuotaControllers:
    """The loops; they run on the leader. `changed` tells that pods of some quotas may fit now."""

    def __init__(
        self,
        args: ElasticQuotaArgs,
        handle: Handle,
        book: QuotaBook,
        checks: QuotaChecks,
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._args = args
        self._handle = handle
        self._book = book
        self._checks = checks
        self._changed = changed
        self._refused: dict[QuotaRef, dict[str, Nanos]] = {}
        """Quota → the room that it and its ancestors with a say had when they had too little."""
        self._last_under_s: dict[str, float] = {}
        self._admitted: dict[str, tuple[str, float]] = {}
        """Quota → its child-request as an admission webhook (or we) wrote it, and since when."""
        handle.metrics.registry.shared(
            Reading(
                "scheduler_elastic_quota_status",
                "What quotas have, ask for and use.",
                ("name", "resource", "tree", "is_parent", "parent", "field"),
                self._samples,
            )
        )

    def loops(self) -> list[BackgroundController]:
        """What runs beside scheduling."""
        found = [
            BackgroundController("ElasticQuota reserved quotas", self._keep_reserved),
            BackgroundController("ElasticQuota status", self._keep_statuses),
        ]
        if self._args.enable_runtime_quota:
            found.append(BackgroundController("ElasticQuota runtime", self._refresh))
            if self._args.monitor_all_quotas:
                found.append(BackgroundController("ElasticQuota over-use", self._revoke))
        return found

    # Who may try again

    def refused(self, place: Place) -> None:
        """A quota had no room: its pods are woken when it, or an ancestor with a say, has more than now.

        Who gives back places of its own must have been refused before it took them (`ElasticQuota.room_for`), or it
        would make the room that it is woken by.
        """
        rooms = self._refused.setdefault(place.ref, {})
        for quota in place.known:
            room, known = self._room(quota), rooms.get(quota.spec.name)
            if known is not None:
                room = {name: min(number, known.get(name, number)) for name, number in room.items()}
            rooms[quota.spec.name] = room

    def _wake(self) -> None:
        grown: set[str] = set()
        for ref, rooms in list(self._refused.items()):
            place = self._checks.place(ref)
            if isinstance(place, Status):
                del self._refused[ref]
            elif any(
                number > rooms.get(quota.spec.name, {}).get(name, number)
                for quota in place.known
                for name, number in self._room(quota).items()
            ):
                del self._refused[ref]
                grown.add(ref.name)
        if grown:
            self._changed(frozenset(grown))

    def _room(self, quota: Quota) -> Nanos:
        used = quota.below.used
        return {name: number - used.get(name, 0) for name, number in self._checks.limit_of(quota).items()}

    # Reserved quotas

    async def _keep_reserved(self) -> None:
        namespace = self._args.quota_group_namespace
        for body in reserved_objects(self._args):
            name = body["metadata"]["name"]
            try:
                await self._handle.cluster.get(ElasticQuota, name, namespace)
            except errors.NotFound:
                try:
                    await self._handle.cluster.create(ElasticQuota, body, namespace)
                except errors.AlreadyExists:
                    continue
                except errors.ApiError as error:
                    log.warning("reserved quota not created", extra={"quota": name, "error": str(error)})
            except errors.ApiError as error:
                log.warning("reserved quota not looked at", extra={"quota": name, "error": str(error)})
        await asyncio.Event().wait()

    # Statuses

    async def _keep_statuses(self) -> None:
        while True:
            self._book.expire()
            self._wake()
            if len(self._admitted) > 2 * len(self._book.objects) + 16:
                self._admitted.clear()  # quotas that are gone
            for tree, quota in self._book.take_touched():
                if quota.spec.name == ROOT:
                    tree.bring_up_to_date(ROOT)
                found = self._book.objects.get(quota.spec.name)
                if found is not None:
                    await self._write_status(found, quota)
            await asyncio.sleep(STATUS_PERIOD_S)

    async def _write_status(self, found: ElasticQuota, quota: Quota) -> None:
        try:
            body = status_patch(found, quota, may_lower=self._is_settled(found))
        except (ProtocolError, QuantityError) as error:
            log.warning("quota status not written", extra={"quota": found.key, "error": str(error)})
            return
        meta = found.metadata
        if not self._is_settled(found):
            self._book.touch(meta.name)
        if not body:
            return
        try:
            await self._handle.cluster.patch(ElasticQuota, meta.name, body, meta.namespace)
        except errors.NotFound:
            return
        except errors.ApiError as error:
            self._book.touch(meta.name)  # again in the next round
            log.warning("quota status not written", extra={"quota": found.key, "error": str(error)})

    def _is_settled(self, found: ElasticQuota) -> bool:
        """Whether nobody admitted pods to the quota just now."""
        text = found.metadata.annotations.get(labels.QUOTA_CHILD_REQUEST, "")
        known, now_s = self._admitted.get(found.key), self._handle.clock.now()
        if known is None or known[0] != text:
            self._admitted[found.key] = known = (text, now_s)
        return now_s - known[1] >= SETTLING_S

    async def _refresh(self) -> None:
        while True:
            for _, tree, quota in list(self._book.quotas()):
                if not quota.spec.is_parent:
                    tree.bring_up_to_date(quota.spec.name)
            await asyncio.sleep(REFRESH_PERIOD_S)

    def _samples(self) -> dict[Labels, float]:
        found: dict[Labels, float] = {}
        for tree_id, _, quota in self._book.quotas():
            own = (tree_id, str(quota.spec.is_parent).lower(), quota.spec.parent)
            for field, nanos in _fields(quota):
                for name, number in nanos.items():
                    found[(quota.spec.name, name, *own, field)] = to_units(number, nanos_per_unit(name))
        return found

    # Over-use

    async def _revoke(self) -> None:
        period_s = duration.parse(self._args.revoke_pod_interval)
        delay_s = duration.parse(self._args.delay_evict_time)
        while True:
            now_s = self._handle.clock.now()
            seen: dict[str, float] = {}
            for _, _, quota in list(self._book.quotas()):
                name = quota.spec.name
                if name == SYSTEM:
                    continue
                used, runtime = amounts_of(quota.below.used), amounts_of(quota.runtime)
                check = revoke.check_overuse(
                    self._last_under_s.get(name, now_s), now_s, used, runtime, delay_s
                )
                seen[name] = check.last_under_s
                if check.reason is revoke.OveruseReason.EVICT:
                    await self._take_back(quota, used, runtime)
            self._last_under_s = seen
            await asyncio.sleep(max(period_s, 0.1))

    async def _take_back(self, quota: Quota, used: Amounts, runtime: Amounts) -> None:
        assigned = []
        for key, counted in quota.pods.items():
            pod = self._book.pod(key)
            if pod is None or not counted.is_assigned:
                continue
            started = pod.status.start_time
            assigned.append(
                Rival(
                    name=key,
                    quota=quota.spec.name,
                    priority=pod.spec.priority or 0,
                    start_s=parse_rfc3339(started) if started else self._handle.clock.now(),
                    request=amounts_of(counted.amounts),
                    is_preemptible=counted.is_preemptible,
                )
            )
        decision = revoke.revoke(used, runtime, assigned)
        for rival in decision.evict:
            pod = self._book.pod(rival.name)
            if pod is not None:
                await self._evict(pod, quota)

    async def _evict(self, pod: Pod, quota: Quota) -> None:
        meta = pod.metadata
        try:
            await self._handle.cluster.evict(meta.namespace, meta.name, uid=meta.uid)
        except errors.NotFound:
            return
        except errors.ApiError as error:
            log.warning(
                "pod above the runtime of its quota not evicted",
                extra={"pod": pod.key, "quota": quota.spec.name, "error": str(error)},
            )
            return
        log.info(
            "pod above the runtime of its quota evicted", extra={"pod": pod.key, "quota": quota.spec.name}
        )


def reserved_objects(args: ElasticQuotaArgs) -> list[dict[str, Any]]:
    """The three quotas that every cluster has."""
    root_labels = {
        labels.QUOTA_IS_PARENT: "true",
        labels.QUOTA_ALLOW_LENT_RESOURCE: "false",
        labels.QUOTA_PARENT: "",
    }
    namespace = args.quota_group_namespace

    def body(name: str, own: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
        meta: dict[str, Any] = {"name": name, "namespace": namespace}
        return {"metadata": {**meta, "labels": own} if own else meta, **({"spec": spec} if spec else {})}

    return [
        body(ROOT, root_labels, {}),
        body(SYSTEM, {}, {"max": dict(args.system_quota_group_max)}),
        body(DEFAULT, {}, {"max": dict(args.default_quota_group_max)}),
    ]


_ANNOTATIONS: tuple[tuple[str, Annotation[ResourceList]], ...] = (
    ("runtime", quota_annotations.RUNTIME),
    ("request", quota_annotations.REQUEST),
    ("child-request", quota_annotations.CHILD_REQUEST),
    ("guaranteed", quota_annotations.GUARANTEED),
    ("allocated", quota_annotations.ALLOCATED),
    ("non-preemptible-request", quota_annotations.NON_PREEMPTIBLE_REQUEST),
    ("non-preemptible-used", quota_annotations.NON_PREEMPTIBLE_USED),
)


def _fields(quota: Quota) -> Iterator[tuple[str, Nanos]]:
    """What the metric tells, by field."""
    below = quota.below
    counted = quota.runtime if quota.spec.name == ROOT else quota.max
    yield from (
        ("runtime", {name: number for name, number in quota.runtime.items() if name in counted}),
        ("request", quota.request),
        ("child-request", below.request),
        ("guaranteed", quota.guaranteed),
        ("allocated", quota.allocated),
        ("non-preemptible-request", below.non_preemptible_request),
        ("non-preemptible-used", below.non_preemptible_used),
        ("used", below.used),
        ("min", quota.min),
        ("max", quota.max),
        ("sharedWeight", quota.weight),
    )


def status_patch(found: ElasticQuota, quota: Quota, *, may_lower: bool = True) -> dict[str, Any]:
    """The merge patch that makes an object say how its quota stands; {} when it does, zeros left aside.

    `may_lower`: whether child-request may fall, which admission counts with.

    Raises: ProtocolError, QuantityError when what it says now is not readable.
    """
    obj, now = f"ElasticQuota {found.key}", dict(_fields(quota))
    annotations: dict[str, str] = {}
    for field, codec in _ANNOTATIONS:
        said = resource_list.of(codec.read(found.metadata.annotations, obj) or {})
        stands = amounts_of(now[field])
        if codec is quota_annotations.CHILD_REQUEST and not may_lower:
            stands = resource_list.maximum(said, stands)
        if not resource_list.is_equal_ignoring_zeros(said, stands):
            annotations[codec.key] = codec.encode(resource_list.to_wire(stands))
    body: dict[str, Any] = {"metadata": {"annotations": annotations}} if annotations else {}
    used = amounts_of(now["used"])
    if not resource_list.is_equal_ignoring_zeros(resource_list.of(found.status.used), used):
        body["status"] = {"used": resource_list.to_wire(used)}
    return body
