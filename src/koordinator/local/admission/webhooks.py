"""Ask the webhooks that users configured, first the mutating, then the validating ones (`WebhookAdmission`), in the
order of Kubernetes' admission (`AdmissionChain`): what is built in changes the object, then webhooks do; then all of
them judge what came of it, the webhooks last.

Quotas come after everything else and are charged where the object is stored (`admission.quota`), as they must not
count what others refuse.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from koordinator import cel
from koordinator.api.meta import Resource
from koordinator.cluster.backend import Backend, ObjectRecord
from koordinator.cluster.errors import (
    ApiError,
    BadRequest,
    InternalError,
    NotFound,
    RequestTooLarge,
)
from koordinator.local.admission import rules
from koordinator.local.admission.client import (
    QUESTION_BYTES_MAX,
    Caller,
    CallFailed,
    Handler,
    ServiceResolver,
)
from koordinator.local.admission.rules import CompiledWebhook
from koordinator.local.interfaces import AdmissionAttributes
from koordinator.local.patches import json_patch
from koordinator.local.schema import Catalog
from koordinator.local.store import ObjectStore

log = logging.getLogger(__name__)

Json = dict[str, Any]


_GROUP = "admissionregistration.k8s.io"
Match = tuple[CompiledWebhook, Resource]
"""A webhook, and the resource as which it wants to see the request."""
_NO_SIDE_EFFECTS = frozenset({"None", "NoneOnDryRun"})


class StoredBackend(Backend, Protocol):
    """A backend on a store of this process (`local.registry.ObjectRegistry`)."""

    store: ObjectStore

    def other_versions_of(self, resource: Resource) -> Sequence[Resource]:
        """Return the other versions in which a resource is served; cheap."""
        ...


class BackendSource:
    """Reads from a backend, its configurations straight from the store: this is asked at every write."""

    def __init__(self, backend: StoredBackend) -> None:
        self._backend = backend
        self._mutating = backend.store.table(f"mutatingwebhookconfigurations.{_GROUP}")
        self._validating = backend.store.table(f"validatingwebhookconfigurations.{_GROUP}")
        self._namespaces = backend.resolve("", "v1", "namespaces")
        self._positions = (-1, -1)
        self._webhooks: Sequence[CompiledWebhook] = ()

    def webhooks(self) -> Sequence[CompiledWebhook]:
        """Return all webhooks in order: the same object until a configuration changes."""
        positions = self._mutating.position, self._validating.position
        if self._positions != positions:
            mutating = compiled(self._mutating.records(), mutating=True)
            self._webhooks = mutating + compiled(self._validating.records(), mutating=False)
            self._positions = positions
        return self._webhooks

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        try:
            meta = self._backend.get(self._namespaces, "", namespace).obj["metadata"]
        except NotFound:  # the registry refuses objects in missing namespaces by itself
            return {}
        labels: Mapping[str, str] = meta.get("labels") or {}
        return labels

    def equivalents(self, resource: Resource) -> Sequence[Resource]:
        return self._backend.other_versions_of(resource)


class WebhookAdmission:
    """The `Admission` of `local.interfaces`.

    `rng` makes the uids of reviews, so that a seeded run repeats. Webhooks whose URL is `inproc://NAME` are answered
    by `register_handler(NAME, ...)`.
    """

    def __init__(self, source: BackendSource, services: ServiceResolver, rng: random.Random) -> None:
        self._source = source
        self._services = services
        self._caller = Caller(services)
        self._rng = rng
        self._webhooks: Sequence[CompiledWebhook] = ()
        self._asked: dict[tuple[str, ...], list[Match]] = {}

    @classmethod
    def on(cls, backend: StoredBackend, rng: random.Random) -> "WebhookAdmission":
        """With everything read from one backend."""
        return cls(BackendSource(backend), ServiceResolver(backend), rng)

    def register_service(self, namespace: str, name: str, host: str, port: int) -> None:
        """Reach a Service at this address, whatever its own ports and endpoints are."""
        self._services.register(namespace, name, host, port)

    def register_handler(self, name: str, handler: Handler) -> None:
        """Answer webhooks at `inproc://NAME` by a function of the AdmissionReview's bytes."""
        self._caller.register(name, handler)

    async def close(self) -> None:
        """End connections to webhooks."""
        await self._caller.close()

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str = "") -> bool:
        """See `local.interfaces.Admission`."""
        return bool(self._matches(resource, operation, subresource))

    async def admit(self, asked: AdmissionAttributes, obj: Json | None) -> Json | None:
        """See `local.interfaces.Admission`. The object is never changed in place."""
        obj = await self.mutate(asked, obj)
        await self.validate(asked, obj)
        return obj

    async def mutate(self, asked: AdmissionAttributes, obj: Json | None) -> Json | None:
        """Ask the mutating webhooks; return what they make of the object. Raises: ApiError."""
        matches = [match for match in self._asked_of(asked) if match[0].mutating]
        return await _Request(self, asked).mutate(matches, obj) if matches else obj

    async def validate(self, asked: AdmissionAttributes, obj: Json | None) -> None:
        """Return when the validating webhooks accept the object. Raises: ApiError."""
        matches = [match for match in self._asked_of(asked) if not match[0].mutating]
        if matches:
            await _Request(self, asked).validate(matches, obj)

    def _asked_of(self, asked: AdmissionAttributes) -> Sequence[Match]:
        return self._matches(asked.resource, asked.operation, asked.subresource)

    def _matches(self, resource: Resource, operation: str, subresource: str) -> Sequence[Match]:
        """Return the webhooks whose rules name the request, in order; asked at every write, so it is remembered."""
        webhooks = self._source.webhooks()
        if webhooks is not self._webhooks:
            self._webhooks = webhooks
            self._asked.clear()
        if not webhooks or resource.group == _GROUP:  # a bad configuration could not be repaired
            return ()
        equivalents = self._source.equivalents(resource)
        versions = (resource.version, *(other.version for other in equivalents))
        key = (resource.group, resource.plural, operation, subresource, *versions)
        found = self._asked.get(key)
        if found is None:
            found = self._asked[key] = [
                (webhook, asked_as)
                for webhook in webhooks
                if (asked_as := webhook.match(resource, operation, subresource, equivalents)) is not None
            ]
        return found


def compiled(records: Iterable[ObjectRecord], *, mutating: bool) -> list[CompiledWebhook]:
    """Return the webhooks of configurations, in the order of their names; those of one stay as they are listed."""
    return [
        rules.compile_webhook(webhook, mutating=mutating)
        for record in sorted(records, key=lambda record: str(record.obj["metadata"]["name"]))
        for webhook in record.obj.get("webhooks") or ()
    ]


def _log_warning(warning: str) -> None:
    log.info("webhook warned", extra={"warning": warning})


class _Request:
    """One request on its way through the webhooks."""

    def __init__(self, admission: WebhookAdmission, asked: AdmissionAttributes) -> None:
        self._source = admission._source
        self._caller = admission._caller
        self._rng = admission._rng
        self._warn = asked.options.warn or _log_warning
        self._asked = asked

    async def mutate(self, matches: list[Match], obj: Json | None) -> Json | None:
        """One after the other; those with reinvocationPolicy IfNeeded once more when others changed the object
        after them."""
        seen: list[tuple[Match, Json | None]] = []
        for match in matches:
            if self._selected(match[0], obj):
                obj = await self._apply(*match, obj)
                seen.append((match, obj))
        for match, left in seen:
            if match[0].reinvoked and obj is not left and self._selected(match[0], obj):
                obj = await self._apply(*match, obj)
        return obj

    async def validate(self, matches: list[Match], obj: Json | None) -> None:
        """All at once; of several refusals the first in order counts. Raises: ApiError."""
        calls = [self._ask(*match, obj) for match in matches if self._selected(match[0], obj)]
        if len(calls) == 1:
            await calls[0]
            return
        if not calls:
            return
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _selected(self, webhook: CompiledWebhook, obj: Json | None) -> bool:
        """Return whether the selectors want a request that the rules name."""
        if not rules.object_selected(webhook, obj, self._asked.old):
            return False
        labels_of = self._source.namespace_labels
        return rules.namespace_selected(
            webhook, self._asked.resource, self._asked.namespace, obj, self._asked.old, labels_of
        )

    async def _apply(self, webhook: CompiledWebhook, asked_as: Resource, obj: Json | None) -> Json | None:
        answer = await self._ask(webhook, asked_as, obj)
        if answer is None or not answer.patch or obj is None:
            return obj
        shown = rules.in_version(obj, asked_as, self._asked.resource)
        try:
            patched = json_patch.apply(shown, answer.patch)
        except ApiError as error:
            cause = error.__cause__ or error
            return self._failed(webhook, f"applying its patch: {cause}", obj)
        if not isinstance(patched, dict):
            return self._failed(webhook, "its patch leaves no object", obj)
        return rules.in_version(patched, self._asked.resource, asked_as)

    async def _ask(
        self, webhook: CompiledWebhook, asked_as: Resource, obj: Json | None
    ) -> rules.WebhookResponse | None:
        """Return the answer; None when a failure is ignored. Raises: ApiError for a refusal or a failure."""
        uid = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        request = rules.request(uid, self._asked, asked_as)
        shown = [rules.in_version(each, asked_as, self._asked.resource) for each in (obj, self._asked.old)]
        if webhook.conditions and not self._wanted(webhook, request, *shown):
            return None
        if self._asked.options.dry_run and webhook.side_effects not in _NO_SIDE_EFFECTS:
            raise BadRequest(f'admission webhook "{webhook.name}" does not support dry run')
        body = rules.question(webhook.review_version, request, *shown)
        if len(body) > QUESTION_BYTES_MAX:
            raise RequestTooLarge(
                f"Request entity too large: with its defaults it takes {len(body)} bytes, and webhook "
                f'"{webhook.name}" may be sent {QUESTION_BYTES_MAX}'
            )
        try:
            answer = rules.read(await self._caller.call(webhook, body), webhook, uid)
        except CallFailed as error:
            self._failed(webhook, f"failed to call webhook: {error}", None)
            return None
        except rules.BadAnswer as error:
            self._failed(webhook, f"received invalid webhook response: {error}", None)
            return None
        for warning in answer.warnings:
            self._warn(warning)
        if not answer.allowed:
            raise rules.denial(webhook.name, answer.status)
        return answer

    def _wanted(self, webhook: CompiledWebhook, request: Json, obj: Json | None, old: Json | None) -> bool:
        """Return whether the match conditions want the webhook to be asked. Raises: Forbidden when nobody can say."""
        try:
            return rules.conditions_hold(webhook, {"object": obj, "oldObject": old, "request": request})
        except cel.EvaluationError as error:
            if webhook.fails_closed:
                raise self._asked.forbidden(str(error)) from error
            log.warning("match condition failed", extra={"webhook": webhook.name, "reason": str(error)})
            return False

    def _failed(self, webhook: CompiledWebhook, reason: str, obj: Json | None) -> Json | None:
        """`obj` when the failure is to be ignored. Raises: InternalError when it is not."""
        if webhook.fails_closed:
            raise InternalError(f'Internal error occurred: failed calling webhook "{webhook.name}": {reason}')
        log.warning("webhook failed and was ignored", extra={"webhook": webhook.name, "reason": reason})
        return obj


class AdmissionPlugin(Protocol):
    """A judge of writes that is built in. All calls are synchronous and leave objects as they are."""

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """Return whether it has anything to say about such writes; asked at every write, so it must be cheap."""
        ...

    def mutate(self, asked: AdmissionAttributes, obj: Json) -> Json:
        """Return the object with what the plugin fills in, nothing where it only judges. Raises: ApiError."""
        return obj

    def validate(self, asked: AdmissionAttributes, obj: Json | None) -> None:
        """Raises: ApiError when the write is refused."""
        ...


class AdmissionChain:
    """The `Admission` of `local.interfaces`: plugins and webhooks."""

    def __init__(
        self, webhooks: WebhookAdmission, plugins: Sequence[AdmissionPlugin], catalog: Catalog
    ) -> None:
        self.webhooks = webhooks
        self._plugins = tuple(plugins)
        self._asks = tuple(plugin.wants for plugin in plugins)
        self._catalog = catalog

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """See `local.interfaces.Admission`."""
        if self.webhooks.wants(resource, operation, subresource, namespace):
            return True
        # A loop, since a generator would cost every write more than the questions do.
        for wants in self._asks:  # noqa: SIM110
            if wants(resource, operation, subresource, namespace):
                return True
        return False

    async def admit(self, asked: AdmissionAttributes, obj: Json | None) -> Json | None:
        """See `local.interfaces.Admission`."""
        plugins = [
            each
            for each in self._plugins
            if each.wants(asked.resource, asked.operation, asked.subresource, asked.namespace)
        ]
        for plugin in plugins:
            obj = obj if obj is None else plugin.mutate(asked, obj)
        sent = obj
        obj = await self.webhooks.mutate(asked, obj)
        if plugins and obj is not None and obj is not sent:
            obj = self._catalog.schema_of(asked.resource).default(obj)
        for plugin in plugins:
            plugin.validate(asked, obj)
        await self.webhooks.validate(asked, obj)
        return obj
