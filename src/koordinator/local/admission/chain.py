"""Admission as a whole, in Kubernetes' order: what is built in changes the object, then webhooks do; then all of them
judge what came of it, the webhooks last.

Quotas come after everything else and are charged where the object is stored (`admission.quota`), as they must not
count what others refuse.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import Forbidden, StatusDetails
from koordinator.local.admission.webhooks import WebhookAdmission
from koordinator.local.interfaces import SchemaCatalog

Json = dict[str, Any]


class AdmissionAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """A write that is to be admitted; `old` is the stored object, if any."""

    operation: str
    resource: Resource
    subresource: str
    namespace: str
    name: str
    old: Json | None
    options: WriteOptions

    def forbidden(self, why: str, obj: Json | None = None) -> Forbidden:
        """The refusal as the API server words it; `obj` names the object where the request does not."""
        meta = (obj or {}).get("metadata") or {}
        name = self.name or meta.get("name") or meta.get("generateName") or ""
        resource = self.resource
        shown = f'{resource.qualified} "{name}"' if name else resource.qualified
        details = StatusDetails(name=name, group=resource.group, kind=resource.plural)
        return Forbidden(f"{shown} is forbidden: {why}", details=details)


class AdmissionPlugin(Protocol):
    """A judge of writes that is built in. All calls are synchronous and leave objects as they are."""

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """Return whether it has anything to say about such writes; asked at every write, so it must be cheap."""
        ...

    def mutate(self, asked: AdmissionAttributes, obj: Json) -> Json:
        """The object with what the plugin fills in. Raises: ApiError."""
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

    async def admit(
        self,
        operation: str,
        resource: Resource,
        namespace: str,
        name: str,
        obj: Json | None,
        old: Json | None,
        options: WriteOptions,
        subresource: str = "",
    ) -> Json | None:
        """See `local.interfaces.Admission`."""
        asked = AdmissionAttributes(
            operation=operation,
            resource=resource,
            subresource=subresource,
            namespace=namespace,
            name=name,
            old=old,
            options=options,
        )
        judges = [each for each in self._plugins if each.wants(resource, operation, subresource, namespace)]
        for judge in judges:
            obj = obj if obj is None else judge.mutate(asked, obj)
        sent = obj
        obj = await self.webhooks.mutate(operation, resource, namespace, name, obj, old, options, subresource)
        if judges and obj is not None and obj is not sent:
            obj = self._schemas.schema_of(resource).default(obj)
        for judge in judges:
            judge.validate(asked, obj)
        await self.webhooks.validate(operation, resource, namespace, name, obj, old, options, subresource)
        return obj


__all__ = ["AdmissionAttributes", "AdmissionChain", "AdmissionPlugin"]
