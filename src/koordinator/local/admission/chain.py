"""Admission as a whole, in Kubernetes' order: what is built in changes the object, then webhooks do; then all of them
judge what came of it, the webhooks last.

Quotas come after everything else and are charged where the object is stored (`admission.quota`), as they must not
count what others refuse.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from koordinator.api.meta import Resource
from koordinator.local.admission.webhooks import WebhookAdmission
from koordinator.local.interfaces import AdmissionAttributes, SchemaCatalog

Json = dict[str, Any]


class AdmissionPlugin(Protocol):
    """A judge of writes that is built in. All calls are synchronous and leave objects as they are."""

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """Return whether it has anything to say about such writes; asked at every write, so it must be cheap."""
        ...

    def mutate(self, asked: AdmissionAttributes, obj: Json) -> Json:
        """Return the object with what the plugin fills in. Raises: ApiError."""
        ...

    def validate(self, asked: AdmissionAttributes, obj: Json | None) -> None:
        """Raises: ApiError when the write is refused."""
        ...


class AdmissionChain:
    """The `Admission` of `local.interfaces`: plugins and webhooks."""

    def __init__(
        self, webhooks: WebhookAdmission, plugins: Sequence[AdmissionPlugin], schemas: SchemaCatalog
    ) -> None:
        self.webhooks = webhooks
        self._plugins = tuple(plugins)
        self._asks = tuple(plugin.wants for plugin in plugins)
        self._schemas = schemas

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """See `local.interfaces.Admission`."""
        if self.webhooks.wants(resource, operation, subresource, namespace):
            return True
        # A loop, since a generator would cost every write more than the questions do.
        for wants in self._asks:  # noqa: SIM110
            if wants(resource, operation, subresource, namespace):
                return True
        return False

    async def admit(self, asked: AdmissionAttributes, obj: Json | None) -> Json | None:
        """See `local.interfaces.Admission`."""
        plugins = [
            each
            for each in self._plugins
            if each.wants(asked.resource, asked.operation, asked.subresource, asked.namespace)
        ]
        for plugin in plugins:
            obj = obj if obj is None else plugin.mutate(asked, obj)
        sent = obj
        obj = await self.webhooks.mutate(asked, obj)
        if plugins and obj is not None and obj is not sent:
            obj = self._schemas.schema_of(asked.resource).default(obj)
        for plugin in plugins:
            plugin.validate(asked, obj)
        await self.webhooks.validate(asked, obj)
        return obj


__all__ = ["AdmissionChain", "AdmissionPlugin"]
