"""OpenAPI documents of what is served, for `kubectl explain` and `kubectl apply`.

`OpenApi(catalog, "v1.35.0")` answers `/openapi/v2`, `/openapi/v3` and `/openapi/v3/...` with JSON, generated from
the same types that decoding uses.
"""

from koordinator.local.openapi.documents import OpenApi

__all__ = ["OpenApi"]
