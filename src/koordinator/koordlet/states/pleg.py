"""Pods and containers as they come and go on the host, seconds before the kubelet's list tells of them.

Groups are watched by inotify: the three class directories, and each pod in them (also those that were there before).
Where a class directory is missing, or events were lost, `PodLifecycle.rescan` looks for itself; the agent calls it now
and then. Source: behaviour/koordlet-observe 12.
"""

import enum
import os
from collections.abc import Iterator

import msgspec

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import LayoutError
from koordinator.host.inotify import DirectoryEvent, GroupChange, Inotify

SUBSYSTEM = "cpu"


class LifecycleEventType(enum.Enum):
    """The event of a pod or container."""

    POD_ADDED = "pod added"
    POD_REMOVED = "pod removed"
    CONTAINER_ADDED = "container added"
    CONTAINER_REMOVED = "container removed"


class PodEvent(msgspec.Struct, frozen=True):
    """One event; `container` is an id without runtime, empty for events of pods."""

    what: LifecycleEventType
    group: str
    pod_uid: str
    container: str = ""


class PodLifecycle:
    """Pods and containers known by their groups; `inotify` watches them meanwhile."""

    def __init__(self, cgroups: Cgroups, driver: Driver, inotify: Inotify) -> None:
        self._cgroups = cgroups
        self._driver = driver
        self._inotify = inotify
        self._base = cgroups.directory("", SUBSYSTEM)
        self._classes = [cgroup_layout.class_dir(driver, kube) for kube in KubeQoS]
        self._pods: dict[str, str] = {}
        """Group → uid."""
        self._containers: dict[str, dict[str, str]] = {}
        """Group of a pod → directory name of a container → id."""

    async def next(self) -> list[PodEvent]:
        """Wait for events and return them: at least one, unless it concerns neither pods nor containers."""
        events: list[PodEvent] = []
        told = await self._inotify.next()
        if any(each.change is GroupChange.OVERFLOW for each in told):
            return self.rescan()
        for each in told:
            events += self._told(each)
        return events

    def rescan(self) -> list[PodEvent]:
        """Look at all groups; what differs from what was known, as events. Watches what is not watched yet."""
        events: list[PodEvent] = []
        found: dict[str, str] = {}
        for class_dir in self._classes:
            self._watch(class_dir)
            for group in self._cgroups.children(class_dir, SUBSYSTEM) or ():
                uid = self._pod_uid(os.path.basename(group))
                if uid is not None:
                    found[group] = uid
        for group in [group for group in self._pods if group not in found]:
            events += self._pod_removed(group)
        for group, uid in found.items():
            events += self._pod_seen(group, uid)
        return events

    def _told(self, event: DirectoryEvent) -> Iterator[PodEvent]:
        if not event.is_directory or not event.name:
            return
        parent = event.directory.removeprefix(self._base).strip("/")
        group = cgroup_layout.join(parent, event.name)
        is_new = event.change is GroupChange.CREATED
        if parent in self._classes and group in self._classes:
            if is_new:
                yield from self.rescan()  # a class directory that the kubelet has just made
        elif parent in self._classes:
            uid = self._pod_uid(event.name)
            if uid is not None:
                yield from self._pod_seen(group, uid) if is_new else self._pod_removed(group)
        elif parent in self._pods:
            yield from (
                self._container_seen(parent, event.name)
                if is_new
                else self._container_removed(parent, event.name)
            )

    def _pod_seen(self, group: str, uid: str) -> Iterator[PodEvent]:
        if group not in self._pods:
            self._pods[group] = uid
            self._containers[group] = {}
            yield PodEvent(LifecycleEventType.POD_ADDED, group, uid)
        # First the watch, then the look: what comes in between is seen twice rather than never.
        self._watch(group)
        names = [os.path.basename(each) for each in self._cgroups.children(group, SUBSYSTEM) or ()]
        for name in [name for name in self._containers[group] if name not in names]:
            yield from self._container_removed(group, name)
        for name in names:
            yield from self._container_seen(group, name)

    def _pod_removed(self, group: str) -> Iterator[PodEvent]:
        uid = self._pods.pop(group, None)
        if uid is None:
            return
        self._inotify.unwatch(self._cgroups.directory(group, SUBSYSTEM))
        for container in self._containers.pop(group).values():
            yield PodEvent(LifecycleEventType.CONTAINER_REMOVED, group, uid, container)
        yield PodEvent(LifecycleEventType.POD_REMOVED, group, uid)

    def _container_seen(self, group: str, name: str) -> Iterator[PodEvent]:
        if name in self._containers[group]:
            return
        try:
            container = cgroup_layout.container_id_of_dirname(self._driver, name)
        except LayoutError:
            return
        self._containers[group][name] = container
        yield PodEvent(LifecycleEventType.CONTAINER_ADDED, group, self._pods[group], container)

    def _container_removed(self, group: str, name: str) -> Iterator[PodEvent]:
        container = self._containers[group].pop(name, None)
        if container is not None:
            yield PodEvent(LifecycleEventType.CONTAINER_REMOVED, group, self._pods[group], container)

    def _watch(self, group: str) -> None:
        directory = self._cgroups.directory(group, SUBSYSTEM)
        if directory not in self._inotify.directories:
            self._inotify.watch(directory)  # a group that is gone by now is found missing by the next look

    def _pod_uid(self, name: str) -> str | None:
        try:
            uid = cgroup_layout.pod_uid_of_dirname(self._driver, name)
        except LayoutError:
            return None
        return uid.replace("_", "-")  # systemd's names have no dashes, and UIDs no underscores
