"""Acting as somebody else (`kubectl --as`): what must be allowed for it, and who it is then. Refusals are in the API
server's words.

Source: the impersonation filter of the API server.
"""

import json
from urllib.parse import unquote

import msgspec
from multidict import CIMultiDictProxy

from koordinator.cluster import errors
from koordinator.local.authorization.rules import AccessRequest

_USER, _GROUP, _UID, _EXTRA = "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "impersonate-extra-"
_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATION = "authentication.k8s.io"
ANONYMOUS = "system:anonymous"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"


class Acting(msgspec.Struct, frozen=True):
    """The user that a request wants to be, and the requests that must be allowed to whoever sent it."""

    user: str
    groups: tuple[str, ...]
    uid: str
    needs: tuple[AccessRequest, ...]


def wanted(headers: CIMultiDictProxy[str]) -> Acting | None:
    """Return the user for whom the headers ask; None when they ask for nobody. Raises: BadRequest (a group without
    a user).
    """
    name = headers.get(_USER, "")
    if not name:
        if _GROUP in headers or _UID in headers:
            raise errors.BadRequest(
                "requested a group or uid without impersonating a user (Impersonate-User)"
            )
        return None
    groups = headers.getall(_GROUP, [])
    namespace, account = _account(name)
    needs = [
        AccessRequest(verb="impersonate", resource="serviceaccounts", namespace=namespace, name=account)
        if account
        else AccessRequest(verb="impersonate", resource="users", name=name)
    ]
    needs += [AccessRequest(verb="impersonate", resource="groups", name=group) for group in groups]
    needs += _extras(headers)
    uid = headers.get(_UID, "")
    if uid:
        needs.append(AccessRequest(verb="impersonate", group=_AUTHENTICATION, resource="uids", name=uid))
    if account and not groups:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return Acting(name, _with_standing(name, groups), uid, tuple(needs))


def _account(name: str) -> tuple[str, str]:
    """Namespace and name of a ServiceAccount's user name; empty for other users."""
    namespace, _, account = name.removeprefix(_ACCOUNT).partition(":")
    is_account = name.startswith(_ACCOUNT) and bool(namespace) and bool(account) and ":" not in account
    return (namespace, account) if is_account else ("", "")


def _extras(headers: CIMultiDictProxy[str]) -> list[AccessRequest]:
    return [
        AccessRequest(
            verb="impersonate",
            group=_AUTHENTICATION,
            resource="userextras",
            subresource=unquote(key.lower().removeprefix(_EXTRA)),
            name=value,
        )
        for key, value in headers.items()
        if key.lower().startswith(_EXTRA)
    ]


def _with_standing(name: str, groups: list[str]) -> tuple[str, ...]:
    """Return the groups with the one that says whether the user is known, unless they say so themselves."""
    if name == ANONYMOUS:
        return tuple(groups) if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    if AUTHENTICATED in groups or UNAUTHENTICATED in groups:
        return tuple(groups)
    return (*groups, AUTHENTICATED)


__all__ = ["ANONYMOUS", "AUTHENTICATED", "UNAUTHENTICATED", "Acting", "forbidden", "wanted"]


def forbidden(user: str, request: AccessRequest, reason: str) -> errors.Forbidden:
    """Return the answer to a request that nothing allows; `reason` is the authorizer's, or empty."""
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
