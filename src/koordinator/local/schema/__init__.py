"""Check objects: types, defaults and checks of built-in kinds and custom resources.

`Catalog(builtin_resources)` has the schemas of all that is served. Its order of use, per write:
`decode` (types and unknown fields) → `default` → the registry's own part (uid, addresses, priority) → `validate`.
All are pure and copy-on-write: an object that needs no change comes back as it is, and `validate` skips the
parts of an update that are the very objects of before.

`errors` has the API server's words: compose every 422 with `errors.invalid_object(resource, name, causes)` and
every decoding failure of a patched object with `errors.invalid_patch`. `names.check_metadata` is part of `validate`.
A pod's `spec.nodeName` is set by the binding subresource, which must not run `validate`.
"""

from koordinator.local.schema.catalog import Catalog

__all__ = ["Catalog"]
