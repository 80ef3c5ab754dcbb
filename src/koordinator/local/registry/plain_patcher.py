"""Patches when checks are off: nobody keeps book of field owners."""

from typing import Any

from koordinator.api import kinds
from koordinator.cluster import strategic_merge
from koordinator.cluster.errors import UnsupportedMediaType
from koordinator.cluster.protocol import PatchType
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches import json_patch, merge_patch
from koordinator.local.schema.catalog import Catalog


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
        """See `local.interfaces.Patcher.apply`.

        Raises: UnsupportedMediaType for server-side apply.
        """
        if patch_type is PatchType.MERGE:
            merged: dict[str, Any] = merge_patch.merge(current, patch)
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
