"""Find the cluster that a command line means."""

import base64
import binascii
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from koordinator.api import decode, user_files, yaml_text
from koordinator.clock import Clock, SystemClock
from koordinator.cluster import config
from koordinator.cluster.config import (
    ANONYMOUS,
    ClientConfig,
    ClusterConfigError,
    Credentials,
    StaticHeader,
    TokenFile,
    checked_server,
    load_certificate,
    tls_context,
)
from koordinator.cluster.credential_plugins import ExecCredentials, ExecPlugin, OidcCredentials, OidcProvider

N = TypeVar("N", "_NamedCluster", "_NamedContext", "_NamedUser")


class ClusterEntry(msgspec.Struct, frozen=True, rename="kebab"):
    """`clusters[].cluster`; `_data` members are base64."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list["_NamedExtension"] | None = None


class ContextEntry(msgspec.Struct, frozen=True):
    """`contexts[].context`."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class AuthProvider(msgspec.Struct, frozen=True):
    """`users[].user.auth-provider`; only `oidc` still exists."""

    name: str = ""
    config: dict[str, str] = {}


class UserEntry(msgspec.Struct, frozen=True, rename="kebab"):
    """`users[].user`; `_data` members are base64."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: ExecPlugin | None = None
    auth_provider: AuthProvider | None = None
    impersonate: str = msgspec.field(name="as", default="")
    impersonate_uid: str = msgspec.field(name="as-uid", default="")
    impersonate_groups: list[str] = msgspec.field(name="as-groups", default_factory=list)


class _NamedExtension(msgspec.Struct, frozen=True):
    name: str
    extension: Any = None


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: ClusterEntry | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: ContextEntry | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: UserEntry | None = None


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    contexts: list[_NamedContext] | None = None
    users: list[_NamedUser] | None = None


def from_files(paths: Sequence[Path], *, context: str = "", clock: Clock) -> ClientConfig:
    """Return the cluster of `context` (the current one by default), as the files say.

    Relative names in a file are relative to it. Raises: ClusterConfigError.
    """
    files = [(path, _read(path)) for path in paths]
    where = ", ".join(map(str, paths))
    wanted = context or next((file.current_context for _, file in files if file.current_context), "")
    if not wanted:
        raise ClusterConfigError(where, "current-context", "not set; choose a context")
    _, named_context = _find([(p, f.contexts) for p, f in files], wanted, where, "contexts")
    chosen = named_context.context or ContextEntry()
    cluster_path, named_cluster = _find(
        [(p, f.clusters) for p, f in files], chosen.cluster, where, "clusters"
    )
    cluster = named_cluster.cluster or ClusterEntry()
    user_path, user = cluster_path, UserEntry()
    if chosen.user:
        user_path, named_user = _find([(p, f.users) for p, f in files], chosen.user, where, "users")
        user = named_user.user or user
    return _config(cluster, cluster_path, user, user_path, chosen, clock)


def _config(
    cluster: ClusterEntry,
    cluster_path: Path,
    user: UserEntry,
    user_path: Path,
    context: ContextEntry,
    clock: Clock,
) -> ClientConfig:
    source = f"{cluster_path} clusters[{context.cluster}]"
    server = checked_server(cluster.server, source)
    if cluster.proxy_url and not cluster.proxy_url.startswith(("http://", "https://")):
        raise ClusterConfigError(
            source, "proxy-url", f"{cluster.proxy_url!r}: only http and https proxies are supported"
        )
    ca_data = cluster.certificate_authority_data
    tls = tls_context(
        server,
        ca_file="" if ca_data else _beside(cluster_path, cluster.certificate_authority),
        ca_data=_decoded(ca_data, source, "certificate-authority-data").decode("ascii", "replace"),
        insecure=cluster.insecure_skip_tls_verify,
        source=source,
    )
    user_source = f"{user_path} users[{context.user}]"
    if tls is not None:
        _present_certificate(tls, user, user_path, user_source)
    return ClientConfig(
        server=server,
        namespace=context.namespace or "default",
        tls=tls,
        server_name=cluster.tls_server_name,
        proxy_url=cluster.proxy_url,
        credentials=_credentials(user, context.user, user_path, user_source, cluster, tls, clock),
        headers=_impersonation(user),
        extensions={each.name: each.extension for each in cluster.extensions or ()},
    )


def _credentials(
    user: UserEntry,
    user_name: str,
    path: Path,
    source: str,
    cluster: ClusterEntry,
    tls: ssl.SSLContext | None,
    clock: Clock,
) -> Credentials:
    """Return the credentials in client-go's order: a token (its file first), a password, a plugin, a provider."""
    if user.token_file:
        return TokenFile(_beside(path, user.token_file))
    if user.token:
        return StaticHeader(f"Bearer {user.token}")
    if user.username:
        pair = f"{user.username}:{user.password}".encode()
        return StaticHeader(f"Basic {base64.b64encode(pair).decode()}")
    if user.exec is not None:
        info = msgspec.to_builtins(cluster)
        return ExecCredentials(
            user.exec, directory=path.parent, cluster=info, tls=tls, source=source, clock=clock
        )
    if user.auth_provider is not None:
        return _provider(user.auth_provider, user_name, path, source, clock)
    return ANONYMOUS


def _provider(
    provider: AuthProvider, user_name: str, path: Path, source: str, clock: Clock
) -> OidcCredentials:
    if provider.name != "oidc":
        raise ClusterConfigError(
            source, "auth-provider", f"{provider.name!r} is not supported; use its exec plugin instead"
        )
    settings = msgspec.convert(provider.config, OidcProvider)
    settings = msgspec.structs.replace(
        settings, idp_certificate_authority=_beside(path, settings.idp_certificate_authority)
    )

    def keep(id_token: str, refresh_token: str) -> None:
        _write_back(path, user_name, {"id-token": id_token, "refresh-token": refresh_token})

    return OidcCredentials(settings, source=source, clock=clock, keep=keep)


def _impersonation(user: UserEntry) -> tuple[tuple[str, str], ...]:
    if not user.impersonate:
        return ()
    headers = [("Impersonate-User", user.impersonate)]
    headers += [("Impersonate-Group", group) for group in user.impersonate_groups]
    if user.impersonate_uid:
        headers.append(("Impersonate-Uid", user.impersonate_uid))
    return tuple(headers)


def _present_certificate(tls: ssl.SSLContext, user: UserEntry, path: Path, source: str) -> None:
    certificate = _bytes(
        user.client_certificate_data, user.client_certificate, path, source, "client-certificate"
    )
    key = _bytes(user.client_key_data, user.client_key, path, source, "client-key")
    if certificate and not key:
        raise ClusterConfigError(source, "client-key", "missing, but there is a client-certificate")
    if certificate:
        load_certificate(tls, certificate, key, source)


def _read(path: Path) -> _File:
    try:
        parsed: Any = yaml_text.load(user_files.read_text(path))
    except user_files.FileError as error:
        raise ClusterConfigError(str(path), error.place, error.reason) from error
    except OSError as error:
        raise ClusterConfigError(str(path), "", (error.strerror or str(error)).lower()) from error
    except yaml_text.YamlError as error:
        raise ClusterConfigError(str(path), "", f"no YAML: {error}") from error
    try:
        # Editors leave `clusters: null` and `args: null` behind; both mean nothing.
        return decode.from_builtins(parsed or {}, _File)
    except msgspec.ValidationError as error:
        why, _, field = str(error).partition(" - at ")
        raise ClusterConfigError(str(path), field.strip("`"), why) from error


def _find(files: Sequence[tuple[Path, list[N] | None]], name: str, where: str, field: str) -> tuple[Path, N]:
    for path, entries in files:
        for entry in entries or ():
            if entry.name == name:
                return path, entry
    known = sorted({entry.name for _, entries in files for entry in entries or ()})
    raise ClusterConfigError(where, field, f"{name!r} not found; there is {', '.join(known) or 'none'}")


def _beside(path: Path, name: str) -> str:
    """Return a file name in a kubeconfig, relative to that file."""
    return str(path.parent / name) if name else ""


def _bytes(data: str, name: str, path: Path, source: str, field: str) -> bytes:
    if data:
        return _decoded(data, source, f"{field}-data")
    if not name:
        return b""
    try:
        return user_files.read(_beside(path, name))
    except (OSError, user_files.FileError) as error:
        raise ClusterConfigError(source, field, str(error)) from error


def _decoded(data: str, source: str, field: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ClusterConfigError(source, field, f"no base64: {error}") from error


def _write_back(path: Path, user_name: str, changes: dict[str, str]) -> None:
    """Keep renewed tokens where kubectl finds them: a rotated refresh token is worth nothing twice."""
    document = yaml_text.load(user_files.read_text(path))
    for entry in document.get("users") or ():
        if entry.get("name") == user_name:
            entry["user"]["auth-provider"]["config"].update(changes)
    fresh = path.with_name(f".{path.name}.new")
    fresh.touch(mode=0o600)
    fresh.write_text(yaml.safe_dump(document, sort_keys=False))
    fresh.replace(path)


def load(
    *,
    server: str = "",
    kubeconfig_file: str = "",
    context: str = "",
    clock: Clock | None = None,
) -> ClientConfig:
    """Return the first that is there: `server` (a URL), `kubeconfig_file`, the files of `$KUBECONFIG`,
    `~/.kube/config`, the pod that we run in.

    Raises: ClusterConfigError, which says what was looked for.
    """
    clock = clock or SystemClock()
    if server:
        return config.from_url(server)
    if kubeconfig_file:
        return from_files([Path(kubeconfig_file)], context=context, clock=clock)
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    candidates = named or [Path.home() / ".kube" / "config"]
    present = [path for path in candidates if path.is_file()]
    if present:
        return from_files(present, context=context, clock=clock)
    if not named and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return config.in_cluster()
    looked_for = ", ".join(str(path) for path in candidates)
    raise config.ClusterConfigError(
        "kubeconfig",
        "",
        f"no cluster is configured: {looked_for} not found; name its kubeconfig with --kubeconfig FILE, "
        "or start a cluster on this machine: koordinator up",
    )
