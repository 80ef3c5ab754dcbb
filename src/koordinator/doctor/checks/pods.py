"""Find pods that admission would refuse today, that ask for what no node lends, or wait for a scheduler that does not
run."""

from collections.abc import Iterator

from koordinator.api import labels, pod_labels, pod_resources, quantity, resources
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.quantity import QuantityError
from koordinator.doctor.finding import Finding
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.install.configs import SCHEDULER_CONFIG
from koordinator.manager.webhooks import pod_rules
from koordinator.scheduler.config import config

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
        if pod_labels.is_terminated(pod):
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
            why="it was created while the webhook was off; its replacement will be refused",
            do=(f"correct the template of {pods[0]}, or the profile that changes it",),
        )
    for kind, pods in asking.items():
        if pods and snapshot.knows(Node) and not _anybody_offers(snapshot, kind):
            yield Finding.error(
                ("Pod", pods),
                f"requests {kind} resources, but no node offers any",
                why="it stays Pending",
                do=(
                    "koordinator doctor --check config --check reports --check batch    # shows why none are offered",
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


DEFAULT_SCHEDULER = "default-scheduler"


def running(snapshot: ClusterSnapshot) -> set[str] | None:
    """Return names that pods can ask for; None when nobody can tell.

    Those of our own scheduler's configuration, the default one, and whoever has placed a pod that exists.
    """
    installation = snapshot.installation
    names = {DEFAULT_SCHEDULER}
    if installation.is_in_process(ComponentName.SCHEDULER):
        return names | {ComponentName.SCHEDULER.value} | _proven(snapshot)
    if installation.get(ComponentName.SCHEDULER) is None and not snapshot.is_live:
        return None
    return names | _configured(snapshot) | _proven(snapshot)


def _configured(snapshot: ClusterSnapshot) -> set[str]:
    workload = snapshot.installation.get(ComponentName.SCHEDULER)
    if workload is None or not workload.wanted:
        return set()
    found = snapshot.find(ConfigMap, SCHEDULER_CONFIG, snapshot.namespace)
    text = found.data.get(SCHEDULER_CONFIG, "") if found is not None else ""
    try:
        profiles = config.parse(text.encode()).profiles if text else []
    except KoordinatorError:
        profiles = []  # the scheduler says itself what is wrong with its configuration, and does not start
    return {profile.scheduler_name for profile in profiles} or {ComponentName.SCHEDULER.value}


def _proven(snapshot: ClusterSnapshot) -> set[str]:
    return {
        pod.spec.scheduler_name
        for pod in snapshot.of(Pod)
        if pod.spec.node_name and pod.spec.scheduler_name and not _is_daemon(pod)
    }


def _is_daemon(pod: Pod) -> bool:
    """Static pods have a node from birth, so they prove nothing about a scheduler."""
    return any(owner.kind == "Node" for owner in pod.metadata.owner_references)


def check_schedulers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield pods that wait for a scheduler that does not run."""
    names = running(snapshot)
    if names is None:
        return
    waiting: dict[str, list[str]] = {}
    for pod in snapshot.of(Pod):
        name = pod.spec.scheduler_name or DEFAULT_SCHEDULER
        is_waiting = pod.status.phase in ("", "Pending") and not pod.spec.node_name
        if is_waiting and name not in names and snapshot.age_s(pod) > WAIT_S:
            waiting.setdefault(name, []).append(pod.key)
    for name, pods in sorted(waiting.items()):
        yield Finding.error(
            ("Pod", pods),
            f"waits for scheduler {name}, which does not run (running: {', '.join(sorted(names))})",
            why="no scheduler handles the pod, so it stays Pending without an event",
            do=("set spec.schedulerName in its template to a running scheduler",),
        )
