"""Pods of this node, as the kubelet lists them and as their groups come and go. Source: behaviour/koordlet-observe 3.1,
7.2 and 12.

The list is asked for every few seconds, and at once when a group of a pod or container comes: a new container must not
wait ten seconds for its limits. How the kubelet names groups is found by what is there, by the kubelet's process, or by
asking it.

Groups are watched by inotify: the three class directories, and each pod in them (also those that were there before).
Where a class directory is missing, or events were lost, `PodGroups.rescan` looks for itself, now and then.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from typing import NoReturn

from koordinator.api import quantity
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import KubeQoS
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.cluster.backoff import Rate, TokenBucket
from koordinator.cluster.supervise import Guard
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import LayoutError
from koordinator.host.host import Host
from koordinator.host.inotify import DirectoryEvent, GroupChange, Inotify
from koordinator.host.kubelet import KubeletError, cgroup_driver
from koordinator.koordlet import node_pods
from koordinator.koordlet.metrics import AgentMetrics, NodeGauge
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Kubelet, Shared
from koordinator.koordlet.states.node import UNITS
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

SUBSYSTEM = "cpu"


class PodGroups:
    """Groups of pods and of their containers as they come and go; `inotify` watches them meanwhile."""

    def __init__(self, cgroups: Cgroups, driver: Driver, inotify: Inotify) -> None:
        self._cgroups = cgroups
        self._driver = driver
        self._inotify = inotify
        self._base = cgroups.directory("", SUBSYSTEM)
        self._classes = [cgroup_layout.class_dir(driver, kube) for kube in KubeQoS]
        self._known: dict[str, set[str]] = {}
        """Group of a pod → names of its containers' directories."""

    async def next(self) -> bool:
        """Wait until something has changed, and return whether a pod or container came."""
        changes = await self._inotify.next()
        if any(each.change is GroupChange.OVERFLOW for each in changes):
            return self.rescan()
        are_new = [self._takes(each) for each in changes]
        return any(are_new)

    def rescan(self) -> bool:
        """Look at all groups, and return whether a pod or container came. Watches what is not watched yet."""
        found: list[str] = []
        for class_dir in self._classes:
            self._watch(class_dir)
            groups = self._cgroups.children(class_dir, SUBSYSTEM) or ()
            found += [group for group in groups if cgroup_layout.is_pod_dir(self._driver, group)]
        for group in self._known.keys() - set(found):
            self._forget(group)
        are_new = [self._look(group) for group in found]
        return any(are_new)

    def _takes(self, event: DirectoryEvent) -> bool:
        """Take note of a change, and return whether a pod or container came."""
        if not event.is_directory or not event.name:
            return False
        parent = event.directory.removeprefix(self._base).strip("/")
        group = cgroup_layout.join(parent, event.name)
        is_new = event.change is GroupChange.CREATED
        if parent in self._known:
            containers = self._known[parent]
            if not is_new:
                containers.discard(event.name)
            elif event.name not in containers and self._is_container(event.name):
                containers.add(event.name)
                return True
            return False
        if parent not in self._classes:
            return False
        if group in self._classes:
            return is_new and self.rescan()  # a class directory that the kubelet has just made
        if not is_new:
            self._forget(group)
            return False
        return cgroup_layout.is_pod_dir(self._driver, group) and self._look(group)

    def _look(self, group: str) -> bool:
        """Look into the group of a pod, and return whether it is new, or a container in it."""
        before = self._known.get(group)
        # First the watch, then the look: what comes in between is seen twice rather than never.
        self._watch(group)
        names = [os.path.basename(each) for each in self._cgroups.children(group, SUBSYSTEM) or ()]
        self._known[group] = now = set(filter(self._is_container, names))
        return before is None or not now <= before

    def _forget(self, group: str) -> None:
        if self._known.pop(group, None) is not None:
            self._inotify.unwatch(self._cgroups.directory(group, SUBSYSTEM))

    def _watch(self, group: str) -> None:
        directory = self._cgroups.directory(group, SUBSYSTEM)
        if directory not in self._inotify.directories:
            self._inotify.watch(directory)  # a group that is gone by now is found missing by the next look

    def _is_container(self, name: str) -> bool:
        try:
            cgroup_layout.container_id_of_dirname(self._driver, name)
        except LayoutError:
            return False
        return True


DRIVER_RETRY_S = 10.0
DRIVER_WAIT_S = 60.0
FALLBACK = Driver.SYSTEMD


async def settle_driver(shared: Shared) -> None:
    """Find the driver and put it into the view; without any sign within a minute it is systemd's."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DRIVER_WAIT_S
    while True:
        found = await find_driver(shared.host, None if shared.config.kubelet.no_config else shared.kubelet)
        if found is not None or loop.time() >= until_s:
            break
        log.info("cgroup driver of the kubelet not detected yet", extra={"again_s": DRIVER_RETRY_S})
        await asyncio.sleep(DRIVER_RETRY_S)
    shared.view.driver = found or FALLBACK
    if found is None:
        log.warning(
            "cgroup driver of the kubelet not detected: systemd is assumed", extra={"waited_s": DRIVER_WAIT_S}
        )


async def find_driver(host: Host, kubelet: Kubelet | None) -> Driver | None:
    """Return the driver by directories, by the kubelet's command line and file, else as the kubelet tells; None: no
    sign."""
    found = cgroup_driver(host.cgroups, host.processes, host.roots)
    if found.driver is not None:
        log.info("cgroup driver detected", extra={"driver": found.driver, "by": found.source})
        return found.driver
    if kubelet is None:
        return None
    try:
        driver = (await kubelet.config()).get("cgroupDriver") or Driver.CGROUPFS
    except KubeletError as error:
        log.debug("kubelet did not report its cgroup driver", extra={"problem": str(error)})
        return None
    if driver not in (Driver.CGROUPFS, Driver.SYSTEMD):
        return None
    log.info("cgroup driver detected", extra={"driver": driver, "by": "the kubelet's configuration"})
    return Driver(driver)


TRIGGERED = Rate(per_s=5.0, burst=10)
"""Highest rate of asking the kubelet because of new groups."""
RESCAN_S = 30.0
"""Interval at which groups are scanned without an event: watches can be lost."""
SOON_S = 1.0
STARTING_TRIES_MAX = 10
"""Right after a group came, the kubelet may list its container without an id: it is asked again so often."""
_DEPTH_OF_CONTAINERS = 2


def report_resources(metrics: AgentMetrics, pods: Iterable[PodRecord]) -> None:
    """Fill the two families anew, with the unit that each resource has."""
    metrics.container_requests.reset()
    metrics.container_limits.reset()
    for pod in pods:
        specs = {each.name: each for each in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)}
        for container in pod.containers:
            spec = specs.get(container.name)
            if spec is not None:
                labels = pod_labels(pod, container.id, container.name)
                _report_amounts(metrics.container_requests, spec.resources.requests, labels)
                _report_amounts(metrics.container_limits, spec.resources.limits, labels)


def pod_labels(pod: PodRecord, container_id: str, container_name: str) -> tuple[str, ...]:
    """Values of the labels that name a container."""
    meta = pod.pod.metadata
    return pod.uid, meta.name, meta.namespace, container_id, container_name


def _report_amounts(gauge: NodeGauge, amounts: ResourceList, labels: tuple[str, ...]) -> None:
    for resource, unit in UNITS.items():
        if (raw := amounts.get(resource)) is None:
            continue
        try:
            gauge.set(quantity.value(raw), resource, unit, *labels)
        except QuantityError as error:
            log.debug("amount not reported in metrics", extra={"resource": resource, "problem": str(error)})


class PodsState:
    """Keeps `view.pods`. Neither an error nor an empty list while pods run makes it forget pods."""

    name = "pods"

    def __init__(self, shared: Shared, kubelet: Kubelet) -> None:
        self.synced = asyncio.Event()
        self.trouble = "no answer yet"
        self._shared = shared
        self._kubelet = kubelet
        self._guard = Guard("pods of the kubelet")
        self._wake = asyncio.Event()
        self._unreadable: dict[str, str] = {}
        """Problems of pods of the last list, by UID; each is logged once."""
        self._tries = 0
        """Times that the kubelet is still asked again soon, because a new container had no id yet."""
        self._interval_s = shared.config.kubelet.sync_interval_s

    @property
    def is_required(self) -> bool:
        """Return whether the agent waits for pods: not when it is configured not to read them."""
        return self._interval_s > 0

    async def run(self) -> NoReturn:
        """Ask the kubelet again and again, and watch groups meanwhile."""
        if not self.is_required:
            log.warning("pods are not read: kubelet-sync-interval is not above 0")
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll(), name="pods of the kubelet")
            group.create_task(self._watch(), name="groups of pods")
        raise AssertionError("pods are asked for until cancelled")

    async def _poll(self) -> NoReturn:
        bucket = TokenBucket(TRIGGERED, asyncio.get_running_loop().time())
        while True:
            self._wake.clear()
            await self._guard.call_async(self.sync)
            try:
                async with asyncio.timeout(SOON_S if self._tries else self._interval_s):
                    await self._wake.wait()
                    self._tries = STARTING_TRIES_MAX
            except TimeoutError:
                continue
            await bucket.wait()

    async def sync(self) -> None:
        """Ask once. Failures are reported in `trouble` and in the log, once."""
        try:
            pods = await self._kubelet.pods()
        except KubeletError as error:
            self._missed(str(error))
            return
        shared = self._shared
        shared.view.driver = shared.host.cgroups.driver() or shared.view.driver  # a guess may be wrong
        if not pods and self._has_processes():
            self._missed("the kubelet lists no pods although some run: it has just started, perhaps")
            return
        if self.trouble:
            log.info("pods read from the kubelet", extra={"pods": len(pods)})
        self.trouble = ""
        self._take(self._records(pods))

    def _missed(self, trouble: str) -> None:
        if trouble != self.trouble:
            facts = {"problem": trouble, "pods_kept": len(self._shared.view.pods)}
            log.warning("pods not read from the kubelet", extra=facts)
        self.trouble = trouble
        self._tries = max(self._tries - 1, 0)  # who does not keep up is not asked each second for ever

    def _has_processes(self) -> bool:
        """Return whether any process runs in the group of a pod."""
        cgroups, view = self._shared.host.cgroups, self._shared.view
        root = cgroup_layout.class_dir(view.driver, KubeQoS.GUARANTEED)
        return any(cgroups.procs(group) for group in cgroups.walk(root, _DEPTH_OF_CONTAINERS + 1))

    def _records(self, pods: list[Pod]) -> dict[str, PodRecord]:
        """Return one record per pod; those of unchanged pods are the same objects."""
        view = self._shared.view
        records: dict[str, PodRecord] = {}
        reported: dict[str, str] = {}
        for listed in map(node_pods.as_granted, pods):
            uid = listed.metadata.uid
            old = view.pods.get(uid)
            if old is not None and old.pod == listed and old.driver is view.driver:
                records[uid] = old
                continue
            pod, problems = node_pods.readable(listed)
            try:
                is_same = problems and old is not None and old.pod == pod and old.driver is view.driver
                records[uid] = old if is_same and old is not None else node_pods.record(pod, view.driver)
            except KoordinatorError as error:
                problems.append(f"pod skipped: {error}")
            if problems:
                reported[uid] = "; ".join(problems)
                if self._unreadable.get(uid) != reported[uid]:
                    log.warning("pod invalid", extra={"pod": pod.key, "problem": reported[uid]})
        self._unreadable = reported
        return records

    def _take(self, records: dict[str, PodRecord]) -> None:
        shared, view = self._shared, self._shared.view
        old = view.pods
        if not _is_same(old, records):
            view.pods = records
            report_resources(shared.metrics, records.values())
            for gone in ended(old, records):
                shared.executor.forget(gone)
        self._tries = max(self._tries - 1, 0) if any(map(is_starting, records.values())) else 0
        view.has_pods = True
        self.synced.set()
        view.changed(Topic.PODS)

    # Groups that come and go

    async def _watch(self) -> NoReturn:
        await self.synced.wait()  # only then it is certain how groups are named
        try:
            inotify = Inotify(self._shared.host.syscalls)
        except OSError as error:
            log.info("cgroups are not watched; pods are only polled", extra={"problem": str(error)})
            await asyncio.Event().wait()
            raise
        with inotify:
            groups, of_driver = None, None

            async def follow() -> None:
                nonlocal groups, of_driver
                if groups is None or of_driver is not self._shared.view.driver:
                    of_driver = self._shared.view.driver
                    groups = PodGroups(self._shared.host.cgroups, of_driver, inotify)
                    is_new = groups.rescan()
                else:
                    is_new = await _is_next_new(groups)
                if is_new:
                    self._wake.set()

            while True:
                if await self._guard.call_async(follow) is not None:
                    await asyncio.sleep(SOON_S)


async def _is_next_new(groups: PodGroups) -> bool:
    """Wait for the next change, and look for one now and then; return whether a pod or container came."""
    try:
        async with asyncio.timeout(RESCAN_S):
            return await groups.next()
    except TimeoutError:
        return groups.rescan()


def is_starting(pod: PodRecord) -> bool:
    """Return whether a container of the pod will have an id soon: groups are there before the kubelet tells of them."""
    if not pod.is_active:
        return False
    statuses = pod.pod.status.container_statuses
    return len(statuses) < len(pod.pod.spec.containers) or any(not each.container_id for each in statuses)


def ended(old: Mapping[str, PodRecord], new: Mapping[str, PodRecord]) -> list[str]:
    """Groups of pods that are gone or finished, and of containers that others have replaced."""
    gone: list[str] = []
    for uid, pod in old.items():
        now = new.get(uid)
        if now is pod:
            continue
        if now is None or (pod.is_active and not now.is_active) or now.group != pod.group:
            gone.append(pod.group)
            continue
        present = {container.group for container in now.containers}
        gone += [each.group for each in pod.containers if each.group not in present]
    return gone


def _is_same(old: Mapping[str, PodRecord], new: Mapping[str, PodRecord]) -> bool:
    return len(old) == len(new) and all(new.get(uid) is pod for uid, pod in old.items())
