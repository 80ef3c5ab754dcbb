"""Certificates and webhook configurations kept right, on every replica (behaviour/manager 12.1).

A round makes sure of the certificates, has API servers trust them, and then has the server present them, in this order
when the CA changes: who calls us always trusts what it meets. Rounds come every minute and whenever the Secret or a
configuration changes.

Certificates are kept between restarts and among replicas: in a Secret, or in files. The directory is read and replaced
as a whole. Its files are links into a directory of one version, which a single rename exchanges (as the kubelet does
for mounted Secrets): who reads certificate and key through `..data` never gets halves of two pairs.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

from koordinator.api import admission as views
from koordinator.api import user_files
from koordinator.api.core import Secret
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import Object, Resource
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard, supervise
from koordinator.manager.webhooks import certificates, configuration
from koordinator.manager.webhooks.certificates import SECRET_KEYS, CertificateSet, Renewal
from koordinator.manager.webhooks.configuration import TEMPLATE, CertWriter, WebhookService, WebhookSettings

log = logging.getLogger(__name__)

TRIES_MAX = 5
"""Most tries: of several replicas that renew at the same time one wins; who loses so often has another problem."""


class CertificateStore(Protocol):
    """Keeps one set of certificates."""

    name: str
    """For people: which store it is."""

    async def load(self) -> "LoadedCertificates":
        """Return what is kept now. Raises: ApiError, CertificateDirError."""
        ...

    async def save(self, certs: CertificateSet, instead_of: "LoadedCertificates") -> bool:
        """Replace what was loaded; False when somebody else was faster. Raises: ApiError, CertificateDirError."""
        ...


class LoadedCertificates(NamedTuple):
    """A set as it was loaded; `version` is None when there is no object yet."""

    certs: CertificateSet | None
    version: str | None = None


class SecretStore:
    """A Secret that all replicas share."""

    def __init__(self, cluster: Cluster, namespace: str, secret: str) -> None:
        self.name = f"Secret {namespace}/{secret}"
        self._cluster = cluster
        self._namespace, self._secret = namespace, secret

    async def load(self) -> LoadedCertificates:
        """See `CertificateStore`."""
        try:
            secret = await self._cluster.get(Secret, self._secret, self._namespace)
        except errors.NotFound:
            return LoadedCertificates(None)
        return LoadedCertificates(_decoded(secret), secret.metadata.resource_version)

    async def save(self, certs: CertificateSet, instead_of: LoadedCertificates) -> bool:
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

    async def load(self) -> LoadedCertificates:
        """See `CertificateStore`."""
        return LoadedCertificates(read(self._folder))

    async def save(self, certs: CertificateSet, instead_of: LoadedCertificates) -> bool:
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


PERIOD_S = 60.0
PROPAGATION_S = 5.0
"""API servers learn of a changed configuration by a watch; this is ample."""
RETRIES = BackoffPolicy(initial_s=1.0, max_s=60.0)
# Whoever changes back what we write (another installation, a replica with other gates while gates are rolled
# out) must not make us write without end; the first repair comes at once.
REPAIRS = BackoffPolicy(initial_s=0.1, max_s=60.0)
CONFLICTS_MAX = 5


class MissingConfiguration(KoordinatorError):
    """A webhook configuration is not there: without it no API server asks us."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} {name} does not exist: apply the manager's manifests (`koordinator install --apply`), or name "
            f"another one by {kind.removesuffix('WebhookConfiguration').upper()}_WEBHOOK_NAME"
        )


class _Mutating(Object, frozen=True, kw_only=True):
    """Its entries as plain JSON: they are written back whole, with fields that we may not know."""

    resource: ClassVar[Resource] = views.MutatingWebhookConfiguration.resource

    webhooks: list[dict[str, Any]] = []


class _Validating(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = views.ValidatingWebhookConfiguration.resource

    webhooks: list[dict[str, Any]] = []


_Configuration = _Mutating | _Validating


class WebhookSync:
    """`run` works until cancelled; `present` is called with certificates to serve from now on.

    `paths` are those with an active handler. Without any, no certificate is made and the lists are emptied.
    """

    def __init__(
        self,
        cluster: Cluster,
        factory: InformerFactory,
        settings: WebhookSettings,
        paths: Collection[str],
        present: Callable[[CertificateSet], None],
        *,
        rng: random.Random,
    ) -> None:
        self.guard = Guard("webhook certificates and configurations")
        self.done = asyncio.Event()
        """Set after the first round that succeeded."""
        self._cluster = cluster
        self._clock: Clock = cluster.clock
        self._settings = settings
        self._paths = frozenset(paths)
        self._present = present
        self._where: WebhookService | str = settings.service
        self._presented: CertificateSet | None = None
        self._retries = Backoff(RETRIES, rng)
        self._repairs = Backoff(REPAIRS, rng)
        self._woken = asyncio.Event()
        namespace = settings.service.namespace
        self._uses_files = settings.writer is CertWriter.FS
        self._store: CertificateStore = (
            FileStore(settings.cert_dir)
            if self._uses_files
            else SecretStore(cluster, namespace, settings.secret_name)
        )
        self._configurations = ((_Mutating, settings.mutating_name), (_Validating, settings.validating_name))
        for view, name in self._configurations:
            self._wake_on(factory.informer(view, field_selector=f"metadata.name={name}"))
        if not self._uses_files:
            selector = f"metadata.name={settings.secret_name}"
            self._wake_on(factory.informer(Secret, namespace, field_selector=selector))

    def serve_at(self, port: int) -> None:
        """The port that the server listens on, for configurations that call it by address."""
        if self._settings.host:
            host = self._settings.host
            self._where = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    async def run(self) -> NoReturn:
        """Rounds until cancelled."""
        await supervise(self._step, self._retries, self.guard)

    async def _step(self) -> float:
        self._woken.clear()
        changed = await self.round()
        self.done.set()
        if changed:
            await asyncio.sleep(self._repairs.next_s())
        try:
            async with asyncio.timeout(PERIOD_S):
                await self._woken.wait()
        except TimeoutError:
            self._repairs.reset()
        return 0.0

    async def round(self) -> bool:
        """Bring everything to its wanted state once; whether a configuration was written.

        Raises: ApiError, CertificateDirError, MissingConfiguration.
        """
        if not self._paths:
            return await self._configure(None)
        certs = await ensure(self._store, self._settings.dns_name, self._clock)
        if not self._uses_files:
            write(self._settings.cert_dir, certs)
        if not self._must_be_trusted_first(certs):
            self._serve(certs)
            return await self._configure(certs)
        try:
            changed = await self._configure(certs)
        except MissingConfiguration:
            self._serve(certs)  # nobody calls us as it is
            raise
        await asyncio.sleep(PROPAGATION_S)
        self._serve(certs)
        return changed

    def _must_be_trusted_first(self, certs: CertificateSet) -> bool:
        """Return whether callers get along with what we present now, and do not know the new CA yet."""
        presented = self._presented
        if presented is None or presented.ca_cert == certs.ca_cert:
            return False
        why = certificates.why_renew(presented, self._settings.dns_name, self._clock.now())
        return why in (Renewal.NONE, Renewal.ENDS_SOON)

    def _serve(self, certs: CertificateSet) -> None:
        if certs != self._presented:
            self._present(certs)
            self._presented = certs

    async def _configure(self, certs: CertificateSet | None) -> bool:
        """Both configurations as they should be; whether one was written."""
        changed = False
        missing: MissingConfiguration | None = None
        for view, name in self._configurations:
            try:
                changed |= await self._ensure(view, name, certs)
            except MissingConfiguration as error:
                if self._paths:  # without any webhook, none has to be configured
                    missing = missing or error
        if missing is not None:
            raise missing
        return changed

    async def _ensure(self, view: type[_Configuration], name: str, certs: CertificateSet | None) -> bool:
        kind = view.resource.kind
        for _ in range(CONFLICTS_MAX):
            try:
                found = await self._cluster.get(view, name)
                meta = found.metadata
                bundle = configuration.bundle_of(found.webhooks)
                wanted = configuration.wanted(
                    meta.annotations,
                    found.webhooks,
                    where=self._where,
                    ca_bundle=certificates.trusted(certs, bundle, self._clock.now()) if certs else b"",
                    paths=self._paths,
                )
                if wanted.problem:
                    log.warning("webhook configuration: %s", wanted.problem, extra={"configuration": name})
                if not configuration.differs(wanted, meta.annotations, found.webhooks):
                    return False
                patch = {
                    "metadata": {
                        "resourceVersion": meta.resource_version,
                        "annotations": {TEMPLATE: wanted.template},
                    },
                    "webhooks": wanted.webhooks,
                }
                await self._cluster.patch(view, name, patch)
            except errors.Conflict:
                continue
            except errors.NotFound:
                raise MissingConfiguration(kind, name) from None
            names = [entry.get("name") for entry in wanted.webhooks]
            log.info("webhook configuration written", extra={"configuration": name, "webhooks": names})
            return True
        raise errors.Conflict(
            f"{kind} {name}: changed by others {CONFLICTS_MAX} times while it was put right"
        )

    def _wake_on(self, informer: Informer[Any]) -> None:
        def wake(*_: object) -> None:
            self._woken.set()

        informer.add_handler(wake, wake, wake)
