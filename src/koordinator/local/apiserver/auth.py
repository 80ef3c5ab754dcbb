"""Decide who may talk to the server (bearer tokens, or loopback without authentication), and whether a request is
allowed.

Without tokens only the local machine can connect, but so could a web page in a local browser: by a name that resolves
to 127.0.0.1 (DNS rebinding) or by a cross-site request. So the `Host` must be ours, and a request that a page of
another origin made is refused.
"""

import contextlib
import csv
import hmac
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from multidict import CIMultiDictProxy

from koordinator.api import user_files
from koordinator.api.errors import KoordinatorError
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend
from koordinator.cluster.delegated_auth import AUTHENTICATED, User
from koordinator.cluster.protocol import PatchType
from koordinator.cluster.resource_path import ResourcePath
from koordinator.local.apiserver import calls, query
from koordinator.local.apiserver.short_requests import AnyRequest
from koordinator.local.authorization import rules
from koordinator.local.authorization.rbac import MASTERS, Authorizer
from koordinator.local.authorization.rules import AccessRequest
from koordinator.local.service_account_tokens import BadToken, ServiceAccountTokens, looks_like_a_token

log = logging.getLogger(__name__)

LOCAL_ADMIN = User("system:admin", (MASTERS, AUTHENTICATED))
_HEALTH_NAMES = frozenset({"healthz", "livez", "readyz"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # source: RFC 6750, section 2.1


class StaticToken(msgspec.Struct, frozen=True):
    """A static bearer token and who it stands for."""

    secret: str
    user: str = "system:admin"
    uid: str = ""
    groups: tuple[str, ...] = (MASTERS,)


class TokenFileError(KoordinatorError, ValueError):
    """A line of the token file cannot be used."""


def read_token_file(path: Path) -> list[StaticToken]:
    """Tokens of a Kubernetes token file: `token,user,uid,"group1,group2"` a line.

    Raises: TokenFileError naming the line; FileError when it is no text; OSError.
    """
    tokens = []
    with contextlib.closing(user_files.lines(path)) as text:
        try:
            for number, row in enumerate(csv.reader(text), 1):
                if not row or row[0].lstrip().startswith("#"):
                    continue
                if len(row) < 3 or not row[0].strip() or not row[1].strip():
                    raise TokenFileError(f"{path}: line {number}: expected token,user,uid[,groups]")
                if not _BEARER_TOKEN.fullmatch(row[0].strip()):
                    what = "only letters, digits and -._~+/, then = if any, can be sent as a token"
                    raise TokenFileError(f"{path}: line {number}: {what}")
                groups = tuple(group.strip() for group in row[3].split(",")) if len(row) > 3 else ()
                tokens.append(StaticToken(row[0].strip(), row[1].strip(), row[2].strip(), groups))
        except csv.Error as error:
            raise TokenFileError(f"{path}: no table of tokens: {error}") from error
    if not tokens:
        raise TokenFileError(f"{path}: holds no token")
    return tokens


class Authenticator:
    """Decides who a request comes from."""

    def __init__(
        self,
        tokens: Iterable[StaticToken],
        hosts: Iterable[str] = (),
        accounts: ServiceAccountTokens | None = None,
    ) -> None:
        self._tokens = list(tokens)
        self._accounts = accounts
        self._hosts = _LOCAL_NAMES | {host.lower().strip("[]") for host in hosts}

    @property
    def enabled(self) -> bool:
        """Return whether a token is asked for."""
        return bool(self._tokens)

    def user_of(self, headers: CIMultiDictProxy[str]) -> User:
        """Return the user who asks. Where no token is asked for, a ServiceAccount's still says who it is.

        Raises: Unauthorized (no valid token), Forbidden (a foreign Host or Origin without authentication).
        """
        scheme, _, secret = headers.get("Authorization", "").partition(" ")
        secret = secret.strip() if scheme.lower() == "bearer" else ""
        if not self._tokens:
            self._check_origin(headers)
            if self._accounts is None or not looks_like_a_token(secret):
                return LOCAL_ADMIN
        user = self.user_of_token(secret) if secret else None
        if user is None:
            raise errors.Unauthorized("Unauthorized")
        return user

    def user_of_token(self, secret: str) -> User | None:
        """Return the user whom a token stands for; all are compared, so that timing tells nothing."""
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.secret.encode(), secret.encode("utf-8", "surrogateescape")):
                found = User(token.user, (*token.groups, AUTHENTICATED), token.uid)
        if found is None and self._accounts is not None and looks_like_a_token(secret):
            try:
                account = self._accounts.verify(secret)
            except BadToken as error:
                log.info("token refused", extra={"reason": str(error)})
                return None
            found = User(account.user, account.groups, account.account.uid)
        return found

    def _check_origin(self, headers: CIMultiDictProxy[str]) -> None:
        host = headers.get("Host", "")
        if host_name(host) not in self._hosts:
            raise errors.Forbidden(
                f'forbidden: Host "{host}" is not a name of this server; without authentication '
                "it answers only as localhost, 127.0.0.1 or [::1]"
            )
        origin = headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise errors.Forbidden(
                f'forbidden: requests of web pages of another origin ("{origin}") are refused'
            )


def host_name(host: str) -> str:
    """Return the name in a `Host` header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def is_health(path: str) -> bool:
    """Return whether a path is one that load balancers and scripts may ask without a token."""
    return path.startswith("/") and path[1:].partition("/")[0] in _HEALTH_NAMES


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
        acting = rules.wanted(request.headers)
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
                raise rules.forbidden(user.name, need, decision.reason)

    def _needs(self, request: AnyRequest, path: str, target: ResourcePath | None) -> list[AccessRequest]:
        if target is None:
            return [AccessRequest(verb=request.method.lower(), path=path)]
        asked = _asked(request, target)
        if asked.verb == "patch" and self._would_create(request, target):
            return [asked, msgspec.structs.replace(asked, verb="create")]
        return [asked]

    def _would_create(self, request: AnyRequest, target: ResourcePath) -> bool:
        """Return whether server-side apply would make the object that it speaks of."""
        media = calls.body_type(request.headers.get("Content-Type", ""))
        if media != PatchType.APPLY.value or target.subresource:
            return False
        try:
            resource = self._backend.resolve(target.group, target.version, target.plural)
            self._backend.get(resource, target.namespace, target.name)
        except errors.NotFound:
            return True
        return False


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
