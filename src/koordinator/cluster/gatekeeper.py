"""Lets only those through a port whom the API server vouches for."""

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from koordinator.cluster import delegated_auth
from koordinator.cluster.delegated_auth import (
    ANONYMOUS,
    AccessReviewer,
    Authorities,
    TokenReviewer,
    Unauthenticated,
    User,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Refusal = Callable[[web.BaseRequest], Awaitable[web.Response | None]]
"""The answer to a request that is refused; None for one that may go on."""

ALWAYS_ALLOWED = ("/healthz", "/readyz", "/livez")


class Gatekeeper:
    """Authenticates and authorizes requests.

    A client certificate is verified by TLS against both authorities; by which of them it was signed decides
    whether it is a user's or a front proxy's.

    Raises: ValueError when an authority is no certificate.
    """

    def __init__(
        self,
        authorities: Authorities,
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
            return refused(401, "Unauthorized", str(error))
        if not delegated_auth.is_always_allowed(request.path, self._always_allowed):
            verb = request.method.lower()
            if not await self._access.may(user, verb, request.path):
                reason = f'User "{user.name}" cannot {verb} path "{request.path}"'
                return refused(403, "Forbidden", f"forbidden: {reason}")
        return None

    async def user_of(self, request: web.BaseRequest) -> User:
        """Return the user who calls. Raises: Unauthenticated."""
        peer, der = _peer(request)
        if der:
            certificate = x509.load_der_x509_certificate(der)
            found = delegated_auth.certificate_user(peer)
            if self._is_proxy(found.name) and _is_signed_by(certificate, self._proxies):
                headers = list(request.headers.items())
                proxied = delegated_auth.proxied_user(headers, self._authorities.headers)
                if proxied is not None:
                    return proxied
            if _is_signed_by(certificate, self._clients):
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


def trust_clients(context: ssl.SSLContext, authorities: Authorities) -> None:
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


def _is_signed_by(certificate: x509.Certificate, authorities: tuple[x509.Certificate, ...]) -> bool:
    """By signature, not by name: two authorities may be called the same."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def refused(status: int, reason: str, message: str) -> web.Response:
    """Return a Status that says no."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message.encode(errors="replace").decode(),  # it quotes what was sent
        "reason": reason,
        "code": status,
    }
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
