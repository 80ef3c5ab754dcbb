"""All that an instance of the manager keeps about quotas for its webhooks, put together."""

import msgspec

from koordinator.manager.parts import ManagerContext
from koordinator.manager.quota.validation import QuotaRules
from koordinator.manager.quota.weight_metric import SharedWeightMetric
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.quota_admission import (
    ConflictWatch,
    ParentLookUp,
    QuotaMutatingHandler,
    QuotaValidatingHandler,
)
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.manager.webhooks.review import Handler

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
