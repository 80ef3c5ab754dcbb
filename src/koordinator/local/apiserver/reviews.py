"""Reviews: who am I, may I, may they. Without RBAC every authenticated user may do everything.

`kubectl auth whoami`, `kubectl auth can-i` and webhooks that delegate authentication ask these.
"""

from collections.abc import Callable
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.local.apiserver.auth import Authenticator
from koordinator.local.apiserver.calls import Call
from koordinator.local.apiserver.discovery import Served
from koordinator.local.apiserver.extras import create_only
from koordinator.local.apiserver.query import User

_ANONYMOUS = "system:anonymous"
_EVERYTHING = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
_EVERY_URL = {"verbs": ["*"], "nonResourceURLs": ["*"]}

Answer = Callable[[Call, dict[str, Any]], dict[str, Any]]


class Review:
    """A resource that can only be posted: the answer is its status."""

    def __init__(self, resource: Resource, status: Answer) -> None:
        self.served = Served(resource, ("create",))
        self._status = status

    def get(self, call: Call) -> dict[str, Any]:
        raise create_only()

    def list(self, call: Call) -> list[dict[str, Any]]:
        raise create_only()

    async def create(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        resource = self.served.resource
        spec = body.get("spec")
        if spec is not None and not isinstance(spec, dict):
            raise errors.BadRequest(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"json: cannot unmarshal into Go struct field {resource.kind}.spec"
            )
        answer = {**body, "kind": resource.kind, "apiVersion": resource.api_version}
        answer.setdefault("metadata", {})
        answer["status"] = self._status(call, spec or {})
        return answer


def all_reviews(authenticator: Authenticator) -> list[Review]:
    """Every review that is served."""

    def token_status(call: Call, spec: dict[str, Any]) -> dict[str, Any]:
        secret = spec.get("token")
        user = authenticator.user_of_token(secret) if isinstance(secret, str) else None
        if user is None:
            return {"authenticated": False, "user": {}, "error": "the token is not known"}
        return {"authenticated": True, "user": _user_info(user)}

    authentication, authorization = "authentication.k8s.io", "authorization.k8s.io"
    return [
        Review(_resource(authentication, "TokenReview"), token_status),
        Review(
            _resource(authentication, "SelfSubjectReview"),
            lambda call, spec: {"userInfo": _user_info(call.user)},
        ),
        Review(_resource(authorization, "SelfSubjectAccessReview"), _self_access),
        Review(_resource(authorization, "SubjectAccessReview"), _access),
        Review(_resource(authorization, "LocalSubjectAccessReview", namespaced=True), _access),
        Review(_resource(authorization, "SelfSubjectRulesReview"), _rules),
    ]


def _resource(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    return Resource(group=group, version="v1", kind=kind, plural=kind.lower() + "s", namespaced=namespaced)


def _self_access(call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    _check_attributes(spec)
    return _decision(call.user.name)


def _access(call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    _check_attributes(spec)
    user = spec.get("user") or ""
    if not user and not spec.get("groups"):
        raise errors.Invalid("spec: Invalid value: at least one of user or group must be specified")
    return _decision(user)


def _decision(user: Any) -> dict[str, Any]:
    if user == _ANONYMOUS:
        return {"allowed": False, "reason": "anonymous users may do nothing here"}
    return {"allowed": True, "reason": "every authenticated user may do everything here"}


def _rules(call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    return {"resourceRules": [_EVERYTHING], "nonResourceRules": [_EVERY_URL], "incomplete": False}


def _check_attributes(spec: dict[str, Any]) -> None:
    if bool(spec.get("resourceAttributes")) == bool(spec.get("nonResourceAttributes")):
        raise errors.Invalid(
            "spec.resourceAttributes: Invalid value: exactly one of nonResourceAttributes or "
            "resourceAttributes must be specified"
        )


def _user_info(user: User) -> dict[str, Any]:
    return {"username": user.name, "groups": list(user.groups)}
