"""Decide whether a request is allowed, by who asks and what is done."""

import re
from collections.abc import Sequence

from koordinator.cluster import errors
from koordinator.cluster.backend import Backend
from koordinator.cluster.protocol import PatchType
from koordinator.local.apiserver import negotiation, query
from koordinator.local.apiserver.auth import Authenticator
from koordinator.local.apiserver.paths import ResourcePath
from koordinator.local.apiserver.query import User
from koordinator.local.apiserver.short_requests import AnyRequest
from koordinator.local.authorization import impersonation
from koordinator.local.authorization.rbac import MASTERS, Authorizer
from koordinator.local.authorization.rules import AccessRequest

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_ONE_NAME = re.compile(r"(?:^|,)metadata\.name==?([^,!=]+)(?:,|$)")


class Access:
    """Decides about whole requests."""

    def __init__(self, authenticator: Authenticator, authorizer: Authorizer, backend: Backend) -> None:
        self.authorizer = authorizer
        self._authenticator = authenticator
        self._backend = backend

    def user_of(self, request: AnyRequest, path: str, target: ResourcePath | None) -> User:
        """Return the user who asks (whom an administrator acts as), if they may do this.

        Raises: Unauthorized, Forbidden; BadRequest for impersonation without a user.
        """
        user = self._authenticator.user_of(request.headers)
        acting = impersonation.wanted(request.headers)
        if acting is not None:
            self._check(user, acting.needs)
            user = User(acting.user, acting.groups, acting.uid)
        if MASTERS not in user.groups:
            self._check(user, self._needs(request, path, target))
        return user

    def _check(self, user: User, needs: Sequence[AccessRequest]) -> None:
        for need in needs:
            decision = self.authorizer.decide(user.name, user.groups, need)
            if not decision.allowed:
                raise impersonation.forbidden(user.name, need, decision.reason)

    def _needs(self, request: AnyRequest, path: str, target: ResourcePath | None) -> list[AccessRequest]:
        if target is None:
            return [AccessRequest(verb=request.method.lower(), path=path)]
        asked = _asked(request, target)
        if asked.verb == "patch" and self._would_create(request, target):
            return [asked, _with_verb(asked, "create")]
        return [asked]

    def _would_create(self, request: AnyRequest, target: ResourcePath) -> bool:
        """Return whether server-side apply would make the object that it speaks of."""
        media = negotiation.body_type(request.headers.get("Content-Type", ""))
        if media != PatchType.APPLY.value or target.subresource:
            return False
        try:
            resource = self._backend.resolve(target.group, target.version, target.plural)
            self._backend.get(resource, target.namespace, target.name)
        except errors.NotFound:
            return True
        return False


def _with_verb(asked: AccessRequest, verb: str) -> AccessRequest:
    return AccessRequest(
        verb=verb,
        group=asked.group,
        resource=asked.resource,
        namespace=asked.namespace,
        name=asked.name,
    )


def _asked(request: AnyRequest, target: ResourcePath) -> AccessRequest:
    """Return the verb and the object of a request, as rules of roles name them."""
    params = request.query
    name, verb = target.name, _VERBS.get(request.method, "")
    if request.method in ("GET", "HEAD"):
        is_watch = target.watch or bool(query.boolean(params, "watch"))
        verb = "watch" if is_watch else "get" if name else "list"
    elif request.method == "DELETE":
        verb = "delete" if name else "deletecollection"
    if not name and verb in ("list", "watch", "deletecollection"):
        one = _ONE_NAME.search(params.get("fieldSelector", ""))
        name = one[1] if one is not None else ""
    # A namespace is in itself, so that roles in it can allow reading it.
    is_namespace = target.plural == "namespaces" and not target.group
    return AccessRequest(
        verb=verb or request.method.lower(),
        group=target.group,
        resource=target.plural,
        subresource=target.subresource,
        namespace=name if is_namespace else target.namespace,
        name=name,
    )


__all__ = ["Access"]
