"""The schemas of everything that is served: built-in kinds on demand, custom ones as their CRDs come and go."""

from collections.abc import Callable, Iterable
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.builtin import models
from koordinator.local.schema.builtin.schema import BuiltinSchema
from koordinator.local.schema.custom import definition
from koordinator.local.schema.custom.schema import CustomSchema
from koordinator.local.schema.types import SchemaType

_Key = tuple[str, str, str]

SUBRESOURCE_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
"""Subresources whose body is of another kind than the resource itself: group, version, kind."""


class Catalog:
    """Schemas of all served resources.

    `builtin` are the resources that the registry serves without any CRD; nothing is read for one of them until
    its schema is first asked for.
    """

    def __init__(self, builtin: Iterable[Resource] = ()) -> None:
        self._builtin = {_key(resource): resource for resource in builtin}
        self._schemas: dict[_Key, BuiltinSchema] = {}
        self._custom: dict[_Key, CustomSchema] = {}
        self._served: dict[str, list[Resource]] = {}
        self._listeners: list[Callable[[], None]] = []

    def schema_of(self, resource: Resource) -> BuiltinSchema | CustomSchema:
        """Raises: MissingModel for a resource that is neither built in nor defined by a CRD."""
        key = _key(resource)
        custom = self._custom.get(key)
        if custom is not None:
            return custom
        found = self._schemas.get(key)
        if found is None:
            shape = models.struct_of(models.model_of(*key))
            found = self._schemas[key] = BuiltinSchema(resource, shape)
        return found

    def type_of(self, resource: Resource, subresource: str = "") -> SchemaType:
        """Return the shape of a resource, or of the object that one of its subresources takes."""
        other = SUBRESOURCE_KINDS.get(subresource)
        if other is not None:
            return models.struct_of(models.model_of(*other))
        return self.schema_of(resource).type

    def is_custom(self, resource: Resource) -> bool:
        """Return whether a CRD defines the resource."""
        return _key(resource) in self._custom

    def check_crd(self, crd: dict[str, Any]) -> list[StatusCause]:
        """Return why a CustomResourceDefinition cannot be served; give it decoded and defaulted."""
        try:
            causes = definition.check(crd)
            if not causes:  # compiling goes deeper than checking: `add_crd` must not be the one to fail
                for resource, schema in definition.resources_of(crd):
                    CustomSchema(resource, schema)
            return causes
        except RecursionError:
            detail = "schemas are nested more deeply than this API server can walk"
            return [errors.forbidden("spec.versions", detail)]

    def add_crd(self, crd: dict[str, Any]) -> list[Resource]:
        """Serve a checked CRD, or its new state: versions that it no longer serves are forgotten."""
        self._forget(crd)
        served = definition.resources_of(crd)
        for resource, schema in served:
            scale = definition.scale_of(crd, resource.version)
            self._custom[_key(resource)] = CustomSchema(resource, schema, scale)
        self._served[crd["metadata"]["name"]] = [resource for resource, _ in served]
        self._notify()
        return self._served[crd["metadata"]["name"]]

    def remove_crd(self, crd: dict[str, Any]) -> None:
        """Stop serving a CRD; nothing happens when it was not served."""
        self._forget(crd)
        self._notify()

    def _forget(self, crd: dict[str, Any]) -> None:
        for resource in self._served.pop(crd["metadata"]["name"], ()):
            self._custom.pop(_key(resource), None)

    def resources(self) -> list[Resource]:
        """Everything described, built-in kinds first."""
        return [*self._builtin.values(), *(schema.resource for schema in self._custom.values())]

    def custom_schema(self, resource: Resource) -> dict[str, Any] | None:
        """Return the `openAPIV3Schema` of a custom resource; None for built-in ones."""
        found = self._custom.get(_key(resource))
        return found.schema if found else None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a CRD comes, changes or goes (documents made from the catalog are stale)."""
        self._listeners.append(listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _key(resource: Resource) -> _Key:
    return resource.group, resource.version, resource.kind
