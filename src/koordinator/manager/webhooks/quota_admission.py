"""Admission of ElasticQuotas: completed at creation, checked at every change (spec 02 §17)."""

from typing import Any

import msgspec

from koordinator.api import quantity
from koordinator.api.decode import from_builtins
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota import defaulting, validation
from koordinator.manager.quota.defaulting import DefaultingError
from koordinator.manager.quota.validation import QuotaRules, QuotaVerdict
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, Verdict, denied

MUTATING_PATH = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
VALIDATING_PATH = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"


def _is_about_quotas(request: AdmissionRequest) -> bool:
    return request.resource.resource == "elasticquotas" and not request.sub_resource


class QuotaMutatingHandler:
    """Gives new quotas their parent, tree and shared weight."""

    def __init__(self, topology: QuotaTopology) -> None:
        self._topology = topology

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """The quota completed; what is no creation of one passes untouched."""
        if not _is_about_quotas(request) or request.operation != "CREATE" or request.object is None:
            return ALLOWED
        try:
            _quota(request.object, request)  # what is no quota ends here, with the member that is wrong
            return Verdict(obj=defaulting.complete(request.object, self._topology.tree))
        except (DefaultingError, quantity.QuantityError, msgspec.ValidationError) as error:
            return denied(f"ElasticQuota {request.namespace}/{request.name}: {error}")


class QuotaValidatingHandler:
    """Refuses what would make the quota tree contradict itself."""

    def __init__(self, topology: QuotaTopology, rules: QuotaRules) -> None:
        self._topology = topology
        self._rules = rules

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """An allowed change counts from now on, unless the request is a dry run."""
        if not _is_about_quotas(request):
            return ALLOWED
        try:
            verdict = self._decide(request)
        except (msgspec.ValidationError, quantity.QuantityError) as error:
            return denied(f"ElasticQuota {request.namespace}/{request.name}: {error}")
        return ALLOWED if verdict.allowed else denied(verdict.message)

    def _decide(self, request: AdmissionRequest) -> QuotaVerdict:
        topology = self._topology
        match request.operation:
            case "CREATE":
                quota = _quota(request.object, request)
                verdict = validation.check_create(topology.tree, quota, self._rules)
            case "UPDATE":
                quota, old = _quota(request.object, request), _quota(request.old_object, request)
                verdict = validation.check_update(topology.tree, old, quota, self._rules, topology)
            case "DELETE":
                verdict = validation.check_delete(topology.tree, request.name, topology)
                if verdict.allowed and not request.dry_run:
                    topology.note_deleted(request.name)
                return verdict
            case _:
                return validation.ALLOWED
        if verdict.allowed and not request.dry_run:
            topology.note(quota)
        return verdict


def _quota(body: dict[str, Any] | None, request: AdmissionRequest) -> ElasticQuota:
    quota = from_builtins(body or {}, ElasticQuota)
    metadata = quota.metadata
    if metadata.namespace:
        return quota
    return msgspec.structs.replace(
        quota, metadata=msgspec.structs.replace(metadata, namespace=request.namespace)
    )
