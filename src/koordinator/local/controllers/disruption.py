"""Keeps the status of PodDisruptionBudgets: how many pods may be evicted now.

Source: kube-controller-manager's disruption controller. The eviction itself, which takes from
`disruptionsAllowed`, is the API server's.
"""

import logging
from collections.abc import Iterable, Sequence

import msgspec

from koordinator import clock
from koordinator.api import label_selector
from koordinator.api.apps import Deployment, ReplicaSet, ReplicationController, StatefulSet
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.groups import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from koordinator.api.meta import Condition, Object, OwnerReference, controller_of, find_condition
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer, InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import pod_control, pod_health, rollout

log = logging.getLogger(__name__)

WORKERS = 4
GRANTED_S = 120.0  # an eviction that was granted but never happened stops counting after this
BY_NAMESPACE = "namespace"
# 0 allowed is not "unknown".
_ALWAYS_WRITTEN = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


_UNMANAGED = (
    "Pods selected by this PodDisruptionBudget were found to be unmanaged: nobody knows how many of them there should "
    'be. To account for them, set ".spec.minAvailable" of the PDB to an integer value.'
)


class BudgetError(KoordinatorError):
    """A budget cannot be computed; nothing may be evicted under it."""


def desired_healthy(spec: PodDisruptionBudgetSpec, expected: int) -> int:
    """Return pods that must stay healthy out of `expected`. Raises: ProtocolError."""
    if spec.max_unavailable is not None:
        most = rollout.resolved(spec.max_unavailable, expected, "spec.maxUnavailable", up=True)
        return max(expected - most, 0)
    if spec.min_available is not None:
        return rollout.resolved(spec.min_available, expected, "spec.minAvailable", up=True)
    return 0


def needs_scale(spec: PodDisruptionBudgetSpec) -> bool:
    """Return whether the number of pods that should exist matters: not for a plain minimum."""
    return spec.max_unavailable is not None or isinstance(spec.min_available, str)


def status_of(
    budget: PodDisruptionBudget, pods: Sequence[Pod], expected: int, now_s: float
) -> PodDisruptionBudgetStatus:
    """Return the budget's status, given its pods and how many there should be. Raises: ProtocolError."""
    granted = still_granted(budget.status.disrupted_pods, pods, now_s)
    healthy = sum(
        1
        for pod in pods
        if pod.metadata.deletion_timestamp is None
        and pod.metadata.name not in granted
        and pod_health.is_ready(pod)
    )
    desired = desired_healthy(budget.spec, expected)
    allowed = max(healthy - desired, 0) if expected > 0 else 0
    return PodDisruptionBudgetStatus(
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        disrupted_pods=granted,
        observed_generation=budget.metadata.generation,
        conditions=[_condition(budget, allowed, now_s)],
    )


def still_granted(granted: dict[str, str], pods: Iterable[Pod], now_s: float) -> dict[str, str]:
    """Granted evictions whose pod is still there, unmarked, and which are not too old."""
    waiting = {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is None}
    return {
        name: when
        for name, when in granted.items()
        if name in waiting and clock.parse_rfc3339(when) + GRANTED_S > now_s
    }


def _condition(budget: PodDisruptionBudget, allowed: int, now_s: float, failure: str = "") -> Condition:
    if failure:
        status, reason = "False", "SyncFailed"
    else:
        status, reason = ("True", "SufficientPods") if allowed > 0 else ("False", "InsufficientPods")
    old = find_condition(budget.status.conditions, "DisruptionAllowed")
    since = old.last_transition_time if old is not None and old.status == status else clock.rfc3339(now_s)
    return Condition(
        type="DisruptionAllowed",
        status=status,
        reason=reason,
        message=failure,
        last_transition_time=since,
        observed_generation=budget.metadata.generation,
    )


class DisruptionController(ControllerLoop):
    """The loop; its keys are budgets."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._budgets = factory.informer(PodDisruptionBudget)
        self._budgets.add_index(BY_NAMESPACE, _namespace)
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_NAMESPACE, _namespace)
        self._scales: dict[
            str,
            Informer[ReplicaSet]
            | Informer[Deployment]
            | Informer[StatefulSet]
            | Informer[ReplicationController],
        ] = {
            "ReplicaSet": factory.informer(ReplicaSet),
            "Deployment": factory.informer(Deployment),
            "StatefulSet": factory.informer(StatefulSet),
            "ReplicationController": factory.informer(ReplicationController),
        }
        self._controller: Controller[Key] = Controller("disruption", self._reconcile, workers=WORKERS)
        self._controller.watch(self._budgets, lambda budget: [key_of(budget)])
        self._controller.watch(self._pods, self._budgets_of)
        self._informers = [self._budgets, self._pods, *self._scales.values()]

    def _budgets_of(self, pod: Pod) -> list[Key]:
        namespace = pod.metadata.namespace
        return [
            (namespace, budget.metadata.name)
            for budget in self._budgets.by_index(BY_NAMESPACE, namespace)
            if _selects(budget, pod)
        ]

    async def _reconcile(self, key: Key) -> float | None:
        budget = self._budgets.get(key[1], key[0])
        if budget is None or budget.metadata.deletion_timestamp is not None:
            return None
        now_s = self._cluster.clock.now()
        pods = [pod for pod in self._pods.by_index(BY_NAMESPACE, key[0]) if _selects(budget, pod)]
        if not pods:
            self._events.normal(budget, "NoPods", "No matching pods found")
        try:
            status = status_of(budget, pods, self._expected(budget, pods), now_s)
        except (BudgetError, ProtocolError) as error:
            message = f"Failed to calculate the number of expected pods: {error}"
            self._events.warning(budget, "CalculateExpectedPodCountFailed", message)
            # What was counted last, and for which generation, stays.
            condition = _condition(budget, 0, now_s, str(error))
            status = msgspec.structs.replace(budget.status, disruptions_allowed=0, conditions=[condition])
        # Evictions change the same fields: only the version that was counted may be replaced.
        await pod_control.write(self._cluster, budget, budget.status, status, _ALWAYS_WRITTEN, guarded=True)
        return GRANTED_S if status.disrupted_pods else None

    def _expected(self, budget: PodDisruptionBudget, pods: Sequence[Pod]) -> int:
        if not needs_scale(budget.spec):
            return len(pods)
        total = 0
        counted: set[str] = set()
        has_unmanaged = False
        for pod in pods:
            owner = controller_of(pod)
            if owner is None:
                has_unmanaged = True
                continue
            uid, replicas = self._scale(owner, pod)
            if uid not in counted:
                counted.add(uid)
                total += replicas
        if has_unmanaged:
            self._events.warning(budget, "UnmanagedPods", _UNMANAGED)
        return total

    def _scale(self, owner: OwnerReference, pod: Pod) -> tuple[str, int]:
        """uid and wanted replicas of the workload above a pod. Raises: BudgetError."""
        namespace = pod.metadata.namespace
        informer = self._scales.get(owner.kind)
        found = informer.get(owner.name, namespace) if informer is not None else None
        if found is None or found.metadata.uid != owner.uid:
            raise BudgetError(
                f"{owner.kind} {owner.name!r} of pod {pod.metadata.name!r} has no scale; "
                "use a whole number in minAvailable"
            )
        above = controller_of(found)
        if above is not None and above.kind == "Deployment":
            deployment = self._scales["Deployment"].get(above.name, namespace)
            if deployment is not None and deployment.metadata.uid == above.uid:
                found = deployment
        return found.metadata.uid, 1 if found.spec.replicas is None else found.spec.replicas


def _namespace(obj: Object) -> list[str]:
    return [obj.metadata.namespace]


def _selects(budget: PodDisruptionBudget, pod: Pod) -> bool:
    selector = budget.spec.selector
    if selector is None:
        return False
    try:
        return label_selector.matches(selector, pod.metadata.labels)
    except ProtocolError as error:
        log.warning(
            "PodDisruptionBudget has an invalid selector", extra={"budget": budget.key, "error": str(error)}
        )
        return False
