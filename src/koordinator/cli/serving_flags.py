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
        """Return the leader election flags that were given, by field of `LeaderElection`."""
        return {
            name.removeprefix("leader_elect_"): value
            for name in ServingFlags.__struct_fields__
            if name.startswith("leader_elect") and (value := getattr(self, name)) is not None
        }


def options(*, secure_port: int) -> tuple[Decorate, ...]:
    """Return the flags of secure serving; `secure_port` is the default of --secure-port."""
    return (
        text("bind-address", "0.0.0.0", "Address of HTTPS."),
        count(
            "secure-port",
            secure_port,
            "Port of HTTPS with authentication and authorization; 0: none.",
            flag_kinds.PORT,
        ),
        click.option(
            "--cert-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder in which to keep a self-signed certificate; without it, each start makes a new one.",
        ),
        file("tls-cert-file", "Certificate of HTTPS, followed by its intermediates (PEM)."),
        file("tls-private-key-file", "Private key of --tls-cert-file (PEM)."),
        click.option(
            "--tls-sni-cert-key",
            multiple=True,
            help="CERT,KEY or CERT,KEY:NAME,…: a certificate for clients that request these names by SNI "
            "(default: the names in the certificate). Can be given several times.",
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
            "Kubeconfig for TokenReviews; not needed in a pod. Outside a pod without it, all users are anonymous.",
        ),
        switch("authentication-skip-lookup", False, "Do not read client CAs from the cluster."),
        switch(
            "authentication-tolerate-lookup-failure",
            True,
            "Start even if client CAs cannot be read from the cluster.",
        ),
        time(
            "authentication-token-webhook-cache-ttl", "10s", "How long to cache the result of a TokenReview."
        ),
        text(
            "authorization-kubeconfig",
            "",
            "Kubeconfig for SubjectAccessReviews; not needed in a pod. Outside a pod without it, only "
            "--authorization-always-allow-paths are allowed.",
        ),
        listed(
            "authorization-always-allow-paths", "/healthz,/readyz,/livez", "Paths that need no authorization."
        ),
        time("authorization-webhook-cache-authorized-ttl", "10s", "How long to cache allowed requests."),
        time("authorization-webhook-cache-unauthorized-ttl", "10s", "How long to cache denied requests."),
        file("client-ca-file", "CA of client certificates (PEM)."),
        file("requestheader-client-ca-file", "CA of front proxies' client certificates (PEM)."),
        listed("requestheader-allowed-names", "", "Common names of front proxies; empty: any."),
        listed("requestheader-username-headers", "x-remote-user", "Headers with the user's name."),
        listed("requestheader-uid-headers", "", "Headers with the user's uid."),
        listed("requestheader-group-headers", "x-remote-group", "Headers with the user's groups."),
        listed(
            "requestheader-extra-headers-prefix",
            "x-remote-extra-",
            "Prefixes of headers with extra attributes of the user.",
        ),
    )


ELECTION: tuple[Decorate, ...] = (
    switch("leader-elect", None, "Elect a leader among several instances; only the leader is active."),
    time(
        "leader-elect-lease-duration",
        None,
        "How long other instances wait after the last renewal before they take over.",
    ),
    time("leader-elect-renew-deadline", None, "A leader that cannot renew for this long exits."),
    time("leader-elect-retry-period", None, "Interval between attempts to acquire or renew the lease."),
    text("leader-elect-resource-lock", None, "Type of the lock; only leases is supported."),
    text("leader-elect-resource-name", None, "Name of the lease."),
    text("leader-elect-resource-namespace", None, "Namespace of the lease."),
)
