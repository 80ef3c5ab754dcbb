"""The metric of shared weights: every quota that the watch shows, whoever admitted it."""

from koordinator.api import quantity
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.quantity import NANO, ResourceList
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.informer import InformerFactory
from koordinator.prometheus import Gauge


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
