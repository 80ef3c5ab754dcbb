"""The flags that upstream's serving components share: the secure port, who may call it, leader election."""

from pathlib import Path
from typing import Any

import click
import msgspec

from koordinator.cli import flag_kinds
from koordinator.cli.flag_kinds import Decorate, count, file, listed, switch, text, time


class ServingFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Their values; names are those of the flags. None means that the flag was not given."""

    bind_address: str
    secure_port: int
    cert_dir: Path | None
    tls_cert_file: Path | None
    tls_private_key_file: Path | None
    tls_sni_cert_key: tuple[str, ...]
    tls_min_version: str
    tls_cipher_suites: tuple[str, ...]
    permit_address_sharing: bool
    permit_port_sharing: bool
    # who may call
    authentication_kubeconfig: str
    authentication_skip_lookup: bool
    authentication_tolerate_lookup_failure: bool
    authentication_token_webhook_cache_ttl: str
    authorization_kubeconfig: str
    authorization_always_allow_paths: tuple[str, ...]
    authorization_webhook_cache_authorized_ttl: str
    authorization_webhook_cache_unauthorized_ttl: str
    client_ca_file: Path | None
    requestheader_client_ca_file: Path | None
    requestheader_allowed_names: tuple[str, ...]
    requestheader_username_headers: tuple[str, ...]
    requestheader_uid_headers: tuple[str, ...]
    requestheader_group_headers: tuple[str, ...]
    requestheader_extra_headers_prefix: tuple[str, ...]
    # leader election
    leader_elect: bool | None
    leader_elect_lease_duration: str | None
    leader_elect_renew_deadline: str | None
    leader_elect_retry_period: str | None
    leader_elect_resource_lock: str | None
    leader_elect_resource_name: str | None
    leader_elect_resource_namespace: str | None

    def elected(self) -> dict[str, Any]:
        """Return what flags say about leader election, by field of `LeaderElection`."""
        return {
            name.removeprefix("leader_elect_"): value
            for name in ServingFlags.__struct_fields__
            if name.startswith("leader_elect") and (value := getattr(self, name)) is not None
        }


def options(*, secure_port: int) -> tuple[Decorate, ...]:
    """Return the flags of the secure port, which is this one when nothing is said."""
    return (
        text("bind-address", "0.0.0.0", "Where to serve HTTPS."),
        count(
            "secure-port",
            secure_port,
            "Port of HTTPS with authentication and authorization; 0: none.",
            flag_kinds.PORT,
        ),
        click.option(
            "--cert-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="The folder that keeps a certificate that we made ourselves; without it, it is made at each start.",
        ),
        file("tls-cert-file", "Certificate of HTTPS, followed by its intermediates (PEM)."),
        file("tls-private-key-file", "Private key of --tls-cert-file (PEM)."),
        click.option(
            "--tls-sni-cert-key",
            multiple=True,
            help="CERT,KEY or CERT,KEY:NAME,…: another certificate for callers that ask for these names "
            "(default: those in the certificate). Can be given several times.",
        ),
        text("tls-min-version", "VersionTLS12", "VersionTLS12 or VersionTLS13."),
        listed(
            "tls-cipher-suites", "", "Cipher suites up to TLS 1.2, as Go names them; empty: the system's."
        ),
        switch(
            "permit-address-sharing", False, "Listen although the address is in TIME_WAIT (SO_REUSEADDR)."
        ),
        switch("permit-port-sharing", False, "Share the port with another process (SO_REUSEPORT)."),
        text(
            "authentication-kubeconfig",
            "",
            "For TokenReviews; a pod needs none. Without either, everybody is anonymous.",
        ),
        switch("authentication-skip-lookup", False, "Do not read client authorities from the cluster."),
        switch("authentication-tolerate-lookup-failure", True, "Go on when they cannot be read."),
        time("authentication-token-webhook-cache-ttl", "10s", "How long an identity is remembered."),
        text(
            "authorization-kubeconfig",
            "",
            "For SubjectAccessReviews; a pod needs none. Without either, other paths are forbidden.",
        ),
        listed(
            "authorization-always-allow-paths", "/healthz,/readyz,/livez", "Paths that need no permission."
        ),
        time("authorization-webhook-cache-authorized-ttl", "10s", "How long a permission is remembered."),
        time("authorization-webhook-cache-unauthorized-ttl", "10s", "How long a refusal is remembered."),
        file("client-ca-file", "Authority of users' client certificates (PEM)."),
        file("requestheader-client-ca-file", "Authority of front proxies' client certificates (PEM)."),
        listed("requestheader-allowed-names", "", "Common names of front proxies; empty: any."),
        listed("requestheader-username-headers", "x-remote-user", "Headers with the user's name."),
        listed("requestheader-uid-headers", "", "Headers with the user's uid."),
        listed("requestheader-group-headers", "x-remote-group", "Headers with groups."),
        listed("requestheader-extra-headers-prefix", "x-remote-extra-", "Prefixes of other facts."),
    )


ELECTION: tuple[Decorate, ...] = (
    switch("leader-elect", None, "Whether one of several instances works at a time."),
    time("leader-elect-lease-duration", None, "When others take over after the last renewal."),
    time("leader-elect-renew-deadline", None, "When a leader that could not renew stops."),
    time("leader-elect-retry-period", None, "Between tries to get or renew the lease."),
    text("leader-elect-resource-lock", None, "Only leases."),
    text("leader-elect-resource-name", None, "Name of the lease."),
    text("leader-elect-resource-namespace", None, "Namespace of the lease."),
)
