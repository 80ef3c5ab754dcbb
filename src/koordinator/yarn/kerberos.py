"""Prove by Kerberos who calls: the SASL mechanism GSSAPI without layers, from a keytab, by the package `gssapi`.

Tickets are fetched and renewed by the library, kept in memory. Source: RFC 4752; behaviour/yarn 4.4.
"""

import importlib
import secrets
from typing import Any

import msgspec

from koordinator.yarn.sasl import SaslAuth, SaslError

EXTRA = "the package gssapi is not installed (pip install '.[kerberos]')"
_HOST = "_HOST"
"""Stands for the server's own name in Hadoop's configuration."""
_NO_LAYER = 1
"""A bit of RFC 4752: neither integrity nor privacy, Hadoop's `hadoop.rpc.protection: authentication`."""


class KerberosLogin(msgspec.Struct, frozen=True):
    """The caller's principal, the file with its key, and where tickets are kept: for this login only."""

    principal: str
    keytab: str
    tickets: str = msgspec.field(default_factory=lambda: f"MEMORY:{secrets.token_hex(8)}")


def is_installed() -> bool:
    """Return whether the library is there."""
    try:
        importlib.import_module("gssapi")
    except ImportError:
        return False
    return True


def expected_principal(configured: str, server: str) -> str:
    """Return who a server (host:port) must be, by Hadoop's configuration, without the realm."""
    host = server.rpartition(":")[0].lower()
    return configured.partition("@")[0].replace(_HOST, host)


class GssapiMechanism:
    """GSSAPI for one connection to `server` (host:port), whose principal is configured. Its steps ask the KDC."""

    method = "KERBEROS"
    user: str | None = None
    asks_others = True

    def __init__(self, login: KerberosLogin, server: str, server_principal: str) -> None:
        self._login = login
        self._expected = expected_principal(server_principal, server)
        self._gssapi: Any = importlib.import_module("gssapi")
        self._context: Any = None
        self._is_settled = False

    def start(self, auth: SaslAuth) -> bytes:
        """See `Mechanism`. A server that is somebody else than the configuration says gets no ticket."""
        name = f"{auth.protocol}/{auth.server_id}"
        if name != self._expected:
            raise SaslError(f"the server is {name}, and yarn.resourcemanager.principal says {self._expected}")
        gssapi = self._gssapi
        try:
            store = {"client_keytab": f"FILE:{self._login.keytab}", "ccache": self._login.tickets}
            own = gssapi.Name(self._login.principal, gssapi.NameType.kerberos_principal)
            credentials = gssapi.Credentials(name=own, usage="initiate", store=store)
            target = gssapi.Name(f"{auth.protocol}@{auth.server_id}", gssapi.NameType.hostbased_service)
            self._context = gssapi.SecurityContext(name=target, creds=credentials, usage="initiate")
            return self._context.step() or b""
        except gssapi.exceptions.GSSError as error:
            raise SaslError(_text(error)) from error

    def step(self, challenge: bytes) -> bytes:
        """See `Mechanism`. The last challenge offers layers, of which none is taken."""
        if self._context is None:
            raise SaslError("GSSAPI: the server asks before it is told anything")
        try:
            if not self._context.complete:
                return self._context.step(challenge) or b""
            offered = bytes(self._context.unwrap(challenge).message)
        except self._gssapi.exceptions.GSSError as error:
            raise SaslError(_text(error)) from error
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise SaslError(
                "the server wants integrity or privacy: hadoop.rpc.protection must allow authentication"
            )
        self._is_settled = True
        return bytes(self._context.wrap(bytes((_NO_LAYER, 0, 0, 0)), encrypt=False).message)

    def finish(self, proof: bytes) -> None:
        """See `Mechanism`."""
        if not self._is_settled:
            raise SaslError("GSSAPI: the server ends before both sides are proven")


def _text(error: Exception) -> str:
    return f"Kerberos: {' '.join(str(error).split())}"
