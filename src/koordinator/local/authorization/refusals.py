"""Tell users that they may not do something, in the API server's words."""

import json

from koordinator.cluster import errors
from koordinator.local.authorization.rules import AccessRequest


def forbidden(user: str, request: AccessRequest, reason: str) -> errors.Forbidden:
    """The answer to a request that nothing allows; `reason` is the authorizer's, or empty."""
    why = f": {reason}" if reason else ""
    if not request.resource:
        return errors.Forbidden(
            f"forbidden: User {json.dumps(user, ensure_ascii=False)} cannot {request.verb} path "
            f'"{request.path}"{why}',
            details=errors.StatusDetails(),
        )
    qualified = f"{request.resource}.{request.group}" if request.group else request.resource
    shown = f'{qualified} "{request.name}"' if request.name else qualified
    details = errors.StatusDetails(name=request.name, group=request.group, kind=request.resource)
    return errors.Forbidden(f"{shown} is forbidden: {_sentence(user, request)}{why}", details=details)


def _sentence(user: str, request: AccessRequest) -> str:
    scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    return (
        f"User {json.dumps(user, ensure_ascii=False)} cannot {request.verb} resource "
        f'"{request.whole_resource}" in API group "{request.group}" {scope}'
    )


__all__ = ["forbidden"]
