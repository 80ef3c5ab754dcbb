"""Certificates and webhook configurations kept right, on every replica (behaviour/manager 12.1).

A round makes sure of the certificates, has API servers trust them, and then has the server present them, in this
order when the CA changes: who calls us always trusts what it meets. Rounds come every minute and whenever
the Secret or a configuration changes.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from typing import Any, ClassVar, NoReturn

from koordinator.api import admission as views
from koordinator.api.core import Secret
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import Object, Resource
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard, supervise
from koordinator.manager.webhooks import certificate_store, certificates, configuration
from koordinator.manager.webhooks.certificate_store import CertificateStore, FileStore, SecretStore
from koordinator.manager.webhooks.certificates import CertificateSet, Renewal
from koordinator.manager.webhooks.configuration import TEMPLATE, WebhookService
from koordinator.manager.webhooks.settings import CertWriter, WebhookSettings

log = logging.getLogger(__name__)

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
        certs = await certificate_store.ensure(self._store, self._settings.dns_name, self._clock)
        if not self._uses_files:
            certificate_store.write(self._settings.cert_dir, certs)
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
