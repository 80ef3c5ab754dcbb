"""Read from environment variables where the webhooks are served and found (behaviour/manager 2.2)."""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.cluster.config import is_loopback
from koordinator.manager.webhooks.configuration import MUTATING_NAME, VALIDATING_NAME, WebhookService

PORT = 9876
CERT_DIR = "/tmp/koordinator-webhook-certs"  # the reference's; certificates in it are readable by us only
SECRET_NAME = "koordinator-webhook-certs"  # the name of an object


class CertWriter(enum.StrEnum):
    """The keeper of the certificates: a Secret that all replicas share, or the files of this process."""

    SECRET = "secret"
    FS = "fs"


class SettingsError(KoordinatorError, ValueError):
    """An environment variable cannot be used; the manager must not start."""

    def __init__(self, variable: str, value: str, reason: str) -> None:
        super().__init__(variable, value, reason)
        self.variable, self.value, self.reason = variable, value, reason

    def __str__(self) -> str:
        return f"{self.variable}={self.value!r}: {self.reason}"


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is WEBHOOK_HOST: API servers call this address instead of the Service. Where it is this machine's own
    (loopback), nobody else needs to reach us, and nobody else can."""

    mutating_name: str = MUTATING_NAME
    validating_name: str = VALIDATING_NAME
    host: str = ""
    port: int = PORT
    """The port to listen on; 0 lets the system choose (local clusters)."""
    service: WebhookService = WebhookService()
    secret_name: str = SECRET_NAME
    cert_dir: Path = Path(CERT_DIR)
    writer: CertWriter = CertWriter.SECRET

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return the settings of a process. An empty variable counts as a missing one. Raises: SettingsError."""

        def read(variable: str, default: str) -> str:
            return environment.get(variable) or default

        host = read("WEBHOOK_HOST", "")
        return cls(
            mutating_name=read("MUTATING_WEBHOOK_NAME", MUTATING_NAME),
            validating_name=read("VALIDATING_WEBHOOK_NAME", VALIDATING_NAME),
            host=host,
            port=_port(read("WEBHOOK_PORT", str(PORT))),
            service=WebhookService(
                name=read("SERVICE_NAME", WebhookService().name),
                namespace=read("POD_NAMESPACE", WebhookService().namespace),
            ),
            secret_name=read("SECRET_NAME", SECRET_NAME),
            cert_dir=Path(read("WEBHOOK_CERT_DIR", CERT_DIR)),
            writer=_writer(read("WEBHOOK_CERT_WRITER", CertWriter.FS if host else CertWriter.SECRET)),
        )

    @property
    def listen_host(self) -> str | None:
        """The address to listen on; None for all of this machine: a Service, or a name that others resolve."""
        return self.host if is_loopback(self.host) else None

    @property
    def dns_name(self) -> str:
        """The name (or address) that the certificate is for."""
        return self.host or f"{self.service.name}.{self.service.namespace}.svc"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 65_536:
        raise SettingsError("WEBHOOK_PORT", text, "expected a port number from 1 to 65535")
    return int(text)


def _writer(text: str) -> CertWriter:
    try:
        return CertWriter(text)
    except ValueError:
        raise SettingsError("WEBHOOK_CERT_WRITER", text, "expected secret or fs") from None
