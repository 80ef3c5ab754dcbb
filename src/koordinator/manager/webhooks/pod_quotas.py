"""Answer the questions of pod handlers about quotas: which one, whether it may be, where its nodes are, is there
room.
"""

import random
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import quota_labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.quantity import QuantityError
from koordinator.api.quota_group import ElasticQuotaProfile
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.manager.options import QuotaUpdateOptions
from koordinator.manager.quota import evaluation, pods
from koordinator.manager.quota.evaluation import QuotaLookupError
from koordinator.manager.quota.evaluator import QuotaEvaluationError, QuotaEvaluator
from koordinator.manager.quota.pods import PodQuotaRules, QuotaUseVerdict
from koordinator.manager.webhooks import pod_injecting
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.manager.webhooks.review import ALLOWED, AdmissionVerdict, denied

_BY_TREE = "tree"


class EvaluationRules(msgspec.Struct, frozen=True, kw_only=True):
    """Feature gates of quota evaluation."""

    on_create: bool = False  # EnableQuotaAdmission
    on_update: bool = False  # EnableQuotaAdmissionOnUpdate
    replaces_resources: bool = False  # ElasticQuotaEvaluationTransformPod and ReplaceResourcesTransformer

    @classmethod
    def of(cls, gates: FeatureGates) -> "EvaluationRules":
        """Return the rules of a manager's gates."""
        is_on = gates.is_on("EnableQuotaAdmission")
        return cls(
            on_create=is_on,
            on_update=is_on and gates.is_on("EnableQuotaAdmissionOnUpdate"),
            replaces_resources=gates.is_on("ElasticQuotaEvaluationTransformPod")
            and gates.is_on("ReplaceResourcesTransformer"),
        )


def _trees_of(profile: ElasticQuotaProfile) -> Iterable[str]:
    tree = quota_labels.tree_id(profile.metadata.labels)
    return (tree,) if tree else ()


class PodQuotas:
    """Quotas as pods see them; everything but the reservation of room comes from caches."""

    def __init__(
        self,
        cluster: Cluster,
        factory: InformerFactory,
        topology: QuotaTopology,
        gates: FeatureGates,
        options: QuotaUpdateOptions,
        rng: random.Random,
    ) -> None:
        self._topology = topology
        self._rules = PodQuotaRules.of(gates)
        self._evaluation = EvaluationRules.of(gates)
        self._profiles = factory.informer(ElasticQuotaProfile) if gates.is_on("MultiQuotaTree") else None
        if self._profiles is not None:
            self._profiles.add_index(_BY_TREE, _trees_of)
        self._evaluator = QuotaEvaluator(cluster, factory, options, rng)

    def check(self, pod: Pod, old: Pod | None, namespace: str) -> QuotaUseVerdict:
        """Return whether a pod may be created, or changed from `old`, as far as its quota goes (behaviour/manager
        17.5).
        """
        return pods.check(self._topology.tree, pod, old, namespace, self._rules)

    def nodes_of(self, own_labels: Mapping[str, str], namespace: str) -> LabelSelector | None:
        """Return the nodes that a new pod must be placed on since its quota belongs to a tree (behaviour/manager
        14.4).

        None when it belongs to none, when no profile says which nodes the tree has, or while the feature gate
        MultiQuotaTree is off.
        """
        if self._profiles is None:
            return None
        profiles = self._profiles
        return pod_injecting.nodes_of_quota(
            self._topology.tree, own_labels, namespace, lambda tree: profiles.by_index(_BY_TREE, tree)
        )

    async def evaluate(self, pod: Pod, old: Pod | None, dry_run: bool) -> AdmissionVerdict:
        """Reserve room in the pod's quota, last of all checks: refused with code 400 when there is none.

        Code 500 when the quota could not be asked. With `old`, only a change of the quota is looked at.
        """
        rules = self._evaluation
        if not (rules.on_create if old is None else rules.on_update):
            return ALLOWED
        name = self._quota_of(pod)
        if old is not None and self._quota_of(old) == name:
            return ALLOWED
        try:
            request = evaluation.pod_request(pod, replaces_resources=rules.replaces_resources)
            decision = await self._evaluator.admit(name, request, dry_run=dry_run)
        except QuotaEvaluationError as error:
            return denied(str(error), 500)
        except (QuotaLookupError, ProtocolError, QuantityError) as error:
            return denied(str(error))
        return ALLOWED if decision.allowed else denied(decision.message)

    def _quota_of(self, pod: Pod) -> str:
        metadata = pod.metadata
        tree = self._topology.tree
        return pods.quota_name(tree, metadata.labels, metadata.namespace, label_only=self._rules.label_only)
