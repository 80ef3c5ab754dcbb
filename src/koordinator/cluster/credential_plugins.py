"""Credentials from an exec plugin (`aws eks get-token`, `gke-gcloud-auth-plugin`, `kubelogin`, ...).

Protocol: `client.authentication.k8s.io` v1 and v1beta1.
"""

import asyncio
import base64
import binascii
import logging
import os
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec

from koordinator import clock as clocks
from koordinator.clock import Clock
from koordinator.cluster.config import ClusterConfigError, load_certificate, tls_context

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
        """Return when the id token ends, by its own claim; at once when it has none that we can read."""
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
            log.warning("renewed tokens not saved: %s", error, extra={"source": self._source})

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


API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
# People may have to log in in a browser first.
PLUGIN_TIMEOUT_S = 180.0


class EnvEntry(msgspec.Struct, frozen=True):
    """One variable for the plugin."""

    name: str
    value: str = ""


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """`users[].user.exec`."""

    command: str
    api_version: str = ""
    args: list[str] = []
    env: list[EnvEntry] = []
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    expiration_timestamp: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _Status


class ExecCredentials:
    """Runs the plugin when there is no credential yet, when it expired, and after a 401.

    A client certificate from the plugin is presented on new connections of `tls`.
    """

    def __init__(
        self,
        plugin: ExecPlugin,
        *,
        directory: Path,
        cluster: dict[str, Any],
        tls: ssl.SSLContext | None,
        source: str,
        clock: Clock,
    ) -> None:
        if plugin.api_version not in API_VERSIONS:
            known = " or ".join(API_VERSIONS)
            raise ClusterConfigError(source, "exec.apiVersion", f"{plugin.api_version!r} is not {known}")
        self._plugin = plugin
        self._directory = directory
        self._cluster = cluster
        self._tls = tls
        self._source = source
        self._clock = clock
        self._header: str | None = None
        self._expires_s = float("inf")
        self._running = asyncio.Lock()

    async def authorization(self) -> str:
        async with self._running:
            if self._header is None or self._clock.now() >= self._expires_s - EXPIRY_MARGIN_S:
                self._accept(await self._run())
            assert self._header is not None
            return self._header

    async def renew(self) -> bool:
        self._header = None
        await self.authorization()
        return True

    def _accept(self, status: _Status) -> None:
        if status.client_certificate_data:
            if self._tls is None:
                raise self._error("sent a certificate, but the server is plain http")
            load_certificate(
                self._tls,
                status.client_certificate_data.encode(),
                status.client_key_data.encode(),
                self._source,
            )
        elif not status.token:
            raise self._error("sent neither a token nor a certificate")
        self._header = f"Bearer {status.token}" if status.token else ""
        self._expires_s = float("inf")
        if status.expiration_timestamp:
            try:
                self._expires_s = clocks.parse_rfc3339(status.expiration_timestamp)
            except ValueError as error:
                raise self._error(f"expirationTimestamp: {error}") from error

    async def _run(self) -> _Status:
        plugin = self._plugin
        interactive = plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if plugin.interactive_mode == "Always" and not interactive:
            raise self._error("needs a terminal (interactiveMode Always), and there is none")
        try:
            process = await asyncio.create_subprocess_exec(
                self._command(),
                *plugin.args,
                env=os.environ | self._environment(interactive),
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
            raise self._error(f"{error}{hint}") from error
        try:
            async with asyncio.timeout(PLUGIN_TIMEOUT_S):
                output, complaint = await process.communicate()
        except TimeoutError as error:
            raise self._error(f"did not answer within {PLUGIN_TIMEOUT_S:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            said = (complaint or b"").decode(errors="replace").strip()
            raise self._error(f"ended with {process.returncode}: {said}")
        return self._parse(output)

    def _parse(self, output: bytes) -> _Status:
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise self._error(f"sent no ExecCredential: {error}") from error
        if answer.kind != "ExecCredential" or answer.api_version != self._plugin.api_version:
            raise self._error(
                f"sent {answer.api_version} {answer.kind}, not ExecCredential {self._plugin.api_version}"
            )
        return answer.status

    def _command(self) -> str:
        """Return the plugin's path: a bare name is looked up in PATH, one with a slash is relative to the
        kubeconfig."""
        command = self._plugin.command
        return str(self._directory.absolute() / command) if "/" in command else command

    def _environment(self, interactive: bool) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._plugin.provide_cluster_info:
            spec["cluster"] = {name: value for name, value in self._cluster.items() if value}
        info = {"apiVersion": self._plugin.api_version, "kind": "ExecCredential", "spec": spec}
        extra = {entry.name: entry.value for entry in self._plugin.env}
        return extra | {"KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    def _error(self, reason: str) -> ClusterConfigError:
        return ClusterConfigError(self._source, f"exec plugin {self._plugin.command}", reason)
