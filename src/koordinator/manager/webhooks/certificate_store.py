"""Keep certificates between restarts and among replicas: in a Secret, or in files (behaviour/manager 12.1).

The directory is read and replaced as a whole. Its files are links into a directory of one version, which a single
rename exchanges (as the kubelet does for mounted Secrets): who reads certificate and key through `..data` never gets
halves of two pairs.
"""

import base64
import binascii
import contextlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from koordinator.api import user_files
from koordinator.api.core import Secret
from koordinator.api.errors import KoordinatorError
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.manager.webhooks import certificates
from koordinator.manager.webhooks.certificates import SECRET_KEYS, CertificateSet, Renewal

log = logging.getLogger(__name__)


TRIES_MAX = 5
"""Of several replicas that renew at the same time one wins; who loses so often has another problem."""


class CertificateStore(Protocol):
    """Keeps one set of certificates."""

    name: str
    """For people: which store it is."""

    async def load(self) -> "Kept":
        """Return what is kept now. Raises: ApiError, CertificateDirError."""
        ...

    async def save(self, certs: CertificateSet, instead_of: "Kept") -> bool:
        """Replace what was loaded; False when somebody else was faster. Raises: ApiError, CertificateDirError."""
        ...


class Kept:
    """A set as it was loaded; `version` is None when there is no object yet."""

    def __init__(self, certs: CertificateSet | None, version: str | None = None) -> None:
        self.certs = certs
        self.version = version


class SecretStore:
    """A Secret that all replicas share."""

    def __init__(self, cluster: Cluster, namespace: str, secret: str) -> None:
        self.name = f"Secret {namespace}/{secret}"
        self._cluster = cluster
        self._namespace, self._secret = namespace, secret

    async def load(self) -> Kept:
        """See `CertificateStore`."""
        try:
            secret = await self._cluster.get(Secret, self._secret, self._namespace)
        except errors.NotFound:
            return Kept(None)
        return Kept(_decoded(secret), secret.metadata.resource_version)

    async def save(self, certs: CertificateSet, instead_of: Kept) -> bool:
        """See `CertificateStore`."""
        data = {name: base64.b64encode(content).decode() for name, content in certs.secret_data().items()}
        try:
            if instead_of.version is None:
                body: dict[str, Any] = {"metadata": {"name": self._secret}, "data": data, "type": "Opaque"}
                await self._cluster.create(Secret, body, self._namespace)
            else:
                patch = {"metadata": {"resourceVersion": instead_of.version}, "data": data}
                await self._cluster.patch(Secret, self._secret, patch, self._namespace)
        except (errors.AlreadyExists, errors.Conflict):
            return False
        except errors.NotFound:
            if instead_of.version is None:
                raise  # it is the namespace that is missing
            return False
        return True


class FileStore:
    """The certificate directory itself: one replica, or a volume that several share."""

    def __init__(self, folder: Path) -> None:
        self.name = f"directory {folder}"
        self._folder = folder

    async def load(self) -> Kept:
        """See `CertificateStore`."""
        return Kept(read(self._folder))

    async def save(self, certs: CertificateSet, instead_of: Kept) -> bool:
        """See `CertificateStore`."""
        write(self._folder, certs)
        return True


async def ensure(store: CertificateStore, host: str, clock: Clock) -> CertificateSet:
    """Good certificates for `host`: those of the store, or new ones that are in the store from now on.

    Raises: ApiError, CertificateDirError; Conflict when others were faster again and again.
    """
    for _ in range(TRIES_MAX):
        kept = await store.load()
        why = certificates.why_renew(kept.certs, host, clock.now())
        if why is Renewal.NONE:
            assert kept.certs is not None, why
            return kept.certs
        log.info(
            "webhook certificates renewed", extra={"store": store.name, "host": host, "reason": why.value}
        )
        certs = certificates.renewed(kept.certs, host, clock.now())
        if await store.save(certs, kept):
            return certs
    raise errors.Conflict(
        f"{store.name}: changed by others {TRIES_MAX} times while new certificates were made"
    )


def _decoded(secret: Secret) -> CertificateSet | None:
    """None when a key is missing; what is no base64 cannot be read later on either."""
    try:
        return CertificateSet(*(base64.b64decode(secret.data[name]) for name in SECRET_KEYS))
    except (KeyError, binascii.Error, ValueError):
        return None


_DATA = "..data"
_VERSION_PREFIX = "..v"


class CertificateDirError(KoordinatorError):
    """The directory cannot be used; the text names it and the variable that says where it is."""

    def __init__(self, folder: Path, problem: str) -> None:
        super().__init__(f"certificate directory {folder} (WEBHOOK_CERT_DIR): {problem}")


def read(folder: Path) -> CertificateSet | None:
    """Return what the directory holds; None when it, or one of the files, is missing. Raises: CertificateDirError."""
    try:
        return CertificateSet(*(user_files.read(Path(folder, name)) for name in SECRET_KEYS))
    except FileNotFoundError:
        return None
    except (OSError, user_files.FileError) as error:
        raise CertificateDirError(folder, str(error)) from error


def write(folder: Path, certs: CertificateSet) -> None:
    """Make the directory hold this set; nothing is written when it does. Raises: CertificateDirError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _holds(folder, certs):
            return
        version = Path(tempfile.mkdtemp(prefix=_VERSION_PREFIX, dir=folder))  # readable by us only
        data = certs.secret_data()
        for name, content in data.items():
            descriptor = os.open(version / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        _link(folder, _DATA, version.name)
        for name in data:
            _link(folder, name, f"{_DATA}/{name}")
        for old in folder.glob(f"{_VERSION_PREFIX}*"):
            if old != version:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise CertificateDirError(folder, str(error)) from error


def _holds(folder: Path, certs: CertificateSet) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return all(
            Path(folder, name).read_bytes() == content for name, content in certs.secret_data().items()
        )
    return False


def _link(folder: Path, name: str, target: str) -> None:
    """Make `name` a link to `target`, in one step also when there is something of that name."""
    if (folder / name).is_symlink() and os.readlink(folder / name) == target:
        return
    temporary = folder / f"{_VERSION_PREFIX}-{name}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(folder / name)
