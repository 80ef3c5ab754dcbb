"""Patches: JSON patch, merge patch, strategic merge patch, server-side apply, and who owns which field.

`ObjectPatcher(catalog)` is the `Patcher` of `local.interfaces`; `catalog` is a `local.schema.Catalog`.
For the registry:

* `apply` returns `current` itself when a patch changes nothing.
* After `apply` of APPLY do not call `track` for the same write; after every other patch, create and update do,
  with the defaulted object.
* `track` without `options.field_manager` only carries existing owners over; the HTTP layer fills the manager in
  from the query or the User-Agent, in-process writers leave it empty and pay nothing.
"""

from koordinator.local.patches.patcher import ObjectPatcher, Shapes

__all__ = ["ObjectPatcher", "Shapes"]
