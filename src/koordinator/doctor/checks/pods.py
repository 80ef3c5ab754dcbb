"""Pods that admission would refuse today, and pods that ask for what no node lends."""

from collections.abc import Iterator

from koordinator.api import labels, pod_resources, quantity, resources
from koordinator.api.core import Node, Pod
from koordinator.api.quantity import QuantityError
from koordinator.doctor.finding import Finding
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.manager.webhooks import pod_rules

FINISHED = ("Succeeded", "Failed")
WAIT_S = 60.0
"""A pod that waits for less may still be on its way, as nodes report once a minute."""
_EXTENDED = {
    "Batch": (resources.BATCH_CPU, resources.BATCH_MEMORY),
    "Mid": (resources.MID_CPU, resources.MID_MEMORY),
}


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Grouped by what is wrong: a workload has the same trouble in all its pods."""
    against: dict[str, list[str]] = {}
    asking: dict[str, list[str]] = {kind: [] for kind in _EXTENDED}
    for pod in snapshot.of(Pod):
        if pod.status.phase in FINISHED:
            continue
        try:
            if snapshot.is_watched(pod.metadata.namespace) and _is_ours(pod):
                for violation in pod_rules.colocation(pod, None):
                    against.setdefault(violation.message, []).append(pod.key)
            if snapshot.age_s(pod) > WAIT_S:
                for kind in _asks_for(pod):
                    asking[kind].append(pod.key)
        except QuantityError as error:
            against.setdefault(str(error), []).append(pod.key)
    for message, pods in sorted(against.items()):
        yield Finding.warning(
            ("Pod", pods),
            f"breaks a rule of admission: {message}",
            why="it was created while nobody checked; its successor will be refused",
            do=(f"correct the template of {pods[0]}, or the profile that changes it",),
        )
    for kind, pods in asking.items():
        if pods and snapshot.knows(Node) and not _anybody_offers(snapshot, kind):
            yield Finding.error(
                ("Pod", pods),
                f"asks for {kind} resources, and no node offers any",
                why="it stays Pending",
                do=(
                    "koordinator doctor --check config --check reports --check batch    # why none are offered",
                    f"koordinator explain pod {sorted(pods)[0]}",
                ),
            )


def _is_ours(pod: Pod) -> bool:
    """Only pods that say something of co-location can break its rules: the rest need not be looked at."""
    return labels.QOS_CLASS in pod.metadata.labels or any(
        name.startswith("kubernetes.io/batch-")
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for name in container.resources.requests
    )


def _asks_for(pod: Pod) -> list[str]:
    """Kinds of resources that a pod without a node waits for. Raises: QuantityError."""
    if pod.spec.node_name:
        return []
    requests = pod_resources.requests(pod)
    return [
        kind for kind, names in _EXTENDED.items() if any(requests.get(name, quantity.ZERO) for name in names)
    ]


def _anybody_offers(snapshot: ClusterSnapshot, kind: str) -> bool:
    for node in snapshot.nodes:
        for name in _EXTENDED[kind]:
            try:
                if quantity.of(node.status.allocatable.get(name)):
                    return True
            except QuantityError:
                continue
    return False
