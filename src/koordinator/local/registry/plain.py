"""Stand in for schemas and patches when checks are off (simulation at full speed).

Objects are taken as they come: the caller is this project's own code. Their life cycle is the same as ever; nobody
keeps book of field owners.
"""

from typing import Any

from koordinator.api import kinds
from koordinator.api.meta import Resource
from koordinator.cluster import strategic_merge
from koordinator.cluster.errors import StatusCause, UnsupportedMediaType
from koordinator.cluster.protocol import PatchType
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches import json_patch
from koordinator.local.schema.catalog import Catalog


class PlainSchema:
    """Accepts everything, changes nothing."""

    def decode(self, obj: dict[str, Any], field_validation: str) -> tuple[dict[str, Any], list[str]]:
        return obj, []

    def default(self, obj: dict[str, Any]) -> dict[str, Any]:
        return obj

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[StatusCause]:
        return []


_PLAIN = PlainSchema()


class PlainCatalog:
    """Serves every definition as it says, without looking at its schemas."""

    def schema_of(self, resource: Resource) -> PlainSchema:
        return _PLAIN

    def check_crd(self, crd: dict[str, Any]) -> list[StatusCause]:
        return []

    def add_crd(self, crd: dict[str, Any]) -> list[Resource]:
        spec, names = crd["spec"], crd["spec"]["names"]
        return [
            Resource(
                group=spec["group"],
                version=version["name"],
                kind=names["kind"],
                plural=names["plural"],
                namespaced=spec.get("scope", "Namespaced") == "Namespaced",
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                subresources=tuple(version.get("subresources") or ()),
            )
            for version in spec["versions"]
            if version.get("served", True)
        ]

    def remove_crd(self, crd: dict[str, Any]) -> None:
        """Nothing was kept."""


class PlainPatcher:
    """JSON, merge and strategic merge patches; the last read merge keys from the built-in kinds' schemas."""

    def __init__(self) -> None:
        self._catalog = Catalog(kinds.BUILT_IN)  # reads nothing until it is asked

    def apply(
        self,
        patch_type: PatchType,
        current: dict[str, Any],
        patch: Any,
        context: WriteContext,
    ) -> dict[str, Any]:
        """See `local.interfaces.Patcher.apply`. Raises: UnsupportedMediaType for server-side apply."""
        if patch_type is PatchType.MERGE:
            merged: dict[str, Any] = json_patch.merge(current, patch)
            return merged
        if patch_type is PatchType.JSON:
            patched: dict[str, Any] = json_patch.apply(current, patch)
            return patched
        if patch_type is PatchType.STRATEGIC and context.resource in kinds.BUILT_IN:
            shape = self._catalog.type_of(context.resource, context.subresource)
            return strategic_merge.merge(current, patch, shape)
        raise UnsupportedMediaType(
            f"{patch_type.value} of {context.resource.qualified} needs field owners or a custom schema, and this "
            "cluster runs without checks: send a merge patch"
        )

    def track(
        self,
        old: dict[str, Any] | None,
        new: dict[str, Any],
        context: WriteContext,
    ) -> dict[str, Any]:
        """`new` as it is."""
        return new
