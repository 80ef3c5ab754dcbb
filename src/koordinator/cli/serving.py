"""Serve the secure port: TLS with a given or a self-made certificate, and who may call, by flags and by the cluster's
certificate authorities."""

import contextlib
import datetime
import logging
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from koordinator.api import duration, user_files
from koordinator.api.config_text import LeaderElection
from koordinator.cli import component
from koordinator.cli.flag_settings import FlagError
from koordinator.cli.serving_flags import ServingFlags
from koordinator.clock import Clock
from koordinator.cluster import config, connect, errors
from koordinator.cluster.certificates import alternative_names, builder, certificate_pem, common_name, key_pem
from koordinator.cluster.delegated_auth import (
    AccessReviewer,
    ClientCAs,
    DelegatedAuth,
    RequestHeaders,
    TokenReviewer,
    guarded,
    look_up,
    trust_clients,
)
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import ElectionConfig, process_identity

log = logging.getLogger(__name__)

CERTIFICATE_DAYS = 365
RENEW_BEFORE_DAYS = 30
MIN_VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}
"""Go's names → OpenSSL's. Those of TLS 1.3 are always on, as in Go."""
TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


def tls_context(
    certificate: Path | None,
    key: Path | None,
    directory: Path | None,
    clock: Clock,
    *,
    min_version: str = "",
    ciphers: Sequence[str] = (),
) -> ssl.SSLContext:
    """TLS for a server, with a certificate of our own where none is given. Raises: FlagError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if min_version not in MIN_VERSIONS:
        names = ", ".join(filter(None, MIN_VERSIONS))
        raise FlagError("--tls-min-version", f"{min_version!r} is none of {names}")
    context.minimum_version = MIN_VERSIONS[min_version]
    if chosen := _ciphers(ciphers):
        context.set_ciphers(":".join(chosen))
    if (certificate is None) != (key is None):
        flag = "--tls-private-key-file" if key is None else "--tls-cert-file"
        raise FlagError(flag, "certificate and key are given together or not at all")
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        else:
            _load_own(context, directory, clock)
    except (OSError, ValueError) as error:
        raise FlagError("--tls-cert-file" if certificate else "--cert-dir", str(error)) from error
    return context


def present_by_name(context: ssl.SSLContext, entries: Sequence[str]) -> None:
    """Other certificates for other names: `CERT,KEY` or `CERT,KEY:NAME,…`; a name may begin with `*.`.
    Raises: FlagError."""
    by_name: dict[str, tuple[str, str]] = {}
    for entry in entries:
        files, _, names = entry.partition(":")
        certificate, comma, key = files.partition(",")
        if not comma:
            raise FlagError("--tls-sni-cert-key", f"{entry!r} is not CERT,KEY or CERT,KEY:NAME,…")
        try:
            _with_certificate(context, certificate, key)
            asked = names.split(",") if names else _names_in(user_files.read(certificate))
        except (OSError, ValueError) as error:
            raise FlagError("--tls-sni-cert-key", f"{entry!r}: {error}") from error
        by_name |= {name.lower(): (certificate, key) for name in asked}
    contexts: dict[tuple[str, str], ssl.SSLContext] = {}

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        wanted = (name or "").lower()
        files = by_name.get(wanted) or by_name.get("*." + wanted.partition(".")[2])
        if files is None:
            return
        if files not in contexts:
            contexts[files] = _with_certificate(context, *files)
        connection.context = contexts[files]

    if by_name:
        context.sni_callback = choose


def _with_certificate(like: ssl.SSLContext, certificate: str, key: str) -> ssl.SSLContext:
    """Another certificate with the same rules; whom the connection trusts stays with the first context."""
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other.minimum_version = like.minimum_version
    other.load_cert_chain(certificate, key)
    return other


def _names_in(pem: bytes) -> list[str]:
    found = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return found.value.get_values_for_type(x509.DNSName)


def _ciphers(names: Sequence[str]) -> list[str]:
    known = [CIPHERS[name] for name in names if name in CIPHERS]
    for name in names:
        if name not in CIPHERS and name not in TLS13_CIPHERS:
            raise FlagError("--tls-cipher-suites", f"{name!r} is not known")
    return known


def _load_own(context: ssl.SSLContext, directory: Path | None, clock: Clock) -> None:
    """Present a self-signed certificate, kept in `directory` when there is one."""
    if directory is None:
        config.load_certificate(context, *_self_signed(clock), "self-signed")
        return
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / "koord-scheduler.pem"
    if not path.exists() or _ends_soon(user_files.read(path), clock):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(_self_signed(clock))
    context.load_cert_chain(path)


def _ends_soon(pem: bytes, clock: Clock) -> bool:
    end = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    return end - clock.now() < RENEW_BEFORE_DAYS * 86_400


def _self_signed(clock: Clock) -> tuple[bytes, bytes]:
    """Certificate and key for this machine's name, PEM."""
    host = socket.gethostname()
    key = ec.generate_private_key(ec.SECP256R1())
    name = common_name(host)
    now = datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)
    certificate = (
        builder(name, name, key, now, datetime.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .add_extension(alternative_names((host, "localhost", "127.0.0.1", "::1")), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, hashes.SHA256())
    )
    return certificate_pem(certificate), key_pem(key)


@contextlib.asynccontextmanager
async def secure_port(
    flags: ServingFlags, application: Callable[[Any], web.Application], clock: Clock, caller: str
) -> AsyncIterator[None]:
    """Serve HTTPS as the flags say; `application` gets the guard of its requests. Raises: FlagError, OSError."""
    tls = tls_context(
        flags.tls_cert_file,
        flags.tls_private_key_file,
        flags.cert_dir,
        clock,
        min_version=flags.tls_min_version,
        ciphers=flags.tls_cipher_suites,
    )
    present_by_name(tls, flags.tls_sni_cert_key)
    async with delegated_auth(flags, tls, caller) as found:
        serving = component.served(
            application(guarded(found.refusal)),
            flags.bind_address,
            flags.secure_port,
            tls,
            share_address=flags.permit_address_sharing,
            share_port=flags.permit_port_sharing,
        )
        async with serving:
            yield


@contextlib.asynccontextmanager
async def ports(
    flags: ServingFlags,
    plain: Iterable[tuple[str, int]],
    application: Callable[[tuple[Any, ...]], web.Application],
    clock: Clock,
    caller: str,
) -> AsyncIterator[None]:
    """Serve plain HTTP at these addresses and HTTPS as the flags say, where the port is not 0; `application` gets the
    guards of its requests. Raises: FlagError, OSError."""
    async with contextlib.AsyncExitStack() as stack:
        for host, port in plain:
            if port:
                await stack.enter_async_context(component.served(application(()), host, port))
        if flags.secure_port:
            secure = secure_port(flags, lambda guard: application((guard,)), clock, caller)
            await stack.enter_async_context(secure)
        yield


def election_config(elected: LeaderElection, rng: random.Random) -> ElectionConfig:
    """Return this process as a candidate for the lease that the configuration names."""
    return ElectionConfig(
        name=elected.resource_name,
        namespace=elected.resource_namespace,
        identity=process_identity(rng),
        lease_duration_s=int(duration.parse(elected.lease_duration)),
        renew_deadline_s=duration.parse(elected.renew_deadline),
        retry_period_s=duration.parse(elected.retry_period),
    )


# Who may call


@contextlib.asynccontextmanager
async def delegated_auth(
    flags: ServingFlags, tls: ssl.SSLContext, caller: str
) -> AsyncIterator[DelegatedAuth]:
    """Inside, callers of a server with this TLS context can be told apart; `caller` is who asks for reviews.
    Raises: FlagError."""
    async with contextlib.AsyncExitStack() as stack:
        tokens = await _client(stack, flags.authentication_kubeconfig, caller)
        permissions = await _client(stack, flags.authorization_kubeconfig, caller)
        authorities = await _authorities(flags, tokens)
        try:
            trust_clients(tls, authorities)
            made = DelegatedAuth(
                authorities,
                TokenReviewer(tokens, ttl_s=duration.parse(flags.authentication_token_webhook_cache_ttl)),
                AccessReviewer(
                    permissions,
                    allowed_ttl_s=duration.parse(flags.authorization_webhook_cache_authorized_ttl),
                    refused_ttl_s=duration.parse(flags.authorization_webhook_cache_unauthorized_ttl),
                ),
                flags.authorization_always_allow_paths,
            )
        except (ssl.SSLError, ValueError) as error:
            raise FlagError("--client-ca-file", f"a certificate authority is unreadable: {error}") from error
        yield made


async def _client(stack: contextlib.AsyncExitStack, kubeconfig: str, caller: str) -> KubeCluster | None:
    """Return a client for reviews: of the kubeconfig, else of the pod that we are, else none."""
    if kubeconfig:
        found = connect.load(kubeconfig_file=kubeconfig)
    elif os.environ.get("KUBERNETES_SERVICE_HOST"):
        found = config.in_cluster()
    else:
        return None
    cluster = KubeCluster(found, rng=random.Random(), component=caller)
    return await stack.enter_async_context(cluster)


async def _authorities(flags: ServingFlags, cluster: KubeCluster | None) -> ClientCAs:
    """Return the authorities from flags, and those from the cluster where flags say nothing."""
    found = ClientCAs()
    if cluster is not None and not flags.authentication_skip_lookup:
        try:
            found = await look_up(cluster)
        except (errors.ApiError, ValueError) as error:
            if not flags.authentication_tolerate_lookup_failure:
                raise FlagError("--authentication-kubeconfig", f"client authorities: {error}") from error
            log.warning("client CAs not read from the cluster", extra={"error": str(error)})
    proxies_file, headers = flags.requestheader_client_ca_file, found.headers
    if proxies_file is not None:
        headers = RequestHeaders(
            allowed_names=flags.requestheader_allowed_names,
            username=flags.requestheader_username_headers,
            uid=flags.requestheader_uid_headers,
            group=flags.requestheader_group_headers,
            extra_prefix=flags.requestheader_extra_headers_prefix,
        )
    return ClientCAs(
        client_ca=_read(flags.client_ca_file, "--client-ca-file") or found.client_ca,
        request_header_ca=_read(proxies_file, "--requestheader-client-ca-file") or found.request_header_ca,
        headers=headers,
    )


def _read(path: Path | None, flag: str) -> str:
    if path is None:
        return ""
    try:
        return user_files.read_text(path)
    except (OSError, user_files.FileError) as error:
        raise FlagError(flag, str(error)) from error
