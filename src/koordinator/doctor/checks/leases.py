"""Does somebody lead, and only one?"""

from collections.abc import Iterator

from koordinator.api.coordination import Lease
from koordinator.doctor.finding import Finding, FindingSeverity
from koordinator.doctor.installation import ComponentName, ComponentWorkload
from koordinator.doctor.snapshot import ClusterSnapshot, seconds

NAMES = {
    ComponentName.MANAGER: "koordinator-manager",
    ComponentName.SCHEDULER: "koord-scheduler",
    ComponentName.DESCHEDULER: "koord-descheduler",
}
"""The lease of each component that elects a leader."""
_FLAGS = {
    ComponentName.MANAGER: "enable-leader-election",
    ComponentName.SCHEDULER: "leader-elect",
    ComponentName.DESCHEDULER: "leader-elect",
}
DURATION_S = 15.0
"""How long a lease holds when it does not say so itself."""
SKEW_S_MAX = 5.0
CHANGES_MIN = 10
CHANGES_PER_HOUR_MAX = 4.0
"""A leader that is replaced more often than that is not replaced by upgrades."""


def is_fresh(lease: Lease, now_s: float) -> bool:
    """Return whether its holder has renewed it in time."""
    renewed_s = seconds(lease.spec.renew_time)
    return (
        bool(lease.spec.holder_identity) and renewed_s is not None and now_s - renewed_s <= _duration_s(lease)
    )


def _duration_s(lease: Lease) -> float:
    return float(lease.spec.lease_duration_seconds or DURATION_S)


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Leases that nobody holds, or that change hands again and again, or are held by a stranger."""
    for component, name in NAMES.items():
        workload = snapshot.installation.get(component)
        lease = snapshot.find(Lease, name, snapshot.namespace)
        if lease is not None:
            yield from _held(snapshot, component, workload, lease)
        elif snapshot.installation.is_in_process(component):
            continue
        elif workload is not None and workload.ready and _elects(workload):
            yield Finding.error(
                f"Lease {snapshot.namespace}/{name}",
                f"missing although {workload.ready} pods of {component} are ready",
                why="no instance leads, so its controllers stand still",
                do=(f"kubectl -n {snapshot.namespace} logs -l koord-app={component} | grep -i lease",),
            )


def _elects(workload: ComponentWorkload) -> bool:
    return workload.flags.get(_FLAGS[workload.component], "true") != "false"


def _held(
    snapshot: ClusterSnapshot, component: ComponentName, workload: ComponentWorkload | None, lease: Lease
) -> Iterator[Finding]:
    now_s, spec = snapshot.now_s, lease.spec
    renewed_s = seconds(spec.renew_time)
    if renewed_s is not None and renewed_s - now_s > SKEW_S_MAX:
        yield Finding.warning(
            lease,
            f"renewed {renewed_s - now_s:.0f} s in the future by {spec.holder_identity}",
            why="clocks differ: times in reports and leases cannot be compared",
            do=("chronyc tracking    # on that machine and on this one",),
        )
    elif workload is None and not spec.holder_identity:
        return  # given up in good order by an instance that ran outside of the cluster
    elif not is_fresh(lease, now_s):
        # Without a workload it is what an instance outside of the cluster left behind.
        severity = (
            FindingSeverity.ERROR if workload is not None and workload.wanted else FindingSeverity.WARNING
        )
        since = f"{now_s - renewed_s:.0f} s ago" if renewed_s is not None else "never"
        yield Finding.of(
            severity,
            lease,
            f"nobody leads: last renewed {since} by {spec.holder_identity or 'nobody'}",
            why=f"the controllers of {component} stand still",
            do=(f"kubectl -n {snapshot.namespace} logs -l koord-app={component} --tail=50",),
        )
    elif workload is not None and workload.pods and not _is_pod(spec.holder_identity or "", workload):
        yield Finding.warning(
            lease,
            f"held by {spec.holder_identity}, which is no pod of {workload.obj.key}",
            why="two installations may be at work on one cluster",
            do=(f"kubectl -n {snapshot.namespace} get lease {lease.metadata.name} -o yaml",),
        )
    yield from _flapping(snapshot, component, lease)


def _flapping(snapshot: ClusterSnapshot, component: ComponentName, lease: Lease) -> Iterator[Finding]:
    changes = lease.spec.lease_transitions or 0
    hours = snapshot.age_s(lease) / 3600.0
    if changes >= CHANGES_MIN and hours > 0 and changes / hours > CHANGES_PER_HOUR_MAX:
        yield Finding.warning(
            lease,
            f"leadership changed {changes} times in {hours:.1f} h",
            why="each change costs a pause and a full read of the cluster; instances starve, crash, or fight",
            do=(
                f"kubectl -n {snapshot.namespace} get pods -l koord-app={component}    # restarts?",
                "give it more CPU, or see whether the API server answers within the renew deadline",
            ),
        )


def _is_pod(holder: str, workload: ComponentWorkload) -> bool:
    """Return whether the identity is a pod's name, which components extend by `_` and a random part."""
    host = holder.partition("_")[0]
    return any(host in (pod.metadata.name, pod.spec.node_name) for pod in workload.pods)
