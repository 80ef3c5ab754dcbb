"""Refused pods asleep, and which of them an event can help.

Pods of one class that the same plugins refused sleep as a group: one question wakes or leaves all of them.
Plugins that are asked very often answer for all groups at once (`QueueingHintIndex`). Source: behaviour/scheduler B5.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from koordinator.cluster.supervise import Guard
from koordinator.scheduler.plugin import capabilities
from koordinator.scheduler.plugin.events import NODE_EVENTS, ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Mask,
    Plugin,
    PostFilterPlugin,
    QueueingHintIndex,
)
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.table.pod_info import PodInfo

QUICK_CHECKS = (
    "NodeResourcesFit",  # refuses most often, so it is asked first
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
)
"""Filters that a node has to pass before news from it wake a pod (behaviour/scheduler B5: the pre-check)."""

_ABOUT_ROW = NODE_EVENTS | {ClusterEvent.ASSIGNED_POD_DELETED, ClusterEvent.ASSIGNED_POD_UPDATED}

_guard = Guard("queueing hints")

Plugins = Mapping[str, Plugin[Any]]


class Wakeup(msgspec.Struct, frozen=True):
    """Pods that an event can help; `is_immediate`: without waiting for the end of their backoff.

    With `blocked_by` it helps them only once that plugin lets them onto the node, too: its events count for them from
    now on. It has not refused them so far, perhaps because it was never asked about the node as it is now.
    """

    uids: tuple[str, ...]
    is_immediate: bool
    blocked_by: str = ""


class UnschedulablePods:
    """All sleeping pods. `plugins` gives the plugins of a profile by name."""

    def __init__(self, plugins: Callable[[str], Plugins]) -> None:
        self._plugins = plugins
        self._buckets: dict[Hashable, _Bucket] = {}
        self._bucket_of: dict[str, tuple[Hashable, Hashable]] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def add(self, entry: QueuedPod) -> None:
        key = (entry.profile_name, entry.refused_by, entry.pending_by)
        bucket = self._buckets.get(key)
        if bucket is None:
            plugins = self._plugins(entry.profile_name)
            bucket = self._buckets[key] = _Bucket(plugins, entry.refused_by, entry.pending_by)
        pod, class_key = entry.hint
        group_key = bucket.group_key(pod, class_key)
        self._bucket_of[entry.pod.uid] = (key, group_key)
        bucket.add(group_key, entry.pod.uid, pod)

    def discard(self, uid: str) -> None:
        found = self._bucket_of.pop(uid, None)
        if found is None:
            return
        key, group_key = found
        bucket = self._buckets[key]
        bucket.discard(group_key, uid)
        if not bucket:
            del self._buckets[key]

    def woken_by(self, event: QueueingEvent) -> list[Wakeup]:
        """Return who can be helped. Nobody is moved."""
        found: list[Wakeup] = []
        verdicts: Verdicts = {}
        for bucket in self._buckets.values():
            found += bucket.woken_by(event, verdicts)
        return found


def wakeup_of(entry: QueuedPod, plugins: Plugins, event: QueueingEvent) -> Wakeup | None:
    """Return what an event does for one pod, None when nothing."""
    uids, blocked = (entry.pod.uid,), None
    if event.kind is ClusterEvent.WILDCARD:
        return Wakeup(uids, is_immediate=False)
    pod = entry.pod if event.kind is ClusterEvent.POD_UPDATED else entry.hint[0]
    for names, is_immediate in ((entry.pending_by, True), (entry.refused_by - entry.pending_by, False)):
        for plugin in _asked(plugins, names, event):
            obstacle = _obstacle(plugin, event, pod, _quick_checks(plugins), {})
            if obstacle and _would_have_room(plugins, event, pod) and not _is_nominated(plugins, entry.pod):
                obstacle = _obstacle(plugin, event, pod, _quick_checks(plugins), {}, evicts=True)
            if not obstacle:
                return Wakeup(uids, is_immediate)
            if obstacle not in entry.refused_by:
                blocked = Wakeup(uids, is_immediate=False, blocked_by=obstacle)
    return blocked


Verdicts = dict[Hashable, bool]
"""Answers of quick checks about the node of one event, by plugin and what it looks at in a pod."""


class _Group:
    """Pods that the same events can help, by the uids of those who wait because of them, and where they stand in the
    indexes of their bucket."""

    __slots__ = ("pods", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.pods: dict[str, PodInfo] = {}

    @property
    def first(self) -> PodInfo:
        return next(iter(self.pods.values()))


class _Bucket:
    """Groups that the same plugins of one profile refused."""

    def __init__(self, plugins: Plugins, refused_by: frozenset[str], pending_by: frozenset[str]) -> None:
        self._plugins = plugins
        self._checks = _quick_checks(plugins)
        self._refused_by = refused_by
        self._names = ((pending_by, True), (refused_by - pending_by, False))
        self._asked: dict[ClusterEvent, list[tuple[Plugin[Any], bool]]] = {}
        self._groups: dict[Hashable, _Group] = {}
        self._slots: list[_Group | None] = []
        self._free: list[int] = []
        self._indexes: dict[str, QueueingHintIndex] = {}
        for name in sorted(refused_by & plugins.keys()):
            index = plugins[name].wake_index()
            if index is not None:
                self._indexes[name] = index
        refusing = [plugins[name] for name in sorted(refused_by & plugins.keys())]
        self._evictions = _eviction_indexes(plugins)
        self._telling_apart = [each for each in refusing if type(each).sleep_key is not Plugin.sleep_key]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def group_key(self, pod: PodInfo, class_key: Hashable) -> Hashable:
        """Equal for pods that the same events can help."""
        if self._evictions:
            class_key = (class_key, pod.priority, pod.pod.spec.preemption_policy)
        if not self._telling_apart:
            return class_key
        return (class_key, *(each.sleep_key(pod) for each in self._telling_apart))

    def add(self, group_key: Hashable, uid: str, pod: PodInfo) -> None:
        group = self._groups.get(group_key)
        if group is None:
            slot = self._free.pop() if self._free else len(self._slots)
            group = self._groups[group_key] = _Group(slot)
            if slot == len(self._slots):
                self._slots.append(group)
            else:
                self._slots[slot] = group
            for index in (*self._indexes.values(), *self._evictions):
                index.put(slot, pod)
        group.pods[uid] = pod

    def discard(self, group_key: Hashable, uid: str) -> None:
        group = self._groups[group_key]
        del group.pods[uid]
        if group.pods:
            return
        del self._groups[group_key]
        self._slots[group.slot] = None
        self._free.append(group.slot)
        for index in (*self._indexes.values(), *self._evictions):
            index.clear(group.slot)

    def woken_by(self, event: QueueingEvent, verdicts: Verdicts) -> list[Wakeup]:
        if event.kind is ClusterEvent.WILDCARD:
            return [Wakeup(tuple(group.pods), is_immediate=False) for group in self._groups.values()]
        found: list[Wakeup] = []
        woken: set[int] = set()
        blocked: dict[int, Wakeup] = {}
        asked = self._asked_about(event)
        evicting = self._evicting(event) if asked else None
        for plugin, is_immediate in asked:
            for group in self._candidates(plugin, event, evicting):
                if group.slot in woken:
                    continue
                uids = tuple(group.pods)
                obstacle = _obstacle(plugin, event, group.first, self._checks, verdicts)
                if obstacle and evicting is not None and evicting[group.slot] and (idle := self._idle(group)):
                    uids = idle
                    obstacle = _obstacle(plugin, event, group.first, self._checks, verdicts, evicts=True)
                if not obstacle:
                    woken.add(group.slot)
                    found.append(Wakeup(uids, is_immediate))
                elif obstacle not in self._refused_by:
                    blocked[group.slot] = Wakeup(uids, is_immediate=False, blocked_by=obstacle)
        return [*found, *(each for slot, each in blocked.items() if slot not in woken)]

    def _asked_about(self, event: QueueingEvent) -> list[tuple[Plugin[Any], bool]]:
        """Return the plugins that the event concerns, and whether they wake at once; those of each kind are kept."""
        found = self._asked.get(event.kind)
        if found is None:
            found = self._asked[event.kind] = [
                (plugin, is_immediate)
                for names, is_immediate in self._names
                for plugin in _asked(self._plugins, names, event)
            ]
        return found

    def _idle(self, group: _Group) -> tuple[str, ...]:
        """Pods of a group for which no room is being made yet."""
        return tuple(uid for uid, pod in group.pods.items() if not _is_nominated(self._plugins, pod))

    def _evicting(self, event: QueueingEvent) -> Mask | None:
        """(slots,): groups that would have room on the node of the event once others are gone; None when none has."""
        if not _may_open_to_evictions(event):
            return None
        found = [index.may_wake(event, len(self._slots)) for index in self._evictions]
        return found[0] if found and found[0].any() else None

    def _candidates(
        self, plugin: Plugin[Any], event: QueueingEvent, evicting: Mask | None
    ) -> Iterator[_Group]:
        """Groups that the plugin's index does not rule out, or that could evict; all when it has none."""
        index = self._indexes.get(plugin.name)
        if index is None:
            yield from list(self._groups.values())
            return
        wakes = index.may_wake(event, len(self._slots))
        for slot in np.flatnonzero(wakes if evicting is None else wakes | evicting).tolist():
            group = self._slots[slot]
            if group is not None:
                yield group


def _asked(plugins: Plugins, names: frozenset[str], event: QueueingEvent) -> list[Plugin[Any]]:
    """Plugins that the event concerns, in a fixed order."""
    found = (plugins.get(name) for name in sorted(names))
    return [plugin for plugin in found if plugin is not None and event.kind in plugin.wakes_on]


QuickChecks = list[FilterPlugin[Any]]


def _quick_checks(plugins: Plugins) -> QuickChecks:
    found = (plugins.get(name) for name in QUICK_CHECKS)
    return [plugin for plugin in found if isinstance(plugin, FilterPlugin)]


def _obstacle(
    plugin: Plugin[Any],
    event: QueueingEvent,
    pod: PodInfo,
    checks: QuickChecks,
    verdicts: Verdicts,
    *,
    evicts: bool = False,
) -> str:
    """Return the plugin that refuses the pod still: the one asked, or a quick check; "" when the event helps. `evicts`:
    the pod would have room on the node of the event without pods that it may evict."""
    try:
        return _refusing(plugin, event, pod, checks, verdicts, evicts)
    except Exception as error:
        _guard.failed(error, plugin.wakes)
        return ""  # a cycle in vain at worst; who is not woken may wait for minutes


def _refusing(
    plugin: Plugin[Any],
    event: QueueingEvent,
    pod: PodInfo,
    checks: QuickChecks,
    verdicts: Verdicts,
    evicts: bool,
) -> str:
    if event.kind is ClusterEvent.POD_UPDATED:
        # An update that the plugin does not look at (our own status patch) changes nothing for it.
        old, new = event.old, event.new
        return "" if plugin.is_relevant_update(old, new) and plugin.wakes(event, pod) else plugin.name
    if not _concerns_row(plugin, event):
        return "" if plugin.wakes(event, pod) else plugin.name
    for each in (plugin, *checks):
        if not _passes(each, event, pod, verdicts) and not (evicts and _pods_matter(each, event, pod)):
            return each.name
    return ""


def _eviction_indexes(plugins: Plugins) -> list[QueueingHintIndex]:
    """Return the index of the plugin that evicts, if the profile has one."""
    found = (each.eviction_index(plugins) for each in plugins.values() if isinstance(each, PostFilterPlugin))
    return [index for index in found if index is not None][:1]


def _is_nominated(plugins: Plugins, pod: PodInfo) -> bool:
    """Return whether room is being made for the pod: it is woken once those who leave for it are gone."""
    return any(each.handle.nominations.node_for(pod) for each in itertools.islice(plugins.values(), 1))


def _may_open_to_evictions(event: QueueingEvent) -> bool:
    """Return whether evictions may help on the node of the event now and did not before: changes of its pods other than
    of what they hold do nothing."""
    if event.row is None or event.kind not in _ABOUT_ROW:
        return False
    old, new = event.old, event.new
    is_same = isinstance(old, PodInfo) and isinstance(new, PodInfo) and old.requests == new.requests
    return event.kind is not ClusterEvent.ASSIGNED_POD_UPDATED or not is_same


def _would_have_room(plugins: Plugins, event: QueueingEvent, pod: PodInfo) -> bool:
    if not _may_open_to_evictions(event):
        return False
    indexes = _eviction_indexes(plugins)
    for index in indexes:
        index.put(0, pod)
    return any(bool(index.may_wake(event, 1)[0]) for index in indexes)


def _concerns_row(plugin: Plugin[Any], event: QueueingEvent) -> bool:
    """Return whether the event can help on the node that it is about, or nowhere."""
    if event.row is None:
        return False
    return event.kind in _ABOUT_ROW and (type(plugin).wakes is FilterPlugin.wakes or plugin.wakes_for_row)


def _pods_matter(plugin: Plugin[Any], event: QueueingEvent, pod: PodInfo) -> bool:
    """Return whether the plugin may refuse the pod because of others on the node of the event."""
    if event.row is None or not isinstance(plugin, FilterPlugin) or capabilities.ignores_pods(plugin):
        return False
    return bool(plugin.pods_matter(plugin.prepare(pod), np.array([event.row], np.intp))[0])


def _passes(plugin: Plugin[Any], event: QueueingEvent, pod: PodInfo, verdicts: Verdicts) -> bool:
    """Return whether the plugin lets the pod onto the node of the event; asked once for all that look the same."""
    key = (plugin.name, plugin.class_key(pod), plugin.live_key(pod))
    found = verdicts.get(key)
    if found is None:
        found = verdicts[key] = plugin.wakes(event, pod)
    return found
