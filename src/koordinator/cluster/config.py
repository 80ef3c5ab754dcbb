"""Describe how to reach an API server: address, trust, identity. `connect.load` finds them for a command line."""

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from koordinator.api import user_files
from koordinator.api.errors import KoordinatorError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ClusterConfigError(KoordinatorError, ValueError):
    """The way to a cluster is not or badly described: `source` (file, variable), `field`, `reason`."""

    def __init__(self, source: str, field: str, reason: str) -> None:
        super().__init__(source, field, reason)
        self.source, self.field, self.reason = source, field, reason


class Credentials(Protocol):
    """Our credentials: the `Authorization` header, kept fresh."""

    async def authorization(self) -> str:
        """Return the header's value for a request now; empty without one.

        Raises: ClusterConfigError when none can be had (the plugin fails, the token file is unreadable).
        """
        ...

    async def renew(self) -> bool:
        """Get a new identity after the server refused ours (401); False when there is none other."""
        ...


class StaticHeader:
    """The same header always (a token or a password in the kubeconfig)."""

    def __init__(self, value: str) -> None:
        self._value = value

    async def authorization(self) -> str:
        return self._value

    async def renew(self) -> bool:
        return False


ANONYMOUS = StaticHeader("")
"""No header: client certificates, or a server without authentication."""


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the API and the way to speak to it.

    `tls` is None for plain HTTP; `server_name` is the name expected in the server's certificate when it is
    not the address's; `headers` go with every request (impersonation); `extensions` are what the kubeconfig says about
    the cluster beyond that, by name.
    """

    server: str
    namespace: str = "default"
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy_url: str = ""
    credentials: Credentials = ANONYMOUS
    headers: tuple[tuple[str, str], ...] = ()
    extensions: Mapping[str, Any] = {}


def from_url(server: str, *, token: str = "") -> ClientConfig:
    """Return a server by its address, with a bearer token where it needs one.

    Raises: ClusterConfigError when the address is none.
    """
    return ClientConfig(
        server=checked_server(server, "--server"),
        tls=tls_context(server, source="--server"),
        credentials=StaticHeader(f"Bearer {token}") if token else ANONYMOUS,
    )


def checked_server(server: str, source: str) -> str:
    """Return the address without a trailing slash. Raises: ClusterConfigError when it is none."""
    scheme, separator, rest = server.partition("://")
    if scheme not in ("http", "https") or not separator or not rest:
        raise ClusterConfigError(source, "server", f"{server!r} is not an http:// or https:// address")
    return server.rstrip("/")


def tls_context(
    server: str, *, ca_file: str = "", ca_data: str = "", insecure: bool = False, source: str
) -> ssl.SSLContext | None:
    """Return the trust for a server: the system's authorities unless others are given; None for plain HTTP.

    `ca_data` is PEM text. Raises: ClusterConfigError.
    """
    if not server.startswith("https://"):
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file or None, cadata=ca_data or None)
    except (OSError, ValueError) as error:
        raise ClusterConfigError(source, "certificate-authority", f"{ca_file or 'data'}: {error}") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_certificate(tls: ssl.SSLContext, certificate: bytes, key: bytes, source: str) -> None:
    """Present a client certificate (PEM) on new connections. Raises: ClusterConfigError."""
    # OpenSSL reads files only; ours is readable by nobody else and gone at once.
    with tempfile.NamedTemporaryFile(prefix="koordinator-") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        try:
            tls.load_cert_chain(file.name)
        except (OSError, ValueError) as error:
            raise ClusterConfigError(source, "client-certificate", str(error)) from error


class TokenFile:
    """A bearer token in a file that somebody else renews (kubelet does, for service accounts)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int] | None = None
        self._header = ""

    async def authorization(self) -> str:
        """Return the header, read again when the file has changed. Raises: ClusterConfigError when the file cannot be
        read."""
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._header = f"Bearer {user_files.read_text(self._path).strip()}"
                self._stamp = stamp
        except (OSError, user_files.FileError) as error:
            raise ClusterConfigError(str(self._path), "token", str(error)) from error
        return self._header

    async def renew(self) -> bool:
        before, self._stamp = self._header, None
        return await self.authorization() != before


def in_cluster(account: Path = SERVICE_ACCOUNT) -> ClientConfig:
    """Return the API of the cluster whose pod we are, with its service account.

    Raises: ClusterConfigError when this is no pod.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ClusterConfigError(
            "in-cluster", "KUBERNETES_SERVICE_HOST", "not set: this is no pod; give a kubeconfig or a URL"
        )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = account / "namespace"
    return ClientConfig(
        server=server,
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        tls=tls_context(server, ca_file=str(account / "ca.crt"), source="in-cluster"),
        credentials=TokenFile(account / "token"),
    )


def is_loopback(host: str) -> bool:
    """Return whether an address to bind is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
