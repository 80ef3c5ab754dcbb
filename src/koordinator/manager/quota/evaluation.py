"""Decide whether a pod still fits its quota when it is created (behaviour/manager 18, feature gate
EnableQuotaAdmission).

Pure. A quota bounds what pods ask for, not only what runs: the sum is kept in annotation `child-request`, and the
scheduler rewrites it with the truth. Pods of one quota are decided in the order of their arrival.

The quota that a pod belongs to is found here, too, and whether it may (behaviour/manager 17.5).
"""

import enum
import math
import random
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec

from koordinator.api import (
    labels,
    normalization,
    pod_labels,
    pod_resources,
    quantity,
    quota_labels,
    resource_list,
    resources,
)
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota.tree import QuotaTree


class PodRefusal(enum.StrEnum):
    """The rule that a pod breaks; empty when it breaks none."""

    NONE = ""
    PREEMPTIBLE = "preemptible"
    PARENT_QUOTA = "parent-quota"


class QuotaUseVerdict(msgspec.Struct, frozen=True):
    """The decision whether a pod may use its quota; if not, by which rule, and in words for the user."""

    refusal: PodRefusal = PodRefusal.NONE
    message: str = ""

    @property
    def allowed(self) -> bool:
        """No rule is broken."""
        return self.refusal is PodRefusal.NONE


class PodQuotaRules(msgspec.Struct, frozen=True, kw_only=True):
    """Feature gates that change the rules."""

    label_only: bool = False  # DisableDefaultQuota
    allows_parents: bool = False  # SupportParentQuotaSubmitPod

    @classmethod
    def of(cls, gates: FeatureGates) -> Self:
        """Return the rules of a manager's gates."""
        return cls(
            label_only=gates.is_on("DisableDefaultQuota"),
            allows_parents=gates.is_on("SupportParentQuotaSubmitPod"),
        )


def quota_name(
    tree: QuotaTree, pod_labels: Mapping[str, str], namespace: str, *, label_only: bool = False
) -> str:
    """Return the name of the quota that a pod belongs to, empty for none.

    By label; else the quota named like, and living in, its namespace; else the one that its namespace is
    bound to; else the default one. `label_only` leaves out all but the label.
    """
    if named := pod_labels.get(labels.QUOTA_NAME, ""):
        return named
    if label_only:
        return ""
    own = tree.get(namespace)
    if own is not None and own.namespace == namespace:
        return own.name
    bound = tree.bound_to(namespace)
    return bound.name if bound is not None else labels.DEFAULT_QUOTA_NAME


def check_quota_use(
    tree: QuotaTree, pod: Pod, old: Pod | None, namespace: str, rules: PodQuotaRules
) -> QuotaUseVerdict:
    """Return whether a pod may be created or, with `old`, changed.

    A quota that nobody knows is the default one, and that takes pods whatever it is labelled.
    """
    if old is not None:
        was, now = (each.metadata.labels.get(labels.QUOTA_PREEMPTIBLE, "") for each in (old, pod))
        if was != now:
            message = f'labels.{labels.QUOTA_PREEMPTIBLE}: Invalid value: "{now}": field is immutable'
            return QuotaUseVerdict(PodRefusal.PREEMPTIBLE, f"{message} (rule {PodRefusal.PREEMPTIBLE})")
    name = quota_name(tree, pod.metadata.labels, namespace, label_only=rules.label_only)
    quota = None if name == labels.DEFAULT_QUOTA_NAME else tree.get(name)
    if quota is not None and quota.is_parent and not rules.allows_parents:
        message = f"pod can not be linked to a parentQuotaGroup,quota:{name}, pod:{pod.metadata.name}"
        by = f"label {labels.QUOTA_NAME}" if pod.metadata.labels.get(labels.QUOTA_NAME) else "its namespace"
        where = f"ElasticQuota {quota.key} by {by}, rule {PodRefusal.PARENT_QUOTA}"
        return QuotaUseVerdict(PodRefusal.PARENT_QUOTA, f"{message} ({where})")
    return QuotaUseVerdict()


RETRIES_MIN = 3
TIMEOUT_S = 10.0
"""Time that a pod waits for its decision."""
TIMEOUT_MESSAGE = "elastic quota evaluation timed out"

_POD_RESOURCES = frozenset(
    (
        resources.CPU,
        resources.MEMORY,
        resources.EPHEMERAL_STORAGE,
        *resources.BATCH_RESOURCES,
        *resources.MID_RESOURCES,
        resources.GPU,
        resources.NVIDIA_GPU,
        resources.GPU_SHARED,
        resources.GPU_MEMORY_RATIO,
    )
)
_REQUESTS_PREFIX = "requests."
_BUILT_IN = ("", labels.ROOT_QUOTA_NAME, labels.SYSTEM_QUOTA_NAME, labels.DEFAULT_QUOTA_NAME)


class QuotaLookupError(KoordinatorError):
    """The quota that a pod names cannot be told: none or several have that name."""

    def __init__(self, quota: str, reason: str) -> None:
        super().__init__(quota, reason)
        self.quota, self.reason = quota, reason

    def __str__(self) -> str:
        return self.reason


class QuotaLimit(msgspec.Struct, frozen=True):
    """A quota as evaluation sees it. `used` is what its admitted pods ask for."""

    key: str  # namespace/name
    max: Amounts
    limit: Amounts
    used: Amounts


class QuotaEvaluation(msgspec.Struct, frozen=True):
    """The decision on a pod; what it adds to `used`; if it does not fit, why, in words."""

    allowed: bool
    delta: Amounts = {}
    message: str = ""


def find(quotas: Sequence[ElasticQuota], name: str) -> ElasticQuota | None:
    """Return the one quota of that name in the cluster, None when the name is none that is evaluated.

    Raises: QuotaLookupError.
    """
    if name in _BUILT_IN:
        return None
    found = [quota for quota in quotas if quota.metadata.name == name]
    if not found:
        raise QuotaLookupError(name, f"elastic quota {name} not found")
    if len(found) > 1:
        raise QuotaLookupError(name, f"more than one elastic quota {name} found")
    return found[0]


def limit_of(quota: ElasticQuota) -> QuotaLimit:
    """Return the limit: annotation `admission` if it says anything, else `spec.max`.

    Raises: ProtocolError when an annotation is malformed; quantity.QuantityError.
    """
    quota = normalization.normalize_quota(quota)
    annotations = quota.metadata.annotations
    obj = f"ElasticQuota {quota.key}"
    most = resource_list.of(quota.spec.max)
    admission = resource_list.of(quota_labels.ADMISSION.read(annotations, obj) or {})
    used = resource_list.of(quota_labels.CHILD_REQUEST.read(annotations, obj) or {})
    return QuotaLimit(quota.key, most, admission or most, used)


def pod_request(pod: Pod, *, replaces_resources: bool = False) -> Amounts:
    """Return what a pod asks for, nothing when it has ended.

    `replaces_resources` applies its annotation `replace-resources` first (feature gate
    ElasticQuotaEvaluationTransformPod). Raises: quantity.QuantityError.
    """
    if pod_labels.is_terminated(pod):
        return {}
    return pod_resources.requests(normalization.replace_pod_resources(pod) if replaces_resources else pod)


def evaluate(quota: QuotaLimit, request: Amounts) -> QuotaEvaluation:
    """Return whether the quota has room for a pod's request. Resources that the quota does not name are not its
    business."""
    if not any(_is_pod_resource(name) for name in quota.max):
        return QuotaEvaluation(True)
    delta = resource_list.without_zeros(resource_list.mask(request, quota.max))
    after = resource_list.add(quota.used, delta)
    exceeded = sorted(name for name in delta if name in quota.limit and after[name] > quota.limit[name])
    if exceeded:
        return QuotaEvaluation(False, message=_words(quota, delta, exceeded))
    return QuotaEvaluation(True, delta)


def decide(quota: ElasticQuota, request: Amounts) -> QuotaEvaluation:
    """Return whether a quota as it stands has room; a pod that asks for nothing of it may come, whatever its
    annotations say.

    Raises: ProtocolError when an annotation is malformed; quantity.QuantityError.
    """
    try:
        limit = limit_of(quota)
    except ProtocolError:
        metadata = msgspec.structs.replace(quota.metadata, annotations={})
        decision = evaluate(limit_of(msgspec.structs.replace(quota, metadata=metadata)), request)
        if decision.delta or not decision.allowed:
            raise
        return decision
    return evaluate(limit, request)


def evaluate_batch(quota: QuotaLimit, requests: Sequence[Amounts]) -> tuple[list[QuotaEvaluation], Amounts]:
    """Return the decisions on pods in the order of their arrival, and `used` after those that fit."""
    decisions = []
    for request in requests:
        decision = evaluate(quota, request)
        decisions.append(decision)
        if decision.delta:
            used = resource_list.add(quota.used, decision.delta)
            quota = msgspec.structs.replace(quota, used=used)
    return decisions, quota.used


def retries(changed_pods: int, retries_max: int) -> int:
    """Return how often a batch is written again after a conflict; `retries_max` is `--quota-update-max-retries`.

    The more pods depend on the write, the more it is worth.
    """
    most = max(RETRIES_MIN, retries_max)
    extra = int(math.log2(changed_pods)) if changed_pods > 1 else 0
    return min(most, RETRIES_MIN + extra)


def retry_pause_s(jitter_s: float, slept_s: float, total_s_max: float, rng: random.Random) -> float:
    """Return how long to wait before a quota is read again after a conflict: [jitter/2, jitter), bounded in total."""
    pause_s = jitter_s / 2 + rng.random() * jitter_s / 2
    return max(0.0, min(pause_s, total_s_max - slept_s))


def child_request_text(used: Amounts) -> str:
    """Return the text of annotation `child-request`."""
    return quota_labels.CHILD_REQUEST.encode(resource_list.to_wire(used))


def _is_pod_resource(name: str) -> bool:
    return name in _POD_RESOURCES or name.startswith(_REQUESTS_PREFIX)


def _words(quota: QuotaLimit, delta: Amounts, exceeded: Sequence[str]) -> str:
    def listed(amounts: Amounts) -> str:
        return ",".join(f"{name}={amounts.get(name, quantity.ZERO)}" for name in exceeded)

    return (
        f"exceeded quota: {quota.key}, requested: {listed(delta)}, "
        f"used: {listed(quota.used)}, limited: {listed(quota.limit)}"
    )
