"""Keeps the histories of workloads that wait or lost pods, from what the scheduler does and the API tells.

It decides nothing. Where it is off it does not exist: nothing calls it. Source: behaviour/scheduler C13.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api import gang_labels
from koordinator.api.core import Pod
from koordinator.clock import Clock
from koordinator.prometheus import Counter, Histogram, MetricsRegistry, exponential
from koordinator.scheduler.auditor.history import (
    AuditFinding,
    AuditLimits,
    AuditRecord,
    MeasuredFinding,
    WorkloadHistory,
    is_new,
    step,
)
from koordinator.scheduler.engine.results import Unplaced
from koordinator.scheduler.plugin.handle import JOB_PLUGINS, RecordKind
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.table.pod_info import PodInfo

PREFIX = "scheduler_workload_auditor_"
_SECONDS = exponential(0.1, 2, 15)
_COUNTS = exponential(1, 2, 10)
_METHOD_S = exponential(0.000001, 2, 20)

_COUNTERS = {
    AuditFinding.REPEATED_PREEMPTION: "Room was made again for a workload that was not scheduled since the last time.",
    AuditFinding.PREEMPTION_INVALIDATED: "Room that was made for a workload was given up or not used.",
}
_HISTOGRAMS = {
    AuditFinding.VICTIM_RESCHEDULED: (
        "From the eviction of a workload's pod to its next placement.",
        _SECONDS,
    ),
    AuditFinding.DELETING_RETRIES: ("Attempts in vain while victims were being deleted.", _COUNTS),
    AuditFinding.VICTIMS_DELETED: ("From a nomination by preemption until all victims were gone.", _SECONDS),
    AuditFinding.CYCLE_INTERRUPTED: ("From a nomination by preemption until it was given up.", _SECONDS),
    AuditFinding.EVENTS_BEFORE_OUTCOME: ("Records of a workload until it was scheduled or gone.", _COUNTS),
    AuditFinding.EVENT_INTERVAL: ("Between two records of a workload.", _SECONDS),
}


class LabelClash(ValueError):
    """Two pod labels that would be one label of the metrics."""


def label_names(pod_labels: Sequence[str]) -> tuple[str, ...]:
    """Return names that Prometheus allows. Raises: LabelClash."""
    names = tuple(re.sub(r"^(?=\d)|[^a-zA-Z0-9_]", "_", name) for name in pod_labels)
    if len(set(names)) < len(names):
        raise LabelClash(f"labels {', '.join(pod_labels)} are not told apart as metric labels")
    return names


class AuditMetrics:
    """The metrics; `pod_labels` are labels of pods that they carry. Raises: LabelClash."""

    def __init__(self, registry: MetricsRegistry, pod_labels: Sequence[str]) -> None:
        names = label_names(pod_labels)
        self._counters = {
            each: Counter(f"{PREFIX}{each}", f"[ALPHA] {text}", names) for each, text in _COUNTERS.items()
        }
        self._histograms = {
            each: Histogram(f"{PREFIX}{each}", f"[ALPHA] {text}", bounds, names)
            for each, (text, bounds) in _HISTOGRAMS.items()
        }
        self._method = Histogram(
            f"{PREFIX}record_method_duration_seconds",
            "[ALPHA] What the auditor itself takes.",
            _METHOD_S,
            ("method",),
        )
        registry.add(*self._counters.values(), *self._histograms.values(), self._method)

    def count(self, found: MeasuredFinding, labels: tuple[str, ...]) -> None:
        counter = self._counters.get(found.finding)
        if counter is not None:
            counter.inc(*labels)
        else:
            self._histograms[found.finding].of(*labels).observe(found.amount)

    def took(self, method: str, seconds: float) -> None:
        self._method.of(method).observe(max(0.0, seconds))


log = logging.getLogger(__name__)

WORKLOADS_MAX = 16_384
"""Workloads remembered; those heard of longest ago go first. About 2 kB each."""


FOLLOWING = JOB_PLUGINS | {"Coscheduling"}
"""Plugins that refuse a member because of another one, or because others are missing: that is no attempt in vain."""


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`metric_labels` are labels of pods that metrics carry."""

    limits: AuditLimits = AuditLimits()
    metric_labels: tuple[str, ...] = ()


class WorkloadPreemption(msgspec.Struct):
    """Victims of a workload that are not gone yet; on the way to `is_reported` a job may name nodes one by one."""

    pod: Pod
    node_name: str
    victims: set[str]
    is_reported: bool = False
    """The attempt that made room has ended."""


class Auditor:
    """Told what the API says (`created`, `deleted`) and what the scheduler does (`gate`, `failed`, `placed`,
    `evicting`)."""

    def __init__(
        self, options: AuditOptions, registry: MetricsRegistry, clock: Clock, is_ours: Callable[[str], bool]
    ) -> None:
        """`is_ours` knows the names of our profiles. Raises: LabelClash."""
        self._options = options
        self._clock = clock
        self._is_ours = is_ours
        self._metrics = AuditMetrics(registry, options.metric_labels)
        self._histories: OrderedDict[str, WorkloadHistory] = OrderedDict()
        self._members: dict[str, set[str]] = {}
        self._gated: set[str] = set()
        self._rooms: dict[str, str] = {}
        """Pod → the node where room was made for it."""
        self._preemptions: dict[str, WorkloadPreemption] = {}
        """By the workload that preempts."""
        self._preemptor_of: dict[str, str] = {}

    def __len__(self) -> int:
        """Workloads that are remembered."""
        return len(self._histories)

    def history(self, pod: Pod) -> WorkloadHistory:
        """Return what happened to the pod's workload so far."""
        return self._histories.get(workload_of(pod), WorkloadHistory())

    # The API

    def created(self, pod: Pod) -> None:
        """Note that a pod came that wants a node."""
        if pod.spec.node_name or not self._is_ours(pod.spec.scheduler_name):
            return
        began_s = self._clock.now()
        self._members.setdefault(workload_of(pod), set()).add(_uid(pod))
        self._record(pod, RecordKind.CREATED)
        self._took("created", began_s)

    def deleted(self, pod: Pod) -> None:
        """Note that a pod is gone: perhaps the last victim of somebody, perhaps the last of its workload."""
        began_s = self._clock.now()
        uid, name = _uid(pod), workload_of(pod)
        self._gated.discard(uid)
        self._rooms.pop(uid, None)
        self._victim_gone(uid)
        if uid in self._members.get(name, ()):
            if len(self._members[name]) == 1:
                self._record(pod, RecordKind.GONE)
                self._preemption_ended(name)
            self._leave(uid, name)
        self._took("deleted", began_s)

    # The scheduler

    def gate(self, ask: Callable[[QueuedPod, str], Status]) -> Callable[[QueuedPod, str], Status]:
        """`ask`, with its answers about all gates noted."""

        def noting(entry: QueuedPod, but: str) -> Status:
            status = ask(entry, but)
            pod = entry.pod.pod
            if but:
                return status
            if not status.is_success and _uid(pod) not in self._gated:
                self._gated.add(_uid(pod))
                self._record(pod, RecordKind.GATED)
            elif status.is_success and _uid(pod) in self._gated:
                self._gated.discard(_uid(pod))
                self._record(pod, RecordKind.ADMITTED)
            return status

        return noting

    def failed(self, entry: QueuedPod, result: Unplaced) -> None:
        """Note that an attempt ended without a binding."""
        began_s = self._clock.now()
        pod, uid = entry.pod.pod, _uid(entry.pod.pod)
        is_following = bool(_gang_of(pod) and result.rejected_by & FOLLOWING)
        waits_for = self._preemptions.get(workload_of(pod))
        if result.nominated_node is not None:
            self._rooms.pop(uid, None)
        if result.nominated_node:
            self._rooms[uid] = result.nominated_node
            self._record(pod, RecordKind.PREEMPT_NOMINATED, result.nominated_node)
        elif result.nominated_node == "":
            self._record(pod, RecordKind.PREEMPT_FAILED)
        elif waits_for is not None and waits_for.victims and not is_following:
            self._record(pod, RecordKind.VICTIM_DELETING, waits_for.node_name)
        else:
            self._record(pod, RecordKind.SCHEDULE_FAILED)
        if waits_for is not None and not is_following:
            waits_for.is_reported = True
        self._took("failed", began_s)

    def placed(self, entry: QueuedPod, node_name: str) -> None:
        """Note that a pod was bound."""
        began_s = self._clock.now()
        pod = entry.pod.pod
        self._record(pod, RecordKind.SCHEDULED, node_name, self._rooms.pop(_uid(pod), ""))
        self._preemption_ended(workload_of(pod))
        self._leave(_uid(pod), workload_of(pod))
        self._took("placed", began_s)

    def evicting(self, preemptor: PodInfo, node_name: str, victims: Iterable[PodInfo]) -> None:
        """Pods are about to be deleted in favour of another; a job says so for each of its nodes."""
        began_s = self._clock.now()
        name = workload_of(preemptor.pod)
        under_way = self._preemptions.get(name)
        if under_way is None or under_way.is_reported:
            self._preemption_ended(name)
            under_way = WorkloadPreemption(preemptor.pod, node_name, set())
        for victim in victims:
            self._preemptor_of[victim.uid] = name
            under_way.victims.add(victim.uid)
            self._record(victim.pod, RecordKind.EVICTED, node_name)
        if under_way.victims:
            self._preemptions[name] = under_way
        self._took("evicting", began_s)

    def gang(self, pod: Pod, kind: RecordKind) -> None:
        """Something happened to the gang of a pod as a whole; of gangs of which nobody waits nothing is kept."""
        if workload_of(pod) in self._members:
            began_s = self._clock.now()
            self._record(pod, kind)
            self._took("gang", began_s)

    # Books

    def _leave(self, uid: str, name: str) -> None:
        """Note that a pod waits no longer; without any that waits, the workload is forgotten, unless it is a victim
        that may come back."""
        members = self._members.get(name, set())
        members.discard(uid)
        if not members:
            self._members.pop(name, None)
            if name in self._histories and self._histories[name].evicted_s is None:
                del self._histories[name]

    def _victim_gone(self, uid: str) -> None:
        preemptor = self._preemptor_of.pop(uid, "")
        under_way = self._preemptions.get(preemptor)
        if under_way is None:
            return
        under_way.victims.discard(uid)
        if not under_way.victims:
            del self._preemptions[preemptor]
            self._record(under_way.pod, RecordKind.VICTIMS_DELETED, under_way.node_name)

    def _preemption_ended(self, name: str) -> None:
        under_way = self._preemptions.pop(name, None)
        for victim in under_way.victims if under_way is not None else ():
            self._preemptor_of.pop(victim, None)

    def _record(self, pod: Pod, kind: RecordKind, node_name: str = "", room: str = "") -> None:
        name = workload_of(pod)
        known = self._histories.get(name, WorkloadHistory())
        if _gang_of(pod) and not is_new(known, kind):
            return
        record = AuditRecord(kind, self._clock.now(), node_name, room)
        history, found = step(known, record, self._options.limits)
        self._histories[name] = history
        self._histories.move_to_end(name)
        if len(self._histories) > WORKLOADS_MAX:
            self._histories.popitem(last=False)
        labels = tuple(pod.metadata.labels.get(label, "") for label in self._options.metric_labels)
        for each in found:
            self._metrics.count(each, labels)
            if each.is_odd:
                _warn(name, each, history)

    def _took(self, method: str, began_s: float) -> None:
        self._metrics.took(method, self._clock.now() - began_s)


def _uid(pod: Pod) -> str:
    return pod.metadata.uid or pod.key


def workload_of(pod: Pod) -> str:
    """Return the gang that a pod belongs to, else the pod itself, as `namespace/name`."""
    meta, gang = pod.metadata, _gang_of(pod)
    return f"gang {meta.namespace}/{gang}" if gang else f"{meta.namespace}/{meta.name}"


def _gang_of(pod: Pod) -> str:
    return gang_labels.gang_name(pod.metadata.labels, pod.metadata.annotations)


_WORDS = {
    AuditFinding.REPEATED_PREEMPTION: "room was made for it again, and it was not scheduled since the last time",
    AuditFinding.PREEMPTION_INVALIDATED: "room that was made for it is not used",
    AuditFinding.VICTIM_RESCHEDULED: "a victim that had a node again so soon need not have been evicted",
    AuditFinding.DELETING_RETRIES: "it was tried in vain while its victims were being deleted",
    AuditFinding.VICTIMS_DELETED: "its victims were deleted slowly",
    AuditFinding.EVENT_INTERVAL: "nothing happened to it for long",
}


def _warn(name: str, found: MeasuredFinding, history: WorkloadHistory) -> None:
    facts = {
        "workload": name,
        "finding": found.finding.value,
        "amount": round(found.amount, 3),
        "records": [f"{record.kind} {record.node}".strip() for record in history.records],
    }
    log.warning("workload auditor: %s", _WORDS[found.finding], extra=facts)
