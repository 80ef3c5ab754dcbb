"""Stand in for schemas and patches when checks are off (simulation at full speed).

Objects are taken as they come: the caller is this project's own code. Their life cycle is the same as ever; nobody
keeps book of field owners.
"""

from typing import Any

from koordinator.api import kinds
from koordinator.api.meta import Resource
from koordinator.cluster.errors import UnsupportedMediaType
from koordinator.cluster.protocol import PatchType
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches import ObjectPatcher
from koordinator.local.schema import Catalog
from koordinator.local.schema.custom import definition


class PlainCatalog(Catalog):
    """Serves every definition as it says, without looking at its schemas."""

    def add_crd(self, crd: dict[str, Any]) -> list[Resource]:
        return [resource for resource, _ in definition.resources_of(crd)]


class PlainPatcher(ObjectPatcher):
    """Refuses patches that need field owners or a custom schema."""

    def apply(
        self, patch_type: PatchType, current: dict[str, Any], patch: Any, context: WriteContext
    ) -> dict[str, Any]:
        """See `ObjectPatcher`. Raises: UnsupportedMediaType, besides."""
        is_strategic = patch_type is PatchType.STRATEGIC
        if patch_type is PatchType.APPLY or (is_strategic and context.resource not in kinds.BUILT_IN):
            raise UnsupportedMediaType(
                f"{patch_type.value} of {context.resource.qualified} needs field owners or a custom schema, and this "
                "cluster runs without checks: send a merge patch"
            )
        return super().apply(patch_type, current, patch, context)
