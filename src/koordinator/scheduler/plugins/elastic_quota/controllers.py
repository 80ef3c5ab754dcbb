"""What runs beside ElasticQuota: the reserved quotas, statuses, over-use.

Source: behaviour/elastic-quota 2.2, 15 and 16.
"""

import asyncio
import logging
from typing import Any

from koordinator.api import labels
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.scheduler.config.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugin.capabilities import BackgroundController
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.hooks import Hooks
from koordinator.scheduler.plugins.elastic_quota.news import QuotaNews
from koordinator.scheduler.plugins.elastic_quota.overuse import OverUse
from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT, ROOT, SYSTEM
from koordinator.scheduler.plugins.elastic_quota.statuses import Statuses

log = logging.getLogger(__name__)


class QuotaControllers:
    """The loops; they run on the leader."""

    def __init__(
        self, args: ElasticQuotaArgs, handle: Handle, book: QuotaBook, news: QuotaNews, hooks: Hooks
    ) -> None:
        self._args = args
        self._handle = handle
        self._statuses = Statuses(handle, book, news, hooks)
        self.over_use = OverUse(args, handle, book, news)

    def loops(self) -> list[BackgroundController]:
        """What runs beside scheduling."""
        found = [
            BackgroundController("ElasticQuota reserved quotas", self._keep_reserved),
            BackgroundController("ElasticQuota status", self._statuses.run),
        ]
        if self._args.enable_runtime_quota and self._args.monitor_all_quotas:
            found.append(BackgroundController("ElasticQuota over-use", self.over_use.run))
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
