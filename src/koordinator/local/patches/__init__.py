"""Patches: JSON patch, merge patch, strategic merge patch, server-side apply, and who owns which field.

For the registry:

* `apply` returns `current` itself when a patch changes nothing.
* After `apply` of APPLY do not call `track` for the same write; after every other patch, create and update do,
  with the defaulted object.
* `track` without `options.field_manager` only carries existing owners over; the HTTP layer fills the manager in
  from the query or the User-Agent, in-process writers leave it empty and pay nothing.
"""

from typing import Any

from koordinator.cluster import strategic_merge
from koordinator.cluster.errors import BadRequest, UnsupportedMediaType
from koordinator.cluster.protocol import PatchType
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches import json_patch
from koordinator.local.patches.apply import server_side
from koordinator.local.schema import Catalog
from koordinator.local.schema import errors as fields
from koordinator.local.schema.decode import word_of
from koordinator.local.schema.types import SchemaType

_CUSTOM_TYPES = ", ".join(t.value for t in (PatchType.JSON, PatchType.MERGE, PatchType.APPLY))


class ObjectPatcher:
    """Computes patched objects; holds no state besides the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def apply(
        self,
        patch_type: PatchType,
        current: dict[str, Any],
        patch: Any,
        context: WriteContext,
    ) -> dict[str, Any]:
        """Return the object that a patch asks for.

        For APPLY, `current` is {} when the object does not exist; managedFields are kept in
        `metadata.managedFields`.

        Raises: BadRequest (malformed), Invalid (a JSON patch that does not fit, `422`), Conflict
        (server-side apply conflicts), UnsupportedMediaType (strategic merge on a custom resource).
        """
        try:
            return self._apply(patch_type, current, patch, context)
        except RecursionError:
            raise BadRequest("error decoding patch: json: exceeded max depth") from None

    def _apply(
        self,
        patch_type: PatchType,
        current: dict[str, Any],
        patch: Any,
        context: WriteContext,
    ) -> dict[str, Any]:
        if patch_type is not PatchType.APPLY and context.options.force:
            why = "may not be specified for non-apply patch"
            raise fields.invalid_options("PatchOptions", fields.forbidden("force", why))
        if patch_type is PatchType.MERGE:
            if not isinstance(patch, dict):
                raise BadRequest(
                    "error decoding patch: json: cannot unmarshal "
                    f"{word_of(patch)} into Go value of type map[string]interface {{}}"
                )
            patched = json_patch.merge(current, patch)
        elif patch_type is PatchType.JSON:
            patched = json_patch.apply(current, patch)
        elif patch_type is PatchType.STRATEGIC:
            if self._catalog.is_custom(context.resource):
                raise UnsupportedMediaType(
                    "the body of the request was in an unknown format - accepted media types include: "
                    f"{_CUSTOM_TYPES}"
                )
            _check_directives(patch)
            patched = strategic_merge.merge(current, patch, self._type_of(context))
        else:
            patched = server_side.apply(self._type_of(context), current, patch, context)
        if not isinstance(patched, dict):
            raise BadRequest(
                f"json: cannot unmarshal {word_of(patched)} into Go value of type map[string]interface {{}}"
            )
        return patched

    def track(
        self,
        old: dict[str, Any] | None,
        new: dict[str, Any],
        context: WriteContext,
    ) -> dict[str, Any]:
        """`new` with managedFields brought up to date after a create (`old` None) or a non-apply update.

        Costs next to nothing without a field manager. The HTTP layer fills that in as the API server
        does: the query parameter, else the part of the User-Agent before the first `/`. Raises: BadRequest.
        """
        if not context.options.field_manager and old is new:
            return new
        try:
            return server_side.track(self._catalog.type_of(context.resource), old, new, context)
        except RecursionError:
            raise BadRequest("json: exceeded max depth") from None

    def _type_of(self, context: WriteContext) -> SchemaType:
        return self._catalog.type_of(context.resource, context.subresource)


def _check_directives(patch: Any) -> None:
    """Raises: BadRequest when a `$patch` directive somewhere in a patch is no word."""
    if isinstance(patch, dict):
        directive = patch.get(strategic_merge.PATCH)
        if directive is not None and not isinstance(directive, str):
            raise BadRequest(f"Unknown patch type: {directive}")
        for value in patch.values():
            _check_directives(value)
    elif isinstance(patch, list):
        for item in patch:
            _check_directives(item)
