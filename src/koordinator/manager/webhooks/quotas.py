"""All that an instance of the manager keeps about quotas for its webhooks, put together, and the metric of shared
weights: every quota that the watch shows, whoever admitted it.
"""

import msgspec

from koordinator.api import quantity
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.quantity import NANO, ResourceList
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.informer import InformerFactory
from koordinator.manager.parts import ManagerContext
from koordinator.manager.quota.validation import QuotaRules
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.quota_admission import (
    ConflictWatch,
    ParentLookUp,
    QuotaMutatingHandler,
    QuotaValidatingHandler,
)
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.manager.webhooks.review import Handler
from koordinator.prometheus import Gauge

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
        if _weight(old) != _weight(new):
            self._on_deleted(old)
            self._on_quota(new)

    def _on_quota(self, quota: ElasticQuota) -> None:
        for name, raw in _weight(quota).items():
            try:
                amount = quantity.of(raw)
            except quantity.QuantityError:
                continue  # counts as none; the topology has told so
            self._gauge.set(amount.nanos / NANO, quota.metadata.name, name)

    def _on_deleted(self, quota: ElasticQuota) -> None:
        for name in _weight(quota):
            self._gauge.values.pop((quota.metadata.name, name), None)


def _weight(quota: ElasticQuota) -> ResourceList:
    return quota_annotations.shared_weight(quota.metadata.annotations, quota.spec.max)
