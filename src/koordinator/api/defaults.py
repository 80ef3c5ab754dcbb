"""Objects that every installation starts with: namespace, priority classes, the manager's ConfigMap.

Source: behaviour/api 4.2, 10 and 14.1. The CRDs are in `api.crd`.
"""

import json
from typing import Any

from koordinator.api import labels
from koordinator.api.core import ConfigMap, Namespace
from koordinator.api.groups import PriorityClass as PriorityClassObject
from koordinator.api.meta import ObjectMeta, to_wire
from koordinator.api.priority import BANDS, PriorityClass

NAMESPACE = "koordinator-system"
SLO_CONFIG_NAME = "slo-controller-config"
SLO_CONFIG: dict[str, dict[str, Any]] = {
    "colocation-config": {"enable": True},
    "resource-threshold-config": {"clusterStrategy": {"enable": True}},
}

_WHAT_FOR = {
    PriorityClass.PROD: "Online services: guaranteed within their quota.",
    PriorityClass.MID: "Work on resources that services will not need for long.",
    PriorityClass.BATCH: "Work on resources that services do not need right now; may be evicted.",
    PriorityClass.FREE: "Work without any resource budget; evicted first.",
}


def namespace() -> dict[str, Any]:
    """Return the namespace of the components; the label keeps their pods away from the pod webhooks."""
    return to_wire(
        Namespace(metadata=ObjectMeta(name=NAMESPACE, labels={labels.NAMESPACE_CONTROL_PLANE: "koordinator"}))
    )


def priority_classes() -> list[dict[str, Any]]:
    """Return the four PriorityClass objects; each stands at the bottom of its band."""
    return [
        to_wire(
            PriorityClassObject(
                metadata=ObjectMeta(name=priority_class.value),
                value=lowest,
                description=_WHAT_FOR[priority_class],
                preemption_policy="PreemptLowerPriority",
            )
        )
        for priority_class, (lowest, _) in BANDS.items()
    ]


def slo_config(namespace: str = NAMESPACE) -> dict[str, Any]:
    """Return the manager's ConfigMap: lending to batch and its suppression are on, all else as by default."""
    return to_wire(
        ConfigMap(
            metadata=ObjectMeta(
                name=SLO_CONFIG_NAME,
                namespace=namespace,
                labels={labels.CONFIGMAP_TYPE: SLO_CONFIG_NAME},
            ),
            data={key: json.dumps(value, separators=(",", ":")) for key, value in SLO_CONFIG.items()},
        )
    )


def objects() -> list[dict[str, Any]]:
    """Return all of the above, in the order in which they must be created."""
    return [namespace(), *priority_classes(), slo_config()]
