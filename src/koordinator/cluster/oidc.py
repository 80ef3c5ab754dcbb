"""Credentials from an OpenID Connect provider (`auth-provider: oidc` in a kubeconfig).

The id token is renewed with the refresh token (OpenID Connect Core 1.0, section 12).
"""

import asyncio
import base64
import binascii
import logging
import ssl
from collections.abc import Callable

import aiohttp
import msgspec

from koordinator.clock import Clock
from koordinator.cluster.config import ClusterConfigError, tls_context

log = logging.getLogger(__name__)

# As client-go: a token that dies on its way is no use.
EXPIRY_MARGIN_S = 10.0
PROVIDER_TIMEOUT_S = 30.0


class OidcProvider(msgspec.Struct, frozen=True, rename="kebab"):
    """`auth-provider.config`; the certificate authority data is base64."""

    idp_issuer_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    id_token: str = ""
    refresh_token: str = ""
    idp_certificate_authority: str = ""
    idp_certificate_authority_data: str = ""


class _Discovery(msgspec.Struct, frozen=True):
    token_endpoint: str


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    refresh_token: str = ""


class _Claims(msgspec.Struct, frozen=True):
    exp: float = 0.0


class OidcCredentials:
    """The id token of a user; `keep` is told the new tokens after each renewal."""

    def __init__(
        self, provider: OidcProvider, *, source: str, clock: Clock, keep: Callable[[str, str], None]
    ) -> None:
        for field in ("idp_issuer_url", "client_id"):
            if not getattr(provider, field):
                raise ClusterConfigError(source, f"auth-provider.config.{field.replace('_', '-')}", "missing")
        self._provider = provider
        self._source = source
        self._clock = clock
        self._keep = keep
        self._id_token = provider.id_token
        self._refresh_token = provider.refresh_token
        self._renewing = asyncio.Lock()

    async def authorization(self) -> str:
        async with self._renewing:
            if self._clock.now() >= self._expires_s() - EXPIRY_MARGIN_S:
                await self._refresh()
            return f"Bearer {self._id_token}"

    async def renew(self) -> bool:
        async with self._renewing:
            await self._refresh()
        return True

    def _expires_s(self) -> float:
        """When the id token ends, by its own claim; at once when it has none that we can read."""
        try:
            payload = self._id_token.split(".")[1]
            text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
            return msgspec.json.decode(text, type=_Claims).exp
        except (IndexError, binascii.Error, msgspec.DecodeError):
            return 0.0

    async def _refresh(self) -> None:
        if not self._refresh_token:
            raise self._error("refresh-token", "missing, and the id-token has expired: log in again")
        issuer = self._provider.idp_issuer_url.rstrip("/")
        timeout = aiohttp.ClientTimeout(total=PROVIDER_TIMEOUT_S)
        connector = aiohttp.TCPConnector(ssl=self._tls() or True)
        form = {
            "grant_type": "refresh_token",
            "refresh_token": self._refresh_token,
            "client_id": self._provider.client_id,
            "client_secret": self._provider.client_secret,
        }
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True) as session:
                async with session.get(f"{issuer}/.well-known/openid-configuration") as answer:
                    answer.raise_for_status()
                    discovery = msgspec.json.decode(await answer.read(), type=_Discovery)
                async with session.post(discovery.token_endpoint, data=form) as answer:
                    answer.raise_for_status()
                    tokens = msgspec.json.decode(await answer.read(), type=_Tokens)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise self._error("idp-issuer-url", f"{issuer}: tokens not renewed: {error}") from error
        self._id_token = tokens.id_token
        self._refresh_token = tokens.refresh_token or self._refresh_token
        try:
            self._keep(self._id_token, self._refresh_token)
        except OSError as error:  # a read-only kubeconfig: they serve this process all the same
            log.warning("renewed tokens not kept: %s", error, extra={"source": self._source})

    def _tls(self) -> ssl.SSLContext | None:
        data = self._provider.idp_certificate_authority_data
        return tls_context(
            self._provider.idp_issuer_url,
            ca_file="" if data else self._provider.idp_certificate_authority,
            ca_data=base64.b64decode(data).decode("ascii", "replace") if data else "",
            source=self._source,
        )

    def _error(self, field: str, reason: str) -> ClusterConfigError:
        return ClusterConfigError(self._source, f"auth-provider.config.{field}", reason)
