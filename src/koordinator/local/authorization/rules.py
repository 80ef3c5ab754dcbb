"""Decide what a rule of a role allows, and what must be allowed for acting as somebody else (`kubectl --as`), and who
it is then; refusals are in the API server's words. Pure.

Sources: Kubernetes, "Using RBAC Authorization", and its evaluation helpers; the impersonation filter of the API
server.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from multidict import CIMultiDictProxy

from koordinator.cluster import errors

_USER, _GROUP, _UID, _EXTRA = "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "impersonate-extra-"
ALL = "*"


class AccessRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The action that somebody wants: `verb` to a resource, or to a `path` that is none (then `resource` is empty).

    `namespace` is empty for cluster-scoped objects and for lists across namespaces, `name` where no single object
    is meant.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def whole_resource(self) -> str:
        """`pods`, or `pods/log` with a subresource."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class PolicyRule(msgspec.Struct, frozen=True):
    """One rule of a Role or ClusterRole; an empty `names` means every name."""

    verbs: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()
    raw: dict[str, Any] = {}
    """The rule as it stands in the role."""

    def allows(self, request: AccessRequest) -> bool:
        """Return whether the rule lets its subjects do this."""
        if request.verb not in self.verbs and ALL not in self.verbs:
            return False
        if not request.resource:
            return any(_url_covers(url, request.path) for url in self.urls)
        return (
            (request.group in self.groups or ALL in self.groups)
            and _resource_covers(self.resources, request.whole_resource)
            and (not self.names or request.name in self.names)
        )


def read(raw: Any) -> PolicyRule:
    """Return the rule that an object of the API says; parts of a wrong type allow nothing."""
    raw = raw if isinstance(raw, dict) else {}
    return PolicyRule(
        verbs=frozenset(_texts(raw, "verbs")),
        groups=frozenset(_texts(raw, "apiGroups")),
        resources=frozenset(_texts(raw, "resources")),
        names=frozenset(_texts(raw, "resourceNames")),
        urls=tuple(_texts(raw, "nonResourceURLs")),
        raw=raw,
    )


def _texts(raw: dict[str, Any], field: str) -> list[str]:
    found = raw.get(field)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _resource_covers(allowed: frozenset[str], wanted: str) -> bool:
    """`*`, the resource itself, or `*/scale` for a subresource."""
    if wanted in allowed or ALL in allowed:
        return True
    _, slash, below = wanted.partition("/")
    return bool(slash) and f"*/{below}" in allowed


def _url_covers(allowed: str, path: str) -> bool:
    return allowed == path or (allowed.endswith(ALL) and path.startswith(allowed.rstrip(ALL)))


# Who gives away rights must hold them


def missing(held: Sequence[PolicyRule], wanted: Iterable[PolicyRule]) -> list[str]:
    """Return what of `wanted` no rule of `held` covers, as the API server prints it, sorted; empty when all is
    covered."""
    verbs_of: dict[tuple[str, str, str], list[str]] = {}
    lines: list[str] = []
    for rule in wanted:
        for request, is_named in _atoms(rule):
            if any(_covers(one, request, is_named=is_named) for one in held):
                continue
            if request.path:
                lines.append(_printed(nonResourceURLs=[request.path], verbs=[request.verb]))
            else:
                key = (request.group, request.resource, request.name if is_named else "")
                verbs_of.setdefault(key, []).append(request.verb)
    for (group, resource, name), verbs in verbs_of.items():
        named = {"resourceNames": [name]} if name else {}
        lines.append(_printed(apiGroups=[group], resources=[resource], **named, verbs=verbs))
    return sorted(lines)


def _atoms(rule: PolicyRule) -> Iterable[tuple[AccessRequest, bool]]:
    """Yield the rule taken apart: one verb on one resource (of one name, which the flag says) or URL each."""
    raw = rule.raw
    for group in _texts(raw, "apiGroups"):
        for resource in _texts(raw, "resources"):
            for verb in _texts(raw, "verbs"):
                for name in _texts(raw, "resourceNames") or [""]:
                    yield (
                        AccessRequest(verb=verb, group=group, resource=resource, name=name),
                        bool(rule.names),
                    )
    for url in rule.urls:
        for verb in _texts(raw, "verbs"):
            yield AccessRequest(verb=verb, path=url), False


def _covers(rule: PolicyRule, request: AccessRequest, *, is_named: bool) -> bool:
    """Return whether whoever has `rule` has this atom: a rule about some names does not cover one about all."""
    if request.resource and not is_named and rule.names:
        return False
    return rule.allows(request)


_SHOWN = {
    "apiGroups": "APIGroups",
    "resources": "Resources",
    "nonResourceURLs": "NonResourceURLs",
    "resourceNames": "ResourceNames",
    "verbs": "Verbs",
}


def _printed(**fields: list[str]) -> str:
    return "{" + ", ".join(f"{_SHOWN[field]}:{quoted(texts)}" for field, texts in fields.items()) + "}"


def quoted(texts: Iterable[str]) -> str:
    """Return a list of texts as Go prints it: `["a" "b"]`."""
    return "[" + " ".join(json.dumps(text, ensure_ascii=False) for text in texts) + "]"


_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATION = "authentication.k8s.io"
ANONYMOUS = "system:anonymous"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"


class Impersonation(msgspec.Struct, frozen=True):
    """The user that a request wants to be, and the requests that must be allowed to whoever sent it."""

    user: str
    groups: tuple[str, ...]
    uid: str
    needs: tuple[AccessRequest, ...]


def wanted(headers: CIMultiDictProxy[str]) -> Impersonation | None:
    """Return the user for whom the headers ask; None when they ask for nobody. Raises: BadRequest (a group without a
    user)."""
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
    return Impersonation(name, _with_standing(name, groups), uid, tuple(needs))


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
