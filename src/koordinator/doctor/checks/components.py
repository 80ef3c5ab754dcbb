"""Do the components run: all replicas, one version, on every node that they should?"""

import re
from collections.abc import Iterator

from koordinator import __version__
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.coordination import Lease
from koordinator.api.core import Pod
from koordinator.doctor.checks import leases
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.installation import ComponentName, ComponentWorkload, Installation
from koordinator.doctor.snapshot import ClusterSnapshot

_LOSS = {
    ComponentName.MANAGER: "Batch resources, node policies and pod admission stand still",
    ComponentName.SCHEDULER: "pods that name koord-scheduler stay Pending",
    ComponentName.KOORDLET: "nodes report no usage, so they lend nothing, and services are not protected",
}
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_KIND = {ComponentName.KOORDLET: DaemonSet}


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Missing workloads, replicas that are not ready and why, images of different versions."""
    installation = snapshot.installation
    for component, loss in _LOSS.items():
        workload = installation.get(component)
        if workload is not None:
            yield from _replicas(workload, loss)
        elif not installation.is_in_process(component):
            yield from _missing(snapshot, component, loss)
    descheduler = installation.get(ComponentName.DESCHEDULER)
    if descheduler is not None:
        yield from _replicas(descheduler, "pods stay on hot nodes")
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
    lease = snapshot.find(Lease, leases.NAMES.get(component, ""), snapshot.namespace)
    if lease is not None and leases.is_fresh(lease, snapshot.now_s):
        yield Finding.notice(
            about,
            f"missing, but {lease.spec.holder_identity} holds the lease: it runs outside of the cluster",
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
        problem = "no pod is wanted"
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
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"not scheduled: {condition.message}"
    return ""


def _versions(installation: Installation) -> Iterator[Finding]:
    tags: dict[str, list[str]] = {}
    for component, workload in sorted(installation.workloads.items()):
        for image in workload.images[:1]:
            tags.setdefault(_tag(image), []).append(component)
        if workload.ready and workload.updated < workload.wanted:
            yield Finding.notice(
                workload.obj,
                f"a rollout is under way: {workload.updated} of {workload.wanted} pods are of the new version",
                do=(f"kubectl rollout status {_address(workload)}",),
            )
    if len(tags) > 1:
        words = "; ".join(f"{some_of(names)}: {tag or 'no tag'}" for tag, names in sorted(tags.items()))
        yield Finding.warning(
            "component versions",
            f"the components' images are of different versions ({words})",
            why="components agree on annotations and CRDs of their own version only",
            do=("koordinator install --apply    # brings all of them to one version",),
        )
    releases = {tag for tag in tags if _RELEASE.fullmatch(tag)}
    if len(tags) == 1 and releases - {__version__}:
        yield Finding.notice(
            "component versions",
            f"components are of version {releases.pop()}, this command is of {__version__}",
            why="what it says of CRDs, permissions and webhooks is measured by its own version",
        )
    for workload in installation.workloads.values():
        if workload.images and _tag(workload.images[0]) in ("", "latest"):
            yield Finding.notice(
                workload.obj,
                f"image {workload.images[0]} has no fixed version",
                why="nodes may run different builds under one name",
                do=("name a version in the image",),
            )


def _tag(image: str) -> str:
    """Return the tag, or the digest, of an image."""
    name, _, digest = image.partition("@")
    last = name.rpartition("/")[2]
    return last.partition(":")[2] or digest
