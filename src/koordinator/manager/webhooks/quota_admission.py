"""Admission of ElasticQuotas: completed at creation with a parent, its tree and a weight (behaviour/manager 17.1),
checked at every change (17). JSON in, JSON out; the input is kept.

`Quotas` is all that an instance of the manager keeps about quotas for its webhooks. The metric of shared weights shows
every quota that the watch shows, whoever admitted it.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api import labels, quantity, quota_labels, resource_list
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import NANO, ResourceList
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.backoff import Rate, TokenBucket
from koordinator.cluster.errors import ApiError, NotFound
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.manager.parts import ManagerContext
from koordinator.manager.quota import validation
from koordinator.manager.quota.tree import ROOT, QuotaInfo, QuotaTree, quota_info
from koordinator.manager.quota.validation import QuotaRefusal, QuotaRules, QuotaVerdict
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.quota_topology import Learned, QuotaTopology
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, Handler, denied
from koordinator.prometheus import Gauge

log = logging.getLogger(__name__)

LOOK_UP_S = 2.0
"""Time that the API server may take to say whether a parent exists that our watch has not shown."""
LOOK_UPS = Rate(per_s=10.0, burst=50)
"""Refusals that may read the parent: who repeats refused requests must not use up what the client may ask."""
REASON_CONFLICT = "QuotaTreeConflict"


_ABOUT_PARENT = frozenset(
    (
        QuotaRefusal.TREE_PARENT,
        QuotaRefusal.PARENT_MISSING,
        QuotaRefusal.PARENT_NOT_PARENT,
        QuotaRefusal.MAX_KEYS,
        QuotaRefusal.MIN_KEYS,
        QuotaRefusal.MIN_SUM_BROTHERS,
        QuotaRefusal.GUARANTEE,
    )
)
"""Refusals that another state of the parent could turn."""


class ParentLookUp:
    """Asks the API server for the parent of a quota that is about to be refused for it.

    Another instance may have admitted it, or a change of it, a moment ago: a file with a tree in it arrives
    request by request, and the watch has not shown it yet.
    """

    def __init__(self, cluster: Cluster, topology: QuotaTopology) -> None:
        self._cluster = cluster
        self._topology = topology
        self._bucket = TokenBucket(LOOK_UPS, cluster.clock.now())

    async def has_parent_changed(self, quota: ElasticQuota) -> bool:
        """Return whether the parent is not as the topology knew it; it knows better from now on."""
        name = quota_labels.parent_name(quota.metadata.name, quota.metadata.labels)
        before = self._topology.tree.get(name)
        if not self._bucket.try_take(self._cluster.clock.now()):
            return False
        try:
            async with asyncio.timeout(LOOK_UP_S):
                stored = await self._stored(name, before.namespace if before else quota.metadata.namespace)
        except (ApiError, TimeoutError) as error:
            log.warning("quota lookup failed", extra={"quota": name, "error": str(error)})
            return False
        for found in stored:
            self._topology.learn(found)
        return self._topology.tree.get(name) != before

    async def _stored(self, name: str, namespace: str) -> Sequence[ElasticQuota]:
        """Return the quotas of that name; the other namespaces are searched only when it is not in the likely one."""
        try:
            return [await self._cluster.get(ElasticQuota, name, namespace)]
        except NotFound:
            page = await self._cluster.list(ElasticQuota, field_selector=f"metadata.name={name}")
            return page.items


def _is_about_quotas(request: AdmissionRequest) -> bool:
    return request.resource.resource == "elasticquotas" and not request.sub_resource


def _malformed(request: AdmissionRequest, error: Exception) -> AdmissionVerdict:
    field = _field_of(request.object, error.raw) if isinstance(error, quantity.QuantityError) else ""
    return denied(f"ElasticQuota {request.namespace}/{request.name}: {field}{error}")


def _field_of(body: Any, raw: object) -> str:
    """`spec.min.cpu: ` where the amount stands; empty when it is nowhere there."""
    for section, name in (("spec", "min"), ("spec", "max"), ("status", "used")):
        amounts = (body.get(section) or {}).get(name) if isinstance(body, dict) else None
        for resource, amount in (amounts or {}).items():
            if amount == raw:
                return f"{section}.{name}.{resource}: "
    return ""


class QuotaMutatingHandler:
    """Gives new quotas their parent, tree and shared weight."""

    def __init__(self, topology: QuotaTopology, look_up: ParentLookUp) -> None:
        self._topology = topology
        self._look_up = look_up

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Return the quota completed; what is no creation of one passes untouched."""
        if not _is_about_quotas(request) or request.operation != "CREATE" or request.object is None:
            return ALLOWED
        try:
            quota = _quota(request.object, request)  # what is no quota ends here, with the wrong member
            try:
                return AdmissionVerdict(obj=complete(request.object, self._topology.tree))
            except DefaultingError as error:
                if (
                    error.refusal is not QuotaRefusal.PARENT_MISSING
                    or not await self._look_up.has_parent_changed(quota)
                ):
                    raise
            return AdmissionVerdict(obj=complete(request.object, self._topology.tree))
        except DefaultingError as error:
            return denied(_words(error.reason, error.obj, error.field, error.refusal))
        except (quantity.QuantityError, msgspec.ValidationError) as error:
            return _malformed(request, error)


class QuotaValidatingHandler:
    """Refuses what would make the quota tree contradict itself."""

    def __init__(self, topology: QuotaTopology, rules: QuotaRules, look_up: ParentLookUp) -> None:
        self._topology = topology
        self._rules = rules
        self._look_up = look_up

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Answer; an allowed change counts from now on, unless the request is a dry run."""
        if not _is_about_quotas(request):
            return ALLOWED
        try:
            match request.operation:
                case "CREATE":
                    return await self._create(_quota(request.object, request), request)
                case "UPDATE":
                    old = _quota(request.old_object, request)
                    return await self._update(old, _quota(request.object, request), request)
                case "DELETE":
                    return self._delete(_quota(request.old_object, request), request)
        except (msgspec.ValidationError, quantity.QuantityError) as error:
            return _malformed(request, error)
        return ALLOWED

    async def _create(self, quota: ElasticQuota, request: AdmissionRequest) -> AdmissionVerdict:
        topology = self._topology
        if topology.is_phantom(quota):
            topology.forget(quota.metadata.name)
        verdict = validation.check_create(topology.tree, quota, self._rules)
        if await self._should_repeat(verdict, quota):
            verdict = validation.check_create(topology.tree, quota, self._rules)
        if verdict.allowed and not request.dry_run:
            topology.note(quota, None)
        return self._answer(verdict, quota)

    async def _update(
        self, old: ElasticQuota, quota: ElasticQuota, request: AdmissionRequest
    ) -> AdmissionVerdict:
        topology = self._topology
        weight = validation.check_weight_change(old, quota)
        if not weight.allowed:
            return self._answer(weight, quota)
        if validation.is_same(old, quota):
            return _allowed([*self._standing(old, quota), *validation.annotation_warnings(quota)])
        match topology.learn(old):
            case Learned.UNREADABLE:
                return await self._create(quota, request)  # it does not count yet
            case Learned.NAME_TAKEN:
                return AdmissionVerdict(
                    warnings=(f"{quota.key} does not count: {old.metadata.name} is taken",)
                )
        verdict = validation.check_update(topology.tree, old, quota, self._rules, topology)
        if await self._should_repeat(verdict, quota):
            verdict = validation.check_update(topology.tree, old, quota, self._rules, topology)
        if verdict.allowed and not request.dry_run:
            topology.note(quota, old)
        return self._answer(verdict, quota)

    def _standing(self, old: ElasticQuota, quota: ElasticQuota) -> Sequence[str]:
        """Return what a quota breaks from now on by a change that is not checked, since it takes an exemption away."""
        if not validation.is_exempted_no_more(old, quota):
            return ()
        verdict = validation.check_standing(self._topology.tree, quota_info(quota), self._rules)
        return () if verdict.allowed else (f"the next change will be refused: {verdict.message}",)

    def _delete(self, quota: ElasticQuota, request: AdmissionRequest) -> AdmissionVerdict:
        topology = self._topology
        if topology.learn(quota) is not Learned.KNOWN:
            return ALLOWED  # it does not count
        verdict = validation.check_delete(topology.tree, quota.metadata.name, topology)
        if verdict.allowed and not request.dry_run:
            topology.note_deleted(quota)
        return self._answer(verdict, quota)

    async def _should_repeat(self, verdict: QuotaVerdict, quota: ElasticQuota) -> bool:
        """Return whether the quota was refused for a parent that is not like that any more."""
        return verdict.refusal in _ABOUT_PARENT and await self._look_up.has_parent_changed(quota)

    def _answer(self, verdict: QuotaVerdict, quota: ElasticQuota) -> AdmissionVerdict:
        if not verdict.allowed:
            return denied(
                _words(verdict.message, f"ElasticQuota {quota.key}", verdict.field, verdict.refusal)
            )
        known = self._topology.tree.get(quota.metadata.name)
        hints = [] if known is None else validation.warnings(self._topology.tree, known)
        return _allowed([*hints, *validation.annotation_warnings(quota)])


class ConflictWatch:
    """Tells when quotas that two instances admitted at the same moment contradict each other.

    Each instance knows what it has allowed itself; what another allows meanwhile shows in the watch only. So
    each looks again at what it has allowed when the watch shows it: whoever comes second finds the first.
    """

    def __init__(self, topology: QuotaTopology, rules: QuotaRules, events: EventRecorder) -> None:
        self._topology = topology
        self._rules = rules
        self._events = events
        topology.on_confirmed(self._check)

    def _check(self, quota: ElasticQuota, info: QuotaInfo) -> None:
        verdict = validation.check_standing(self._topology.tree, info, self._rules)
        if verdict.allowed:
            return
        log.warning("quota contradicts its tree", extra={"quota": quota.key, "problem": verdict.message})
        message = f"admitted at the same time as another change that contradicts it: {verdict.message}"
        self._events.warning(quota, REASON_CONFLICT, message)


def _allowed(hints: Sequence[str]) -> AdmissionVerdict:
    return AdmissionVerdict(warnings=tuple(hints)) if hints else ALLOWED


def _words(message: str, obj: str, field: str, refusal: QuotaRefusal) -> str:
    """Return what the user reads: the reference's sentence, then quota, field and rule in one form."""
    where = ", ".join(part for part in (obj, field, f"rule {refusal}") if part)
    return f"{message} ({where})"


def _quota(body: dict[str, Any] | None, request: AdmissionRequest) -> ElasticQuota:
    quota = from_builtins(body or {}, ElasticQuota)
    metadata = quota.metadata
    if metadata.namespace and metadata.name:
        return quota
    metadata = msgspec.structs.replace(
        metadata, name=metadata.name or request.name, namespace=metadata.namespace or request.namespace
    )
    return msgspec.structs.replace(quota, metadata=metadata)


class DefaultingError(ProtocolError):
    """The quota cannot be completed, so it is refused; `refusal` is the rule that it breaks."""

    def __init__(self, obj: str, field: str, reason: str, refusal: QuotaRefusal) -> None:
        super().__init__(obj, field, reason)
        self.refusal = refusal


def complete(quota: dict[str, Any], tree: QuotaTree) -> dict[str, Any]:
    """Return the quota with parent and tree labels and a shared weight for exactly the resources of `spec.max`.

    Raises: DefaultingError when its parent is unknown or its shared weight malformed.
    """
    metadata = quota.get("metadata") or {}
    name = metadata.get("name", "")
    if name == ROOT:
        return quota
    obj = f"ElasticQuota {metadata.get('namespace', '')}/{name}"
    own = dict(metadata.get("labels") or {})
    parent = own[labels.QUOTA_PARENT] = quota_labels.parent_name(name, own)
    if not quota_labels.tree_id(own) and parent != ROOT:
        known = tree.get(parent)
        if known is None:
            reason = f"fill quota {name} failed, parent not exist: {parent}"
            raise DefaultingError(obj, labels.QUOTA_PARENT, reason, QuotaRefusal.PARENT_MISSING)
        if known.tree_id:
            own[labels.QUOTA_TREE_ID] = known.tree_id
    annotations = dict(metadata.get("annotations") or {})
    spec_max = (quota.get("spec") or {}).get("max") or {}
    annotations[labels.QUOTA_SHARED_WEIGHT] = quota_labels.SHARED_WEIGHT.encode(
        _weight(obj, annotations, spec_max)
    )
    return {**quota, "metadata": {**metadata, "labels": own, "annotations": annotations}}


def _weight(obj: str, annotations: dict[str, str], spec_max: ResourceList) -> ResourceList:
    try:
        given = quota_labels.SHARED_WEIGHT.read(annotations, obj) or {}
    except ProtocolError as error:
        raise DefaultingError(obj, error.field, error.reason, QuotaRefusal.SHARED_WEIGHT) from error
    aligned = {name: given.get(name, amount) for name, amount in spec_max.items()}
    return resource_list.to_wire(resource_list.of(aligned))


DEBUG_PATH = "/elasticQuota"


class Quotas:
    """One topology and everybody who needs it. `pods` is for the handlers of pods."""

    def __init__(self, shared: ManagerContext) -> None:
        rules = QuotaRules.of(shared.gates)
        topology = self.topology = QuotaTopology(shared.factory, shared.clock)
        look_up = ParentLookUp(shared.cluster, topology)
        ConflictWatch(topology, rules, shared.events)
        SharedWeightMetric(shared.factory, shared.metrics.quota_shared_weight)
        self.mutating: Handler = QuotaMutatingHandler(topology, look_up)
        self.validating: Handler = QuotaValidatingHandler(topology, rules, look_up)
        self.pods = PodQuotas(
            shared.cluster, shared.factory, topology, shared.gates, shared.options.quota_update, shared.rng
        )

    def debug_json(self) -> bytes:
        """Return what GET `/elasticQuota` answers."""
        return msgspec.json.encode(self.topology.tree.debug_view())


class SharedWeightMetric:
    """Keeps a gauge by quota and resource, in whole units (cores for CPU)."""

    def __init__(self, factory: InformerFactory, gauge: Gauge) -> None:
        self._gauge = gauge
        factory.informer(ElasticQuota).add_handler(self._on_quota, self._on_changed, self._on_deleted)

    def _on_changed(self, old: ElasticQuota, new: ElasticQuota) -> None:
        if _shared_weight(old) != _shared_weight(new):
            self._on_deleted(old)
            self._on_quota(new)

    def _on_quota(self, quota: ElasticQuota) -> None:
        for name, raw in _shared_weight(quota).items():
            try:
                amount = quantity.of(raw)
            except quantity.QuantityError:
                continue  # counts as none; the topology has told so
            self._gauge.set(amount.nanos / NANO, quota.metadata.name, name)

    def _on_deleted(self, quota: ElasticQuota) -> None:
        for name in _shared_weight(quota):
            self._gauge.values.pop((quota.metadata.name, name), None)


def _shared_weight(quota: ElasticQuota) -> ResourceList:
    return quota_labels.shared_weight(quota.metadata.annotations, quota.spec.max)
