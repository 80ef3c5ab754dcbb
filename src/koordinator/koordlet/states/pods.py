"""Pods of this node, as the kubelet lists them. Source: behaviour/koordlet-observe 7.2.

The list is asked for every few seconds, and at once when a group of a pod or container comes: a new container must not
wait ten seconds for its limits.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import NoReturn

from koordinator.api import quantity
from koordinator.api.core import Container, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import KubeQoS
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.cluster.backoff import Rate, TokenBucket
from koordinator.cluster.supervise import Guard
from koordinator.host import cgroup_layout
from koordinator.host.inotify import Inotify
from koordinator.host.kubelet import KubeletError
from koordinator.koordlet import node_pods
from koordinator.koordlet.metrics import AgentMetrics, NodeGauge
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Kubelet, Shared
from koordinator.koordlet.states import driver
from koordinator.koordlet.states.node import UNITS
from koordinator.koordlet.states.pleg import LifecycleEventType, PodEvent, PodLifecycle
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

TRIGGERED = Rate(per_s=5.0, burst=10)
"""How often the kubelet is asked because of new groups, at most."""
RESCAN_S = 30.0
"""How often groups are looked at without being told of a change: watches can be lost."""
SOON_S = 1.0
STARTING_TRIES_MAX = 10
"""Right after a group came, the kubelet may list its container without an id: it is asked again so often."""
_DEPTH_OF_CONTAINERS = 2


def tell_resources(metrics: AgentMetrics, pods: Iterable[PodRecord]) -> None:
    """Fill the two families anew, with the unit that each resource has."""
    metrics.container_requests.reset()
    metrics.container_limits.reset()
    for pod in pods:
        specs = {each.name: each for each in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)}
        for container in pod.containers:
            spec = specs.get(container.name)
            if spec is not None:
                labels = pod_labels(pod, container.id, container.name)
                _tell_container(metrics, spec, labels)


def pod_labels(pod: PodRecord, container_id: str, container_name: str) -> tuple[str, ...]:
    """Values of the labels that name a container."""
    meta = pod.pod.metadata
    return pod.uid, meta.name, meta.namespace, container_id, container_name


def _tell_container(metrics: AgentMetrics, spec: Container, labels: tuple[str, ...]) -> None:
    _tell_amounts(metrics.container_requests, spec.resources.requests, labels)
    _tell_amounts(metrics.container_limits, spec.resources.limits, labels)


def _tell_amounts(gauge: NodeGauge, amounts: ResourceList, labels: tuple[str, ...]) -> None:
    for resource, unit in UNITS.items():
        if (raw := amounts.get(resource)) is None:
            continue
        try:
            gauge.set(quantity.value(raw), resource, unit, *labels)
        except QuantityError as error:
            log.debug("amount not told", extra={"resource": resource, "problem": str(error)})


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
        """What was wrong with pods of the last list, by UID; each is said once."""
        self._tries = 0
        """How often the kubelet is asked again soon, because a container that came has no id yet."""
        self._interval_s = shared.config.kubelet.sync_interval_s

    @property
    def is_required(self) -> bool:
        """An agent that is told not to ask for pods goes on without."""
        return self._interval_s > 0

    async def run(self) -> NoReturn:
        """Ask the kubelet again and again, and watch groups meanwhile."""
        if not self.is_required:
            log.warning("pods are not asked for: kubelet-sync-interval is not above 0")
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
        """Ask once. Failures are told in `trouble` and in the log, once."""
        try:
            pods = await self._kubelet.pods()
        except KubeletError as error:
            self._missed(str(error))
            return
        shared = self._shared
        shared.view.driver = driver.corrected(shared.host, shared.view.driver)
        if not pods and self._has_processes():
            self._missed("the kubelet lists no pods although some run: it has just started, perhaps")
            return
        if self.trouble:
            log.info("pods of the kubelet known", extra={"pods": len(pods)})
        self.trouble = ""
        self._take(self._records(pods))

    def _missed(self, trouble: str) -> None:
        if trouble != self.trouble:
            facts = {"problem": trouble, "pods_kept": len(self._shared.view.pods)}
            log.warning("pods of the kubelet not known", extra=facts)
        self.trouble = trouble

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
                    log.warning("pod cannot be read", extra={"pod": pod.key, "problem": reported[uid]})
        self._unreadable = reported
        return records

    def _take(self, records: dict[str, PodRecord]) -> None:
        shared, view = self._shared, self._shared.view
        old = view.pods
        if not _is_same(old, records):
            view.pods = records
            tell_resources(shared.metrics, records.values())
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
            log.info("groups are not watched, pods are asked for only", extra={"problem": str(error)})
            await asyncio.Event().wait()
            raise
        with inotify:
            lifecycle, of_driver = None, None

            async def follow() -> None:
                nonlocal lifecycle, of_driver
                if lifecycle is None or of_driver is not self._shared.view.driver:
                    of_driver = self._shared.view.driver
                    lifecycle = PodLifecycle(self._shared.host.cgroups, of_driver, inotify)
                    self._told(lifecycle.rescan())
                self._told(await self._events(lifecycle))

            while True:
                if await self._guard.call_async(follow) is not None:
                    await asyncio.sleep(SOON_S)

    async def _events(self, lifecycle: PodLifecycle) -> list[PodEvent]:
        try:
            async with asyncio.timeout(RESCAN_S):
                return await lifecycle.next()
        except TimeoutError:
            return lifecycle.rescan()

    def _told(self, events: list[PodEvent]) -> None:
        for event in events:
            if event.what in (LifecycleEventType.POD_ADDED, LifecycleEventType.CONTAINER_ADDED):
                self._wake.set()


def is_starting(pod: PodRecord) -> bool:
    """Return whether a container of the pod will have an id soon: groups are there before the kubelet tells of
    them.
    """
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
