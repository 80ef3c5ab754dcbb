"""Do the components run: all replicas, one version, on every node that they should; and does one of each lead?"""

import re
from collections.abc import Iterator

from koordinator import __version__
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.core import Pod
from koordinator.api.groups import Lease
from koordinator.api.meta import find_condition
from koordinator.clock import parse_rfc3339_or
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.installation import ComponentName, ComponentWorkload, Installation
from koordinator.doctor.snapshot import ClusterSnapshot

_LOSS = {
    ComponentName.MANAGER: "batch resources and node policies are not updated, and pods are not admitted",
    ComponentName.SCHEDULER: "pods that name koord-scheduler stay Pending",
    ComponentName.KOORDLET: "nodes report no usage, so they offer no batch resources, and services are not protected",
    ComponentName.DESCHEDULER: "pods stay on hot nodes",
    ComponentName.YARN_OPERATOR: "YARN keeps the totals that it has, whatever services need",
}
_OPTIONAL = (ComponentName.DESCHEDULER, ComponentName.YARN_OPERATOR)
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_KIND = {ComponentName.KOORDLET: DaemonSet}


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Missing workloads, replicas that are not ready and why, images of different versions."""
    installation = snapshot.installation
    for component, loss in _LOSS.items():
        workload = installation.get(component)
        if workload is not None:
            yield from _replicas(workload, loss)
        elif component not in _OPTIONAL and not installation.is_in_process(component):
            yield from _missing(snapshot, component, loss)
    yield from _versions(installation)


def _missing(snapshot: ClusterSnapshot, component: ComponentName, loss: str) -> Iterator[Finding]:
    view = _KIND.get(component, Deployment)
    if not snapshot.knows(view):
        return
    about = f"{view.resource.kind} {snapshot.namespace}/{component}"
    elsewhere = snapshot.installation.elsewhere
    if elsewhere:
        yield Finding.warning(
            about,
            f"missing, but components run in namespace {some_of(elsewhere)}",
            do=(f"koordinator doctor --namespace {elsewhere[0]}",),
        )
        return
    lease = snapshot.find(Lease, LEASES.get(component, ""), snapshot.namespace)
    if lease is not None and is_fresh(lease, snapshot.now_s):
        yield Finding.notice(
            about,
            f"missing, but {lease.spec.holder_identity} holds the lease: it runs outside the cluster",
        )
        return
    yield Finding.error(
        about,
        "missing",
        why=loss,
        do=("koordinator install --dry-run    # shows what is missing", "koordinator install --apply"),
    )


def _replicas(workload: ComponentWorkload, loss: str) -> Iterator[Finding]:
    if workload.ready >= workload.wanted > 0:
        return
    if workload.wanted == 0:
        problem = "no pod is desired"
        steps: tuple[str, ...] = (f"kubectl describe {_address(workload)}",)
        if isinstance(workload.obj, Deployment):
            problem = "scaled to 0 replicas"
            steps = (f"kubectl scale {_address(workload)} --replicas=2",)
    else:
        causes = sorted({cause for pod in workload.pods if (cause := pod_trouble(pod))})
        problem = f"{workload.ready} of {workload.wanted} pods are ready" + (
            f": {'; '.join(causes[:3])}" if causes else ""
        )
        steps = (
            f"kubectl -n {workload.obj.metadata.namespace} describe pods -l koord-app={workload.component}",
            f"kubectl -n {workload.obj.metadata.namespace} logs -l koord-app={workload.component} --tail=50",
        )
    severity = FindingSeverity.ERROR if workload.ready == 0 else FindingSeverity.WARNING
    yield Finding.of(severity, workload.obj, problem, why=loss if workload.ready == 0 else "", do=steps)


def _address(workload: ComponentWorkload) -> str:
    kind = workload.obj.resource.singular
    return f"-n {workload.obj.metadata.namespace} {kind} {workload.obj.metadata.name}"


def pod_trouble(pod: Pod) -> str:
    """Return why a pod is not ready, in a few words; empty when it is, or when nothing tells."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting, ended = status.state.waiting, status.last_state.terminated or status.state.terminated
        if waiting is not None and waiting.reason not in ("", "PodInitializing", "ContainerCreating"):
            words = f"{waiting.reason} {status.image}" if "Image" in waiting.reason else waiting.reason
            if ended is not None:
                words += f" (exit code {ended.exit_code}, {status.restart_count} restarts)"
            return words
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    is_refused = scheduled is not None and scheduled.status == "False"
    return f"not scheduled: {scheduled.message}" if scheduled is not None and is_refused else ""


def _versions(installation: Installation) -> Iterator[Finding]:
    tags: dict[str, list[str]] = {}
    for component, workload in sorted(installation.workloads.items()):
        for image in workload.images[:1]:
            tags.setdefault(_tag(image), []).append(component)
        if workload.ready and workload.updated < workload.wanted:
            yield Finding.notice(
                workload.obj,
                f"a rollout is under way: {workload.updated} of {workload.wanted} pods have the new version",
                do=(f"kubectl rollout status {_address(workload)}",),
            )
    if len(tags) > 1:
        words = "; ".join(f"{some_of(names)}: {tag or 'no tag'}" for tag, names in sorted(tags.items()))
        yield Finding.warning(
            "component versions",
            f"the components' images have different versions ({words})",
            why="components understand only annotations and CRDs of their own version",
            do=("koordinator install --apply    # installs one version of all",),
        )
    releases = {tag for tag in tags if _RELEASE.fullmatch(tag)}
    if len(tags) == 1 and releases - {__version__}:
        yield Finding.notice(
            "component versions",
            f"components have version {releases.pop()}, this command has {__version__}",
            why="it checks CRDs, permissions and webhooks against its own version",
        )
    for workload in installation.workloads.values():
        if workload.images and _tag(workload.images[0]) in ("", "latest"):
            yield Finding.notice(
                workload.obj,
                f"image {workload.images[0]} has no fixed version",
                why="nodes may run different builds under one name",
                do=("use an image with a version tag",),
            )


def _tag(image: str) -> str:
    """Return the tag, or the digest, of an image."""
    name, _, digest = image.partition("@")
    return name.rpartition("/")[2].partition(":")[2] or digest


LEASES = {
    ComponentName.MANAGER: "koordinator-manager",
    ComponentName.SCHEDULER: "koord-scheduler",
    ComponentName.DESCHEDULER: "koord-descheduler",
    ComponentName.YARN_OPERATOR: "koordinator-yarn-operator",
}
"""The lease of each component that elects a leader."""
_FLAGS = {
    ComponentName.MANAGER: "enable-leader-election",
    ComponentName.SCHEDULER: "leader-elect",
    ComponentName.DESCHEDULER: "leader-elect",
    ComponentName.YARN_OPERATOR: "enable-leader-election",
}
LEASE_S = 15.0
"""Duration of a lease that states none."""
SKEW_S_MAX = 5.0
CHANGES_MIN = 10
CHANGES_PER_HOUR_MAX = 4.0
"""A leader that is replaced more often than that is not replaced by upgrades."""


def leads(snapshot: ClusterSnapshot, component: ComponentName) -> bool:
    """Return whether an instance of the component holds its lease, and renews it in time."""
    lease = snapshot.find(Lease, LEASES[component], snapshot.namespace)
    return lease is not None and is_fresh(lease, snapshot.now_s)


def is_fresh(lease: Lease, now_s: float) -> bool:
    """Return whether its holder has renewed it in time."""
    renewed_s = parse_rfc3339_or(lease.spec.renew_time, None)
    duration_s = lease.spec.lease_duration_seconds or LEASE_S
    return bool(lease.spec.holder_identity) and renewed_s is not None and now_s - renewed_s <= duration_s


def check_leases(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Leases that nobody holds, or that change hands again and again, or are held by a stranger."""
    for component, name in LEASES.items():
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
                why="no instance leads, so its controllers do not run",
                do=(f"kubectl -n {snapshot.namespace} logs -l koord-app={component} | grep -i lease",),
            )


def _elects(workload: ComponentWorkload) -> bool:
    return workload.flags.get(_FLAGS[workload.component], "true") != "false"


def _held(
    snapshot: ClusterSnapshot, component: ComponentName, workload: ComponentWorkload | None, lease: Lease
) -> Iterator[Finding]:
    now_s, spec = snapshot.now_s, lease.spec
    renewed_s = parse_rfc3339_or(spec.renew_time, None)
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
            f"no instance leads: last renewed {since} by {spec.holder_identity or 'nobody'}",
            why=f"the controllers of {component} do not run",
            do=(f"kubectl -n {snapshot.namespace} logs -l koord-app={component} --tail=50",),
        )
    elif workload is not None and workload.pods and not _is_pod(spec.holder_identity or "", workload):
        yield Finding.warning(
            lease,
            f"held by {spec.holder_identity}, which is not a pod of {workload.obj.key}",
            why="two installations may run in one cluster",
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
            why="each change costs a pause and a full read of the cluster; instances are starved, crash, or compete",
            do=(
                f"kubectl -n {snapshot.namespace} get pods -l koord-app={component}    # restarts?",
                "give it more CPU, or check that the API server answers within the renew deadline",
            ),
        )


def _is_pod(holder: str, workload: ComponentWorkload) -> bool:
    """Return whether the identity is a pod's name, which components extend by `_` and a random part."""
    host = holder.partition("_")[0]
    return any(host in (pod.metadata.name, pod.spec.node_name) for pod in workload.pods)
