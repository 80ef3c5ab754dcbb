"""Find the schedulers that run, and pods that wait for one that does not."""

from collections.abc import Iterator

from koordinator.api.core import ConfigMap, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.doctor.finding import Finding
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.scheduler.config import config

DEFAULT = "default-scheduler"
KOORDINATOR = "koord-scheduler"
CONFIG_NAME = "koord-scheduler-config"
WAIT_S = 60.0
"""A pod that waits for less may still be on its way."""


def running(snapshot: ClusterSnapshot) -> set[str] | None:
    """Return names that pods can ask for; None when nobody can tell.

    Those of our own scheduler's configuration, the default one, and whoever has placed a pod that exists.
    """
    installation = snapshot.installation
    names = {DEFAULT}
    if installation.is_in_process(ComponentName.SCHEDULER):
        return names | {KOORDINATOR} | _proven(snapshot)
    if installation.get(ComponentName.SCHEDULER) is None and not snapshot.is_live:
        return None
    return names | _configured(snapshot) | _proven(snapshot)


def _configured(snapshot: ClusterSnapshot) -> set[str]:
    workload = snapshot.installation.get(ComponentName.SCHEDULER)
    if workload is None or not workload.wanted:
        return set()
    found = snapshot.find(ConfigMap, CONFIG_NAME, snapshot.namespace)
    text = found.data.get(CONFIG_NAME, "") if found is not None else ""
    try:
        profiles = config.parse(text.encode()).profiles if text else []
    except KoordinatorError:
        profiles = []  # the scheduler says itself what is wrong with its configuration, and does not start
    return {profile.scheduler_name for profile in profiles} or {KOORDINATOR}


def _proven(snapshot: ClusterSnapshot) -> set[str]:
    return {
        pod.spec.scheduler_name
        for pod in snapshot.of(Pod)
        if pod.spec.node_name and pod.spec.scheduler_name and not _is_daemon(pod)
    }


def _is_daemon(pod: Pod) -> bool:
    """Static pods have a node from birth, so they prove nothing about a scheduler."""
    return any(owner.kind == "Node" for owner in pod.metadata.owner_references)


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield pods that wait for a scheduler that does not run."""
    names = running(snapshot)
    if names is None:
        return
    waiting: dict[str, list[str]] = {}
    for pod in snapshot.of(Pod):
        name = pod.spec.scheduler_name or DEFAULT
        is_waiting = pod.status.phase in ("", "Pending") and not pod.spec.node_name
        if is_waiting and name not in names and snapshot.age_s(pod) > WAIT_S:
            waiting.setdefault(name, []).append(pod.key)
    for name, pods in sorted(waiting.items()):
        yield Finding.error(
            ("Pod", pods),
            f"waits for scheduler {name}, which does not run (there are {', '.join(sorted(names))})",
            why="nobody looks at the pod, so it stays Pending without any event",
            do=("set spec.schedulerName of its template to one that runs",),
        )
