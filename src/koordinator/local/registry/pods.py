"""Pods: what the API server fills in and which priority and tolerations its admission plugins give.

Source: the pod strategy, and the admission plugins Priority, DefaultTolerationSeconds, ServiceAccount and
PodTopologyLabels.
"""

from typing import Any

import msgspec

from koordinator.api import core, decode, qos
from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.registry import refusals
from koordinator.local.registry.strategies import KindFacts, RestStrategy, StrategyContext, kept_metadata
from koordinator.local.schema import errors as fields
from koordinator.local.schema.builtin.checks import pod_updates
from koordinator.local.schema.known import ByIdentity, is_shared, share
from koordinator.local.store import ObjectStore

PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
ACCOUNTS = "serviceaccounts"
DEFAULT_ACCOUNT = "default"
NODES = "nodes"
_TOPOLOGY = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
TOLERATION_S = 300  # how long pods stay on a node that is not ready or unreachable, unless they say so
_EVICTING_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_ENDED = ("Succeeded", "Failed")


_Priority = tuple[Any, Any, Any]
"""Priority, preemption policy and class as the classes of the moment say."""


class PodStrategy(RestStrategy):
    """Pods are the one kind that is deleted gracefully."""

    def __init__(self, resource: Resource, facts: KindFacts, has_status: bool) -> None:
        super().__init__(resource, facts, has_status)
        # Replicas share their spec (`local.schema.known`), and it stays shared when it was admitted.
        self._admitted: ByIdentity[tuple[_Priority, dict[str, Any]]] = ByIdentity()
        self._qos: ByIdentity[str] = ByIdentity()

    def admit_create(self, obj: dict[str, Any], around: StrategyContext) -> None:
        sent = obj.get("spec") or {}
        spec = dict(sent)
        if sent.get("nodeName"):
            add_topology(obj["metadata"], around.store, sent["nodeName"])
        if around.checks:
            _check_account(spec, self, obj["metadata"], around)
        _give_priority(spec, self, obj["metadata"].get("name", ""), around)
        priority = spec["priority"], spec["preemptionPolicy"], spec.get("priorityClassName")
        known = self._admitted.get(sent)
        if known is not None and known[0] == priority:
            obj["spec"] = known[1]
            return
        _give_tolerations(spec)
        spec.setdefault("serviceAccountName", spec.get("serviceAccount") or DEFAULT_ACCOUNT)
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
        obj["spec"] = spec
        if is_shared(sent):
            share(spec)
            self._admitted.put(sent, (priority, spec))

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        quality = self._qos.get(obj["spec"])
        if quality is None:
            quality = qos_class(obj)
            if is_shared(obj["spec"]):
                self._qos.put(obj["spec"], quality)
        status: dict[str, Any] = {"phase": "Pending", "qosClass": quality}
        if obj["spec"].get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": None,
                    "lastTransitionTime": now,
                }
            ]
        obj["status"] = status
        if obj["spec"].get("ephemeralContainers"):
            return [fields.forbidden("spec.ephemeralContainers", "cannot be set on create")]
        return []

    def only_status(self, obj: dict[str, Any], old: dict[str, Any], now: str) -> dict[str, Any]:
        merged = super().only_status(obj, old, now)
        was = (old.get("status") or {}).get("qosClass")
        if was and not (merged.get("status") or {}).get("qosClass"):
            merged["status"] = {**(merged.get("status") or {}), "qosClass": was}
        return merged

    def only_part(
        self, subresource: str, obj: dict[str, Any], old: dict[str, Any]
    ) -> tuple[dict[str, Any], list[StatusCause]]:
        changed = {**old, "metadata": kept_metadata(obj, old)}
        if subresource == "ephemeralcontainers":
            changed["spec"] = pod_updates.with_ephemeral_containers(obj, old)
            return changed, pod_updates.check_ephemeral_containers(changed["spec"], old["spec"])
        changed["spec"] = pod_updates.with_resources(obj, old)
        return changed, pod_updates.check_resize(changed["spec"], old, qos_class(changed))

    def grace_s(self, obj: dict[str, Any], asked_s: int | None) -> int | None:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        period_s = spec.get("terminationGracePeriodSeconds", 0) if asked_s is None else asked_s
        # Nobody has to stop a pod that never started or that has ended.
        if not spec.get("nodeName") or status.get("phase") in _ENDED:
            return 0
        return 1 if period_s < 0 else int(period_s)


def add_topology(meta: dict[str, Any], store: ObjectStore, node: str) -> None:
    """Give a pod, or the binding of one, the labels that say where its node is; of a node that is not there nothing is
    known."""
    found = store.table(NODES).get("", node)
    labels = (found.obj["metadata"].get("labels") or {}) if found is not None else {}
    taken = {name: labels[name] for name in _TOPOLOGY if name in labels}
    if taken:
        meta["labels"] = {**(meta.get("labels") or {}), **taken}


def qos_class(obj: dict[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort."""
    containers = [*(obj["spec"].get("containers") or ()), *(obj["spec"].get("initContainers") or ())]
    if not any(container.get("resources") for container in containers) and not obj["spec"].get("resources"):
        return "BestEffort"
    try:
        return qos.computed_kube(decode.from_builtins({"spec": obj["spec"]}, core.Pod)).value
    except (msgspec.ValidationError, ValueError):
        return "Burstable"  # resources that are no quantities; the schema check refuses them when it is on


def _check_account(
    spec: dict[str, Any], strategy: RestStrategy, meta: dict[str, Any], around: StrategyContext
) -> None:
    """Check that the ServiceAccount of a pod exists; `default` may come a moment later. Raises: Forbidden."""
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT_ACCOUNT
    namespace = meta.get("namespace", "")
    if name != DEFAULT_ACCOUNT and around.store.table(ACCOUNTS).get(namespace, name) is None:
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise refusals.forbidden(strategy.resource, meta.get("name", ""), why)


def _give_priority(spec: dict[str, Any], strategy: RestStrategy, name: str, around: StrategyContext) -> None:
    """Fill in the priority that the class stands for. Raises: Forbidden."""
    classes = around.store.table(PRIORITY_CLASSES)
    wanted = spec.get("priorityClassName") or ""
    chosen: dict[str, Any] = {}
    if wanted:
        record = classes.get("", wanted)
        if record is None:
            raise refusals.forbidden(
                strategy.resource, name, f"no PriorityClass with name {wanted} was found"
            )
        chosen = record.obj
    else:
        defaults = [record.obj for record in classes.in_namespace("") if record.obj.get("globalDefault")]
        # Of several defaults the lowest counts, as in the admission plugin.
        chosen = min(defaults, key=lambda one: one.get("value", 0), default={})
        if chosen:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    priority = chosen.get("value", 0)
    policy = chosen.get("preemptionPolicy") or "PreemptLowerPriority"
    if spec.get("priority") not in (None, priority):
        why = (
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {priority} from the given PriorityClass name"
        )
        raise refusals.forbidden(strategy.resource, name, why)
    if spec.get("preemptionPolicy") not in (None, policy):
        why = (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod "
            f"spec; priority admission controller computed {policy} from the given PriorityClass name"
        )
        raise refusals.forbidden(strategy.resource, name, why)
    spec["priority"], spec["preemptionPolicy"] = priority, policy


def _give_tolerations(spec: dict[str, Any]) -> None:
    present = spec.get("tolerations") or []
    missing = [taint for taint in _EVICTING_TAINTS if not any(_tolerates(one, taint) for one in present)]
    if missing:
        spec["tolerations"] = [
            *present,
            *(
                {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_S}
                for taint in missing
            ),
        ]


def _tolerates(toleration: dict[str, Any], taint: str) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    return key in ("", taint) and effect in ("", "NoExecute")
