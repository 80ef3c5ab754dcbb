"""Claims to devices with administrative access: only in namespaces whose label allows it.

Source: Kubernetes' API server (KEP-5018), which looks at new claims and templates, and at allocations.
"""

from collections.abc import Iterable
from typing import Any

from koordinator.api.dra import GROUP
from koordinator.api.meta import Resource
from koordinator.local.admission.webhooks import AdmissionPlugin
from koordinator.local.interfaces import AdmissionAttributes
from koordinator.local.schema import errors
from koordinator.local.store import ObjectStore

Json = dict[str, Any]

LABEL = "resource.kubernetes.io/admin-access"
_DETAIL = f"admin access to devices requires the `{LABEL}: true` label on the containing namespace"
_REQUESTS, _RESULTS = "spec.devices.requests", "status.allocation.devices.results"


class DeviceAccess(AdmissionPlugin):
    """The plugin (`admission.chain.Plugin`)."""

    def __init__(self, store: ObjectStore) -> None:
        self._namespaces = store.table("namespaces")

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """See `Plugin`."""
        return (
            resource.group == GROUP
            and resource.plural in ("resourceclaims", "resourceclaimtemplates")
            and operation in ("CREATE", "UPDATE")
        )

    def validate(self, asked: AdmissionAttributes, obj: Json | None) -> None:
        """Raises: Invalid when somebody asks for, or is given, access that the namespace does not allow."""
        if obj is None:
            return
        field = access_asked(obj, asked.subresource)
        if not field or (asked.old is not None and access_asked(asked.old, asked.subresource)):
            return
        namespace = self._namespaces.get("", asked.namespace)
        labels = {} if namespace is None else namespace.obj["metadata"].get("labels") or {}
        if labels.get(LABEL) != "true":
            name = asked.name or obj["metadata"].get("name", "")
            raise errors.invalid_object(asked.resource, name, [errors.forbidden(field, _DETAIL)])


def access_asked(obj: Json, subresource: str) -> str:
    """Return the first field of a claim or template that asks for administrative access, or (of a status) grants it;
    "" when none does."""
    if subresource == "status":
        allocation = (obj.get("status") or {}).get("allocation") or {}
        return _first(_RESULTS, (allocation.get("devices") or {}).get("results") or ())
    spec = obj.get("spec") or {}
    devices = (spec.get("spec") or spec).get("devices") or {}
    return _first(_REQUESTS, (each.get("exactly") or {} for each in devices.get("requests") or ()))


def _first(path: str, items: Iterable[Json]) -> str:
    found = (index for index, each in enumerate(items) if each.get("adminAccess"))
    index = next(found, None)
    return "" if index is None else f"{path}[{index}].adminAccess"
