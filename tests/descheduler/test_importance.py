"""Which pods go first: by class, priority, QoS and costs, in this order."""

from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.descheduler import facts

PRIORITIES = {"koord-free": 3500, "koord-batch": 5500, "koord-mid": 7500, "koord-prod": 9500}


def pod(
    qos: str = "", *, of_class: str = "", priority: int | None = None, kube: str = "Burstable", cost: int = 0
) -> Pod:
    own = {labels.QOS_CLASS: qos} if qos else {}
    if of_class:
        own[labels.PRIORITY_CLASS] = of_class
    body: dict[str, Any] = {
        "metadata": {
            "name": "p",
            "labels": own,
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": str(cost)},
        },
        "spec": {"priority": priority, "containers": []},
        "status": {"qosClass": kube},
    }
    return from_builtins(body, Pod)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (pod(of_class="koord-free"), pod(of_class="koord-batch")),
        (pod(of_class="koord-batch"), pod(of_class="koord-mid")),
        (pod(of_class="koord-mid"), pod(of_class="koord-prod")),
        (pod(of_class="koord-prod", priority=1), pod(of_class="koord-prod", priority=2)),
        (pod("LS", kube="BestEffort"), pod("LS")),
        (pod("LS"), pod("LS", kube="Guaranteed")),
        (pod("BE"), pod("LS")),
        (pod("LS"), pod("LSR")),
        (pod("LSR"), pod("LSE")),
        (pod("LS", cost=-1), pod("LS")),
        (pod("LS"), pod("LS", cost=1)),
        (pod("LSE", of_class="koord-batch", priority=9), pod("BE", of_class="koord-prod", priority=1)),
        (pod("LSE", priority=1, cost=9), pod("LS", priority=2)),
    ],
)
def test_the_less_important_pod_goes_first(less: Pod, more: Pod) -> None:
    assert facts.importance(less) < facts.importance(more)


def test_each_class_has_its_own_rank() -> None:
    assert sorted(facts._CLASS_RANK.values()) == list(range(5))
    assert sorted(facts.KUBE_QOS_RANK.values()) == list(range(3))
