"""Patches when checks are off: nobody keeps book of field owners."""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import UnsupportedMediaType
from koordinator.cluster.protocol import PatchType
from koordinator.local.patches import json_patch, merge_patch


class PlainPatcher:
    """JSON and merge patches, which need no schema."""

    def apply(
        self,
        patch_type: PatchType,
        current: dict[str, Any],
        patch: Any,
        *,
        resource: Resource,
        options: WriteOptions,
        now_s: float,
        subresource: str = "",
    ) -> dict[str, Any]:
        """See `local.interfaces.Patcher.apply`.

        Raises: UnsupportedMediaType for patches that need schemas.
        """
        if patch_type is PatchType.MERGE:
            merged: dict[str, Any] = merge_patch.merge(current, patch)
            return merged
        if patch_type is PatchType.JSON:
            patched: dict[str, Any] = json_patch.apply(current, patch)
            return patched
        raise UnsupportedMediaType(
            f"{patch_type.value} needs schemas, and this cluster runs without checks: send a merge patch"
        )

    def track(
        self,
        old: dict[str, Any] | None,
        new: dict[str, Any],
        *,
        resource: Resource,
        options: WriteOptions,
        operation: str,
        now_s: float,
        subresource: str = "",
    ) -> dict[str, Any]:
        """`new` as it is."""
        return new
