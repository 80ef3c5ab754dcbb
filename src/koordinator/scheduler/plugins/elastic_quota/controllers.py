"""What runs beside ElasticQuota: the reserved quotas, statuses, over-use, and who may try again. Source: spec 06,
sections 2.2, 13.1, 15 and 16.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from koordinator.api import labels
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.scheduler.capabilities import BackgroundController
from koordinator.scheduler.framework import Handle
from koordinator.scheduler.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.checks import QuotaChecks
from koordinator.scheduler.plugins.elastic_quota.hooks import Hooks
from koordinator.scheduler.plugins.elastic_quota.news import QuotaNews
from koordinator.scheduler.plugins.elastic_quota.overuse import OverUse
from koordinator.scheduler.plugins.elastic_quota.places import Place
from koordinator.scheduler.plugins.elastic_quota.pods import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT, ROOT, SYSTEM, Quota
from koordinator.scheduler.plugins.elastic_quota.statuses import Statuses
from koordinator.scheduler.status import Status

log = logging.getLogger(__name__)


class Refusals:
    """Quotas that had no room for a pod, and the room that they had.

    `wake` is told the names of quotas whose pods may fit now. Who gives back places of its own must have been refused
    before it took them (`ElasticQuota.room_for`), or it would make the room that it is woken by.
    """

    def __init__(self, checks: QuotaChecks, wake: Callable[[frozenset[str]], None]) -> None:
        self._checks = checks
        self._wake = wake
        self._rooms: dict[QuotaRef, dict[str, Nanos]] = {}
        """Refusing quota → the room of it and its ancestors with a say, the least of all times it was asked."""
        self._depending: dict[str, set[QuotaRef]] = {}
        """Quota → those that it refused for."""

    def add(self, place: Place) -> None:
        """There was no room for a pod."""
        rooms = self._rooms.setdefault(place.ref, {})
        for quota in place.known:
            name = quota.spec.name
            room, known = self._room(quota), rooms.get(name)
            if known is not None:
                room = {each: min(number, known.get(each, number)) for each, number in room.items()}
            rooms[name] = room
            self._depending.setdefault(name, set()).add(place.ref)

    def look_again(self, changed: set[str]) -> None:
        """These quotas use or may use something else than before."""
        refs = {ref for name in changed & self._depending.keys() for ref in self._depending[name]}
        grown: set[str] = set()
        for ref in refs:
            place, rooms = self._checks.place(ref), self._rooms[ref]
            if isinstance(place, Status):
                self._drop(ref)
            elif any(
                number > rooms.get(quota.spec.name, {}).get(name, number)
                for quota in place.known
                for name, number in self._room(quota).items()
            ):
                self._drop(ref)
                grown.add(ref.name)
        if grown:
            self._wake(frozenset(grown))

    def _drop(self, ref: QuotaRef) -> None:
        for name in self._rooms.pop(ref):
            depending = self._depending[name]
            depending.discard(ref)
            if not depending:
                del self._depending[name]

    def _room(self, quota: Quota) -> Nanos:
        used = quota.below.used
        return {name: number - used.get(name, 0) for name, number in self._checks.limit_of(quota).items()}


class QuotaControllers:
    """The loops; they run on the leader. `wake` is told the names of quotas whose pods may fit now."""

    def __init__(
        self,
        args: ElasticQuotaArgs,
        handle: Handle,
        book: QuotaBook,
        checks: QuotaChecks,
        hooks: Hooks,
        wake: Callable[[frozenset[str]], None],
    ) -> None:
        self._args = args
        self._handle = handle
        self.refusals = Refusals(checks, wake)
        self.news = QuotaNews(book, has_runtime=args.enable_runtime_quota, on_change=self.refusals.look_again)
        self._statuses = Statuses(handle, book, self.news, hooks)
        self._over_use = OverUse(args, handle, book, checks, self.news)

    def loops(self) -> list[BackgroundController]:
        """What runs beside scheduling."""
        found = [
            BackgroundController("ElasticQuota reserved quotas", self._keep_reserved),
            BackgroundController("ElasticQuota status", self._statuses.run),
        ]
        if self._args.enable_runtime_quota and self._args.monitor_all_quotas:
            found.append(BackgroundController("ElasticQuota over-use", self._over_use.run))
        return found

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
