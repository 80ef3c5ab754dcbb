"""Reviews: who am I, may I, may they.

`kubectl auth whoami`, `kubectl auth can-i` and webhooks that delegate authentication ask these.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.errors import StatusCause, StatusDetails
from koordinator.local.apiserver.auth import Authenticator
from koordinator.local.apiserver.calls import ResourceCall
from koordinator.local.apiserver.discovery import Served
from koordinator.local.apiserver.extras import create_only
from koordinator.local.apiserver.query import User
from koordinator.local.authorization.rbac import Authorizer
from koordinator.local.authorization.rules import AccessRequest
from koordinator.local.schema.builtin import models
from koordinator.local.schema.builtin.schema import IGNORE, BuiltinSchema

_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"

Answer = Callable[[ResourceCall, dict[str, Any]], dict[str, Any]]


class Review:
    """A resource that can only be posted: the answer is its status."""

    def __init__(self, resource: Resource, status: Answer) -> None:
        self.served = Served(resource, ("create",))
        self._status = status

    def get(self, call: ResourceCall) -> dict[str, Any]:
        raise create_only()

    def list(self, call: ResourceCall) -> list[dict[str, Any]]:
        raise create_only()

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        resource = self.served.resource
        decoded, _ = self._schema.decode(body, IGNORE)
        answer = {**decoded, "kind": resource.kind, "apiVersion": resource.api_version}
        answer.setdefault("metadata", {})
        answer["status"] = self._status(call, decoded.get("spec", {}))
        return answer

    @functools.cached_property
    def _schema(self) -> BuiltinSchema:
        """Return the type of what is asked, which the answer repeats: so it must be of its type, as every stored
        object is.
        """
        resource = self.served.resource
        shape = models.struct_of(models.model_of(resource.group, resource.version, resource.kind))
        return BuiltinSchema(resource, shape)


def all_reviews(authenticator: Authenticator, authorizer: Authorizer) -> list[Review]:
    """Return every review that is served."""
    reviews = _AccessReviews(authorizer)

    def token_status(call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        secret = spec.get("token")
        user = authenticator.user_of_token(secret) if isinstance(secret, str) else None
        if user is None:
            return {"authenticated": False, "user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": _user_info(user)}

    return [
        Review(_resource(_AUTHENTICATION, "TokenReview"), token_status),
        Review(
            _resource(_AUTHENTICATION, "SelfSubjectReview"),
            lambda call, spec: {"userInfo": _user_info(call.user)},
        ),
        Review(_resource(_AUTHORIZATION, "SelfSubjectAccessReview"), reviews.own),
        Review(_resource(_AUTHORIZATION, "SubjectAccessReview"), reviews.others),
        Review(_resource(_AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True), reviews.local),
        Review(_resource(_AUTHORIZATION, "SelfSubjectRulesReview"), reviews.rules),
    ]


def _resource(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    return Resource(group=group, version="v1", kind=kind, plural=kind.lower() + "s", namespaced=namespaced)


class _AccessReviews:
    """The reviews of `authorization.k8s.io`."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def own(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        return self._decision(call.user.name, call.user.groups, _request_of(spec))

    def others(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        asked = _request_of(spec)
        return self._decision(*_subject_of(spec), asked)

    def local(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        path = spec.get("nonResourceAttributes")
        if path:
            shown = json.dumps(
                {key.capitalize(): value for key, value in path.items()}, separators=(",", ":")
            )
            raise _invalid("spec.nonResourceAttributes", shown, "disallowed on this kind of request")
        asked = _request_of(spec)
        if asked.namespace != call.target.namespace:
            shown = json.dumps(asked.namespace)
            raise _invalid("spec.resourceAttributes.namespace", shown, "must match metadata.namespace")
        return self._decision(*_subject_of(spec), asked)

    def rules(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        namespace = spec.get("namespace")
        if not isinstance(namespace, str) or not namespace:
            raise errors.BadRequest("no namespace on request")
        held, problems = self._authorizer.rules_of(call.user.name, call.user.groups, namespace)
        raw = [rule.raw for rule in held]
        status: dict[str, Any] = {
            "resourceRules": [
                _only(rule, "verbs", "apiGroups", "resources", "resourceNames")
                for rule in raw
                if rule.get("resources")
            ],
            "nonResourceRules": [
                _only(rule, "verbs", "nonResourceURLs") for rule in raw if rule.get("nonResourceURLs")
            ],
            "incomplete": False,
        }
        if problems:
            status["evaluationError"] = ", ".join(problems)
        return status

    def _decision(self, user: str, groups: tuple[str, ...], asked: AccessRequest) -> dict[str, Any]:
        decision = self._authorizer.decide(user, groups, asked)
        return {"allowed": decision.allowed, **({"reason": decision.reason} if decision.reason else {})}


def _only(rule: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {field: rule[field] for field in fields if rule.get(field)}


def _subject_of(spec: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the user and the groups that are asked about. Raises: Invalid."""
    user, groups = spec.get("user") or "", spec.get("groups") or []
    if not user and not groups:
        raise _invalid("spec.user", '""', "at least one of user or group must be specified")
    if not isinstance(user, str) or not isinstance(groups, list):
        raise errors.BadRequest("spec.user must be a string, spec.groups a list of strings")
    return user, tuple(str(group) for group in groups)


def _request_of(spec: dict[str, Any]) -> AccessRequest:
    """Return the request that is asked about. Raises: BadRequest, Invalid."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if bool(resource is not None) == bool(path is not None):
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise _invalid("spec.resourceAttributes", "null", why)
    attributes = resource if resource is not None else path
    if not isinstance(attributes, dict) or not all(
        isinstance(attributes.get(field, ""), str) for field in _TEXTS
    ):
        raise errors.BadRequest("attributes of an access review must be strings")
    if resource is None:
        return AccessRequest(verb=attributes.get("verb", ""), path=attributes.get("path", ""))
    return AccessRequest(
        verb=attributes.get("verb", ""),
        group=attributes.get("group", ""),
        resource=attributes.get("resource", ""),
        subresource=attributes.get("subresource", ""),
        namespace=attributes.get("namespace", ""),
        name=attributes.get("name", ""),
    )


_TEXTS = ("verb", "group", "resource", "subresource", "namespace", "name", "path")


def _invalid(field: str, shown: str, why: str) -> errors.Invalid:
    message = f"Invalid value: {shown}: {why}"
    cause = StatusCause(reason="FieldValueInvalid", message=message, field=field)
    return errors.Invalid(
        f'.{_AUTHORIZATION} "" is invalid: {field}: {message}',
        details=StatusDetails(group=_AUTHORIZATION, causes=[cause]),
    )


def _user_info(user: User) -> dict[str, Any]:
    uid = {"uid": user.uid} if user.uid else {}
    return {"username": user.name, **uid, "groups": list(user.groups)}
