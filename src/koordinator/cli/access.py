"""Decide who may call the secure port: by flags, and by the cluster's certificate authorities."""

import contextlib
import logging
import os
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from koordinator.api import duration, user_files
from koordinator.cli.scheduler_flags import Flags
from koordinator.cli.serving import ServingError
from koordinator.cluster import config, connect, errors
from koordinator.cluster.gatekeeper import (
    AccessReviewer,
    Authorities,
    Gatekeeper,
    RequestHeaders,
    TokenReviewer,
    look_up,
    trust_clients,
)
from koordinator.cluster.kube import KubeCluster

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def gatekeeper(flags: Flags, tls: ssl.SSLContext) -> AsyncIterator[Gatekeeper]:
    """Inside, callers of a server with this TLS context can be told apart. Raises: ServingError."""
    async with contextlib.AsyncExitStack() as stack:
        tokens = await _client(stack, flags.authentication_kubeconfig)
        permissions = await _client(stack, flags.authorization_kubeconfig)
        authorities = await _authorities(flags, tokens)
        try:
            trust_clients(tls, authorities)
            made = Gatekeeper(
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
            raise ServingError("client-ca-file", f"a certificate authority is unreadable: {error}") from error
        yield made


async def _client(stack: contextlib.AsyncExitStack, kubeconfig: str) -> KubeCluster | None:
    """Return a client for reviews: of the kubeconfig, else of the pod that we are, else none."""
    if kubeconfig:
        found = connect.load(kubeconfig_file=kubeconfig)
    elif os.environ.get("KUBERNETES_SERVICE_HOST"):
        found = config.in_cluster()
    else:
        return None
    cluster = KubeCluster(found, rng=random.Random(), component="koord-scheduler")
    return await stack.enter_async_context(cluster)


async def _authorities(flags: Flags, cluster: KubeCluster | None) -> Authorities:
    """Return the authorities from flags, and those from the cluster where flags say nothing."""
    found = Authorities()
    if cluster is not None and not flags.authentication_skip_lookup:
        try:
            found = await look_up(cluster)
        except (errors.ApiError, ValueError) as error:
            if not flags.authentication_tolerate_lookup_failure:
                raise ServingError("authentication-kubeconfig", f"client authorities: {error}") from error
            log.warning("client authorities not read from the cluster", extra={"error": str(error)})
    proxies_file = flags.requestheader_client_ca_file
    return Authorities(
        client_ca=_read(flags.client_ca_file, "client-ca-file") or found.client_ca,
        request_header_ca=_read(proxies_file, "requestheader-client-ca-file") or found.request_header_ca,
        headers=found.headers if proxies_file is None else _headers(flags),
    )


def _headers(flags: Flags) -> RequestHeaders:
    return RequestHeaders(
        allowed_names=flags.requestheader_allowed_names,
        username=flags.requestheader_username_headers,
        uid=flags.requestheader_uid_headers,
        group=flags.requestheader_group_headers,
        extra_prefix=flags.requestheader_extra_headers_prefix,
    )


def _read(path: Path | None, flag: str) -> str:
    if path is None:
        return ""
    try:
        return user_files.read_text(path)
    except (OSError, user_files.FileError) as error:
        raise ServingError(flag, str(error)) from error
