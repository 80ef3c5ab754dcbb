"""Lets only those through a port whom the API server vouches for."""

import asyncio
import hashlib
import logging
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import msgspec
from aiohttp import web
from cryptography import x509

from koordinator.cluster import errors
from koordinator.cluster.certificates import is_signed_by_any
from koordinator.cluster.protocol import Cluster
from koordinator.endpoints import json_response

log = logging.getLogger(__name__)

T = TypeVar("T")

CACHE_ENTRIES_MAX = 4_096
"""Callers are monitoring systems and people: a hundred would be many."""
LOOKUP_PATH = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"


class User(msgspec.Struct, frozen=True):
    """A caller."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}

    @property
    def key(self) -> tuple[Any, ...]:
        return self.name, self.groups, self.uid, tuple(sorted(self.extra.items()))


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


class Unauthenticated(Exception):
    """Credentials were shown that nobody vouches for."""


class RequestHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Front proxies that tell who calls: which client certificates they show (none: any name that the
    authority signed), and in which headers they say it."""

    allowed_names: tuple[str, ...] = ()
    username: tuple[str, ...] = ("x-remote-user",)
    uid: tuple[str, ...] = ("x-remote-uid",)
    group: tuple[str, ...] = ("x-remote-group",)
    extra_prefix: tuple[str, ...] = ("x-remote-extra-",)


class ClientCAs(msgspec.Struct, frozen=True, kw_only=True):
    """PEM of the certificate authorities whose clients we know: users', and front proxies'."""

    client_ca: str = ""
    request_header_ca: str = ""
    headers: RequestHeaders = RequestHeaders()


def certificate_user(peer: Mapping[str, Any]) -> User:
    """Return the user that a verified client certificate (as `ssl` decodes it) names: common name and organisations."""
    pairs = [pair for part in peer.get("subject", ()) for pair in part]
    names = [value for name, value in pairs if name == "commonName"]
    groups = tuple(value for name, value in pairs if name == "organizationName")
    return User(names[-1] if names else "", (*groups, AUTHENTICATED))


def proxied_user(headers: Sequence[tuple[str, str]], names: RequestHeaders) -> User | None:
    """Return the user for whom a trusted front proxy speaks; None when it does not say."""
    lower = [(name.lower(), value) for name, value in headers]

    def values(wanted: Sequence[str]) -> list[str]:
        return [value for want in wanted for name, value in lower if name == want.lower() and value]

    user = values(names.username)
    if not user:
        return None
    extra: dict[str, list[str]] = {}
    for prefix in names.extra_prefix:
        for name, value in lower:
            if name.startswith(prefix.lower()):
                extra.setdefault(unquote(name[len(prefix) :]), []).append(value)
    uid = next(iter(values(names.uid)), "")
    groups = (*values(names.group), AUTHENTICATED)
    return User(user[0], groups, uid, {key: tuple(found) for key, found in extra.items()})


def is_always_allowed(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path needs no permission; a pattern may end with `*`."""
    for pattern in patterns:
        if pattern.endswith("*") and path.startswith(pattern[:-1]):
            return True
        if path.rstrip("/") == pattern.rstrip("/"):
            return True
    return False


class _Cache(Generic[T]):
    """Answers with an end, oldest out first. Seconds are the loop's."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Any, tuple[float, T]] = OrderedDict()

    def get(self, key: Any) -> T | None:
        entry = self._entries.get(key)
        if entry is None or asyncio.get_running_loop().time() >= entry[0]:
            return None
        return entry[1]

    def put(self, key: Any, value: T, ttl_s: float) -> None:
        self._entries[key] = (asyncio.get_running_loop().time() + ttl_s, value)
        self._entries.move_to_end(key)
        while len(self._entries) > CACHE_ENTRIES_MAX:
            self._entries.popitem(last=False)


class TokenReviewer:
    """Identity behind bearer tokens. Without `cluster` no token is known."""

    def __init__(self, cluster: Cluster | None, *, ttl_s: float = 10.0) -> None:
        self._cluster = cluster
        self._ttl_s = ttl_s
        self._known: _Cache[User] = _Cache()

    async def user(self, token: str) -> User:
        """Raises: Unauthenticated, also when the API server cannot be asked."""
        if self._cluster is None:
            raise Unauthenticated("tokens cannot be reviewed: no authentication kubeconfig")
        key = hashlib.sha256(token.encode()).digest()  # so that tokens do not lie about in memory
        found = self._known.get(key)
        if found is None:
            found = await self._review(self._cluster, token)
            self._known.put(key, found, self._ttl_s)
        return found

    async def _review(self, cluster: Cluster, token: str) -> User:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token},
        }
        try:
            answer = await cluster.request("POST", TOKEN_REVIEWS, body)
        except errors.ApiError as error:
            log.warning("token not reviewed: %s", error)
            raise Unauthenticated(f"the token could not be reviewed: {error}") from error
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            raise Unauthenticated(str(status.get("error") or "the token is not valid"))
        user = status.get("user") or {}
        extra = {str(key): tuple(map(str, found)) for key, found in (user.get("extra") or {}).items()}
        groups = tuple(map(str, user.get("groups") or ()))
        return User(str(user.get("username", "")), groups, str(user.get("uid", "")), extra)


class AccessReviewer:
    """Permission for paths. Without `cluster` everybody but masters is refused."""

    def __init__(
        self, cluster: Cluster | None, *, allowed_ttl_s: float = 10.0, refused_ttl_s: float = 10.0
    ) -> None:
        self._cluster = cluster
        self._ttl_s = {True: allowed_ttl_s, False: refused_ttl_s}
        self._known: _Cache[bool] = _Cache()

    async def may(self, user: User, verb: str, path: str) -> bool:
        """Return whether `user` may `verb` (lower case) the path. False when the API server cannot be asked."""
        return await self._may(user, {"nonResourceAttributes": {"path": path, "verb": verb}}, (verb, path))

    async def may_reach_node(self, user: User, verb: str, node: str) -> bool:
        """Return whether `user` may `verb` what runs on the node (`nodes/proxy`), as kubelets ask it. False when the
        API server cannot be asked."""
        wanted = {"resource": "nodes", "subresource": "proxy", "name": node, "verb": verb, "version": "v1"}
        return await self._may(user, {"resourceAttributes": wanted}, (verb, node, "nodes/proxy"))

    async def _may(self, user: User, attributes: Mapping[str, Any], wanted: tuple[str, ...]) -> bool:
        """Return the answer to a review; `wanted` tells it from others of the user."""
        if MASTERS in user.groups:
            return True
        if self._cluster is None:
            return False
        key = (user.key, wanted)
        found = self._known.get(key)
        if found is None:
            try:
                found = await self._review(self._cluster, user, attributes)
            except errors.ApiError as error:
                log.warning(
                    "access not reviewed: %s", error, extra={"user": user.name, "wanted": " ".join(wanted)}
                )
                return False
            self._known.put(key, found, self._ttl_s[found])
        return found

    async def _review(self, cluster: Cluster, user: User, attributes: Mapping[str, Any]) -> bool:
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": user.name,
                "groups": list(user.groups),
                "uid": user.uid,
                "extra": {key: list(found) for key, found in user.extra.items()},
                **attributes,
            },
        }
        answer = await cluster.request("POST", ACCESS_REVIEWS, body)
        return bool((answer.get("status") or {}).get("allowed"))


async def look_up(cluster: Cluster) -> ClientCAs:
    """Return what the cluster says about client certificates and front proxies.

    Raises: ApiError, ValueError (the ConfigMap does not hold what it should).
    """
    body = await cluster.request("GET", LOOKUP_PATH)
    data = body.get("data") or {}

    def names(key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        if key not in data:
            return default
        return tuple(msgspec.json.decode(data[key], type=list[str]))

    default = RequestHeaders()
    return ClientCAs(
        client_ca=str(data.get("client-ca-file", "")),
        request_header_ca=str(data.get("requestheader-client-ca-file", "")),
        headers=RequestHeaders(
            allowed_names=names("requestheader-allowed-names", ()),
            username=names("requestheader-username-headers", default.username),
            uid=names("requestheader-uid-headers", default.uid),
            group=names("requestheader-group-headers", default.group),
            extra_prefix=names("requestheader-extra-headers-prefix", default.extra_prefix),
        ),
    )


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Refusal = Callable[[web.BaseRequest], Awaitable[web.Response | None]]
"""The answer to a request that is refused; None for one that may go on."""

ALWAYS_ALLOWED = ("/healthz", "/readyz", "/livez")


class DelegatedAuth:
    """Authenticates and authorizes requests.

    A client certificate is verified by TLS against both authorities; by which of them it was signed decides
    whether it is a user's or a front proxy's.

    Raises: ValueError when an authority is no certificate.
    """

    def __init__(
        self,
        authorities: ClientCAs,
        tokens: TokenReviewer,
        access: AccessReviewer,
        always_allowed: Sequence[str] = ALWAYS_ALLOWED,
    ) -> None:
        self._authorities = authorities
        self._tokens = tokens
        self._access = access
        self._always_allowed = tuple(always_allowed)
        self._proxies = _certificates(authorities.request_header_ca)
        self._clients = _certificates(authorities.client_ca)

    async def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """401 for credentials that nobody vouches for, 403 without permission, None for those who may."""
        try:
            user = await self.user_of(request)
        except Unauthenticated as error:
            return refused(errors.Unauthorized(str(error)))
        if not is_always_allowed(request.path, self._always_allowed):
            verb = request.method.lower()
            if not await self._access.may(user, verb, request.path):
                reason = f'User "{user.name}" cannot {verb} path "{request.path}"'
                return refused(errors.Forbidden(f"forbidden: {reason}"))
        return None

    async def user_of(self, request: web.BaseRequest) -> User:
        """Return the user who calls. Raises: Unauthenticated."""
        peer, der = _peer(request)
        if der:
            certificate = x509.load_der_x509_certificate(der)
            found = certificate_user(peer)
            if self._is_proxy(found.name) and is_signed_by_any(certificate, self._proxies):
                headers = list(request.headers.items())
                proxied = proxied_user(headers, self._authorities.headers)
                if proxied is not None:
                    return proxied
            if is_signed_by_any(certificate, self._clients):
                return found
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return await self._tokens.user(token.strip())
        return ANONYMOUS

    def _is_proxy(self, name: str) -> bool:
        allowed = self._authorities.headers.allowed_names
        return not allowed or name in allowed


def guarded(refusal: Refusal) -> Any:
    """aiohttp middleware that lets through whom `refusal` does not refuse."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        found = await refusal(request)
        return found if found is not None else await handler(request)

    return middleware


def trust_clients(context: ssl.SSLContext, authorities: ClientCAs) -> None:
    """Ask callers for a certificate and verify it when they show one.

    Raises: ssl.SSLError when an authority is no certificate.
    """
    pem = "\n".join(filter(None, (authorities.client_ca, authorities.request_header_ca)))
    if pem:
        context.load_verify_locations(cadata=pem)
        context.verify_mode = ssl.CERT_OPTIONAL


def _peer(request: web.BaseRequest) -> tuple[Mapping[str, Any], bytes]:
    """Return the verified certificate of the caller, decoded and as it is; empty without one."""
    transport = request.transport
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object") if transport is not None else None
    if tls is None:
        return {}, b""
    return tls.getpeercert() or {}, tls.getpeercert(binary_form=True) or b""


def _certificates(pem: str) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_pem_x509_certificates(pem.encode())) if pem else ()


def refused(error: errors.ApiError) -> web.Response:
    """Return a Status that says no."""
    message = error.message.encode(errors="replace").decode()  # it quotes what was sent
    return json_response(error.status() | {"message": message}, error.code)
