"""Job preemption in the running scheduler: `preempt` decides on trials of the node table, here its decision is
carried out. Source: behaviour/gangs 12.

The preemptor is a group of gangs whose round has failed at a member, or a single pod. Without `enablePreemption`
stock preemption makes room for the member that failed its round, and for no other one.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from koordinator.api import pod_labels
from koordinator.api.gang_labels import GangMatchPolicy
from koordinator.prometheus import Histogram, exponential
from koordinator.scheduler.config.default_plugins import CoschedulingArgs
from koordinator.scheduler.plugin.capabilities import JobRoomPlugin
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PostFilterResult,
    PreemptionOffer,
)
from koordinator.scheduler.plugin.handle import JOB_PREEMPTION_FAILURE, JOB_PREEMPTION_SUCCESS, JOB_REJECT
from koordinator.scheduler.plugin.status import SUCCESS, Code, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.plugins.coscheduling.dry_run_cluster import PreemptionDryRun
from koordinator.scheduler.plugins.coscheduling.events import GangRound, is_on_its_own
from koordinator.scheduler.plugins.coscheduling.gangs import Gang
from koordinator.scheduler.plugins.coscheduling.job_preemptor import (
    JobPreemption,
    Placer,
    PreemptReason,
    preempt,
)
from koordinator.scheduler.plugins.coscheduling.jobs import JobResidents, PreemptorJob, VictimAction
from koordinator.scheduler.plugins.coscheduling.running import NAME, RunningGangs
from koordinator.scheduler.plugins.preemption.executor import (
    PreemptionExecutor,
    PreemptionTerms,
    is_terminating_victim,
)
from koordinator.scheduler.plugins.preemption.plugin import WAITING
from koordinator.scheduler.plugins.preemption.victims import may_evict
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import rehearsal_of

JOBS_MEASURED_MAX = 1_000
"""Jobs with a time series of their own: names of jobs come and go for ever."""
OTHER_JOBS = "others"


class GangPreemption:
    """PostFilter of Coscheduling."""

    def __init__(
        self,
        args: CoschedulingArgs,
        handle: Handle,
        gangs: RunningGangs,
        placer_of: Callable[[PodInfo], Placer | None],
    ) -> None:
        """`placer_of` places the job of a pod that may not go just anywhere; None for all others."""
        self._placer_of = placer_of
        self._handle = handle
        self._gangs = gangs
        self._residents = handle.table.shared(JobResidents) if args.enable_preemption else None
        self._eviction = PreemptionExecutor(handle)
        self._evicting: dict[str, str] = {}
        """Gang group → the member whose victims are being deleted."""
        self._doomed: set[str] = set()
        """uids of victims that the API has agreed to delete, until they are gone: their deletion shows later."""
        self._duration = handle.metrics.registry.shared(
            Histogram(
                "scheduler_job_preemption_duration_seconds",
                "Time to decide whom a job may evict, in seconds.",
                exponential(0.001, 2, 20),
                ("jobName", "result"),
            )
        )
        self._measured: set[str] = set()

    @property
    def is_for_jobs(self) -> bool:
        """Return whether room is made for whole jobs (`enablePreemption`)."""
        return self._residents is not None

    # The gate

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Members stay out of the queue while the requests about the victims of their group are under way."""
        if not self._evicting:
            return SUCCESS
        gang = self._gang_of(pod)
        group_id = gang.group.group_id if gang is not None else ""
        if self._evicting.get(group_id, "") in self._eviction.under_way:
            return WAITING
        self._evicting.pop(group_id, None)
        return SUCCESS

    def round_began(self) -> None:
        """Members for whom room is kept are tried before the others, who might take it."""
        nominations, cache, now = self._handle.nominations, self._gangs.rounds.cache, self._gangs.rounds.round
        if now is None or not len(nominations):
            return
        gangs = [gang for gang_id in now.gangs if (gang := cache.get(gang_id)) is not None]
        self._gangs.rounds.prefer(
            (key, gang.gang_id)
            for gang in gangs
            for key in sorted(gang.pending)
            if nominations.node_of(gang.children[key])
        )

    # Deciding

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        """Makes room for the whole job, or for nobody; after that nobody else is asked about a gang."""
        now = self._gangs.round_of(pod.pod) if self._gang_of(pod) is not None else None
        if self._residents is None or pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            if self._gang_of(pod) is not None and self._is_vacating_for(pod):
                return PostFilterResult(unresolvable(f"preemption: {PreemptReason.TERMINATING.value}"))
            return PostFilterResult(unschedulable())
        began_s = self._handle.clock.now()
        job = self._job_of(pod)
        found, victims = self.decide(job, diagnosis, now.preemption_message if now is not None else "")
        if now is not None and found.reason is not PreemptReason.ATTEMPTED:
            now.preemption_message = found.kept(pod.key)
        self._measure(job, found, began_s)
        if found.reason is PreemptReason.NO_ROOM:
            diagnosis.wake_by(NAME)
        if found.is_success:
            self._make_room(job, found, victims, diagnosis.profile_name)
        elif found.clears_nominations:
            self._give_up(job, f"preemption: {found.message}")
        return self._result(job, found)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Return whether somebody left who could not be evicted, from a node where one more member fits once all others
        went who can: filters only look at what is free."""
        gone, row, table = event.old, event.row, self._handle.table
        if self._residents is None or gone is None or row is None or table.node_at(row) is None:
            return False
        if may_evict(pod, gone):
            return False
        left = {column: amount - int(table.free[column, row]) for column, amount in pod.requests}
        for other in table.pods_at(row).values():
            if may_evict(pod, other):
                for column, amount in other.requests:
                    left[column] = left.get(column, 0) - amount
        return all(amount <= 0 for amount in left.values())

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        """Return what `post_filter` would do."""
        if self._residents is None or pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return Outlook(PostFilterResult(unschedulable()))
        job = self._job_of(pod)
        found, victims = self.decide(job, diagnosis)
        result = self._result(job, found)
        offers = [PreemptionOffer(node, tuple(pods)) for node, pods in victims.items()]
        return Outlook(result, tuple(offers))

    def post_filter_text(self, now: GangRound) -> str:
        """Return what is said of preemption about members that fail because another one did."""
        message = now.preemption_message
        return f"preemption: {message}" if message and self.is_for_jobs else message

    def _gang_of(self, pod: PodInfo) -> Gang | None:
        """Return the gang that the pod is placed with; None for a pod on its own."""
        gang = self._gangs.rounds.cache.get(gang_id_of(pod.pod))
        return None if gang is None or is_on_its_own(gang) else gang

    def _job_of(self, pod: PodInfo) -> PreemptorJob:
        gang = self._gang_of(pod)
        if gang is None:
            return PreemptorJob(name=pod.key, trigger=pod, members={pod.key: pod})
        members = {each.key: each for each in self._gangs.pending_of(gang.group)} | {pod.key: pod}
        needed = {each.key for each in self._gangs.needed_with(pod.pod)}
        gangs = self._gangs.rounds.cache.members_of(gang.group)
        for each in gangs:
            if each.config.match_policy is GangMatchPolicy.ONLY_WAITING:  # only as many go on as go together
                for key in each.pending.keys() - needed:
                    members.pop(key, None)
        return PreemptorJob(
            name=gang.group.group_id,
            trigger=pod,
            # Large members first: small ones find room between them.
            members=dict(sorted(members.items(), key=lambda item: (_size(item[1]), item[0]))),
            surplus=frozenset(members.keys() - needed),
            waiting=tuple(each for each, _ in self._gangs.waiting_of(gang.group)),
            is_gang=True,
            is_complete=all(self._lacking(each) <= each.startable_count for each in gangs),
        )

    def _lacking(self, gang: Gang) -> int:
        """Return how many more members must get a place once victims are gone."""
        is_late = gang.config.match_policy is GangMatchPolicy.ONLY_WAITING and bool(gang.group.binding)
        return gang.config.minimum if is_late else self._gangs.rounds.lacking(gang)

    def _is_vacating_for(self, pod: PodInfo) -> bool:
        """Return whether somebody still has to leave a node that is kept for a member of the pod's job."""
        # The victims are those of stock preemption here.
        job, table, node_for = self._job_of(pod), self._handle.table, self._handle.nominations.node_for
        rows = {table.row_of(node_for(each)) for each in job.pods}
        return any(
            other.priority < pod.priority and is_terminating_victim(other.pod)
            for row in rows
            if row is not None
            for other in table.pods_at(row).values()
        )

    def decide(
        self, job: PreemptorJob, diagnosis: Diagnosis, earlier: str = ""
    ) -> tuple[JobPreemption, Mapping[str, Sequence[PodInfo]]]:
        """Return the decision, and on success whom to evict from each node."""
        assert self._residents is not None
        if earlier:
            return JobPreemption(reason=PreemptReason.ATTEMPTED, message=earlier), {}
        table = self._handle.table
        self._doomed = {uid for uid in self._doomed if table.place_of(uid) is not None}
        if objection := self._objection(job, diagnosis):
            return JobPreemption(reason=objection, message=objection.value), {}
        with self._without_nominations(job), rehearsal_of(table) as trial:
            dry_run = PreemptionDryRun(
                table,
                self._residents,
                trial,
                diagnosis,
                job,
                doomed=self._doomed,
                rivals=self._rivals,
                spare=self._spare,
            )
            found = preempt(job, dry_run, self._placer_of(job.trigger))
        victims: dict[str, list[PodInfo]] = {}
        for each in found.evictions:
            if each.action is not VictimAction.NOTHING:
                victims.setdefault(each.node, []).append(each.pod)
        return found, victims

    def _objection(self, job: PreemptorJob, diagnosis: Diagnosis) -> PreemptReason | None:
        """Return why the job may evict nobody now; None when it may."""
        if not job.members:
            return PreemptReason.NO_MEMBERS
        if job.trigger.pod.spec.preemption_policy == "Never":
            return PreemptReason.NEVER
        if not job.is_complete:
            return PreemptReason.INCOMPLETE
        own, table = {pod.uid for pod in job.pods}, self._handle.table
        for member in job.members.values():
            row = table.row_of(self._handle.nominations.node_for(member))
            if row is None or (
                member.uid == job.trigger.uid
                and diagnosis.status_of(row).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
            ):
                continue
            for other in table.pods_at(row).values():
                is_vacating = other.uid in self._doomed or is_terminating_victim(other.pod)
                if is_vacating and other.uid not in own and may_evict(member, other):
                    return PreemptReason.TERMINATING
        return None

    def _spare(self, pod: PodInfo) -> int:
        """Return how many members the pod's gang has beyond its minimum."""
        gang = self._gangs.rounds.cache.get(gang_id_of(pod.pod))
        return gang.placed_count + gang.waiting_count - gang.config.minimum if gang is not None else 0

    def _rivals(self, plugin: str, pod: PodInfo) -> Iterable[str] | None:
        """uids of the pods that use up what the plugin refused the pod for."""
        knowing = self._handle.companions(JobRoomPlugin)  # type: ignore[type-abstract]
        found = next((each for each in knowing if each.name == plugin), None)
        return found.rivals(pod) if found is not None else None

    @contextlib.contextmanager
    def _without_nominations(self, job: PreemptorJob) -> Iterator[None]:
        """Members do not keep room from each other while all of them look for a node."""
        nominations = self._handle.nominations
        kept = [(pod, nominations.node_of(pod.uid)) for pod in job.pods]
        for pod, _ in kept:
            nominations.remove(pod.uid)
        try:
            yield
        finally:
            for pod, node in kept:
                nominations.set(pod, node)

    # Carrying out

    def _result(self, job: PreemptorJob, found: JobPreemption) -> PostFilterResult:
        if found.is_success:
            return PostFilterResult(SUCCESS, nominated_node=found.nominations[job.trigger.key])
        text = f"preemption: {found.message}"
        # Nobody shall evict pods for one member of a gang that does not fit as a whole.
        status = unresolvable(text) if job.is_gang else unschedulable(text)
        return PostFilterResult(status, nominated_node="" if found.clears_nominations else None)

    def _make_room(
        self,
        job: PreemptorJob,
        found: JobPreemption,
        victims: Mapping[str, Sequence[PodInfo]],
        profile_name: str,
    ) -> None:
        trigger = job.trigger
        others = [pod for pod in job.members.values() if pod.uid != trigger.uid]
        promised = [(pod, found.nominations.get(pod.key, "")) for pod in others]
        for pod, node in promised:
            self._handle.nominations.set(pod, node)

        def evicted(victim: PodInfo) -> None:
            self._doomed.add(victim.uid)

        terms = PreemptionTerms(
            accommodates=f"higher priority pods, preemptor: {job.name}, triggerPod: {trigger.key}",
            plugin=JOB_REJECT,
            nominations=tuple(_as_nominations(promised)),
            is_job=True,
            awaits_others=any(each.action is VictimAction.NOTHING for each in found.evictions),
            evicted=evicted,
        )
        self._eviction.start_many(trigger, victims, profile_name, terms)
        if job.is_gang and trigger.uid in self._eviction.under_way:
            self._evicting[job.name] = trigger.uid
        for pod in job.waiting:
            self._handle.actions.reject_waiting(pod.uid, JOB_PREEMPTION_SUCCESS, found.message)

    def _give_up(self, job: PreemptorJob, message: str) -> None:
        nominations, table = self._handle.nominations, self._handle.table
        for pod in job.pods:
            row = table.row_of(nominations.node_of(pod.uid))
            if nominations.remove(pod.uid) is not None and row is not None:
                self._handle.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, pod, None))
        # Of the trigger and of members that give their places back, outcomes of their attempts tell.
        released = [(pod, "") for pod in job.members.values() if pod.uid != job.trigger.uid]
        self._eviction.renominate(_as_nominations(released), f"preemption by {job.name}")
        now = self._gangs.round_of(job.trigger.pod)
        why = now.failure if now is not None and now.failure else message
        for pod in job.waiting:
            self._handle.actions.reject_waiting(pod.uid, JOB_PREEMPTION_FAILURE, why)

    def _measure(self, job: PreemptorJob, found: JobPreemption, began_s: float) -> None:
        name = job.name
        if name not in self._measured:
            if len(self._measured) < JOBS_MEASURED_MAX:
                self._measured.add(name)
            else:
                name = OTHER_JOBS
        result = "success" if found.is_success else "failure"
        self._duration.of(name, result).observe(max(0.0, self._handle.clock.now() - began_s))


def _as_nominations(promised: Sequence[tuple[PodInfo, str]]) -> list[tuple[PodInfo, str]]:
    """Nominations that the pods' statuses do not tell yet."""
    return [(pod, node) for pod, node in promised if pod.pod.status.nominated_node_name != node]


def _size(pod: PodInfo) -> tuple[int, ...]:
    """Return a sort key: more of the first resources first."""
    return tuple(-amount for _, amount in sorted(pod.requests))
