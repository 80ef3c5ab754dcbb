"""The extension points of ElasticQuota: a pod may be placed while its quota has room for it.

Source: behaviour/elastic-quota.
"""

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from koordinator.api import labels, quota_labels
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.config.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugin.capabilities import (
    ApiAnswer,
    ApiProvider,
    ApiRequest,
    BackgroundController,
    ControllerProvider,
    Endpoint,
    JobRoomPlugin,
)
from koordinator.scheduler.plugin.events import ClusterEvent, Happening
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    ReservePlugin,
    WakeIndex,
)
from koordinator.scheduler.plugin.status import SUCCESS, Code, Status, error, unschedulable
from koordinator.scheduler.plugins.elastic_quota import endpoint
from koordinator.scheduler.plugins.elastic_quota.accounts import QuotaAccounts
from koordinator.scheduler.plugins.elastic_quota.admission import AdmissionReason
from koordinator.scheduler.plugins.elastic_quota.checks import QuotaChecks
from koordinator.scheduler.plugins.elastic_quota.hints import QueueHints
from koordinator.scheduler.plugins.elastic_quota.places import Place
from koordinator.scheduler.plugins.elastic_quota.preemption import QuotaPreemption
from koordinator.scheduler.plugins.elastic_quota.refusals import Refusals
from koordinator.scheduler.plugins.elastic_quota.report import PodStanding
from koordinator.scheduler.plugins.elastic_quota.wake_index import QuotaIndex
from koordinator.scheduler.table.pod_info import PodInfo


class QuotaState(msgspec.Struct, frozen=True):
    """What PreFilter answers about pods of a class, as things stand."""

    status: Status


class ElasticQuota(
    PreFilterPlugin[QuotaState],
    PostFilterPlugin[QuotaState],
    ReservePlugin[QuotaState],
    ControllerProvider[QuotaState],
    ApiProvider[QuotaState],
    JobRoomPlugin[QuotaState],
):
    name = "ElasticQuota"
    args = ElasticQuotaArgs
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.ELASTIC_QUOTA,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: ElasticQuotaArgs, handle: Handle) -> None:
        self.accounts = QuotaAccounts.of(args, handle)
        args = self.accounts.args_of(args)
        super().__init__(args, handle)
        book, self._hooks = self.accounts.book, self.accounts.hooks
        self.book = book
        self._has_hooks = bool(self._hooks)
        self.checks = QuotaChecks(args, book, self.accounts.timed)
        self._refusals = Refusals(self.checks, self._wake)
        self.accounts.news.on_change.append(self._refusals.look_again)
        self._preemption = QuotaPreemption(args, handle, book, self.checks.limit_of)
        self._hints = QueueHints(args, book, handle.clock) if args.enable_queue_hint else None

    def _wake(self, names: frozenset[str]) -> None:
        """Pods that these quotas refused may fit now."""
        self.handle.happened(Happening(ClusterEvent.ELASTIC_QUOTA, new=names))

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        return ()  # no node is another one for a pod of another quota: all that counts is in `live_key`

    def sleep_key(self, pod: PodInfo) -> Hashable:
        own = pod.pod.metadata
        return (
            own.labels.get(labels.QUOTA_NAME, ""),
            own.namespace,
            quota_labels.is_pod_non_preemptible(own.labels),
        )

    def tells_apart(self, old: PodInfo, new: PodInfo) -> bool:
        return self.sleep_key(old) != self.sleep_key(new) or old.request_key != new.request_key

    def live_key(self, pod: PodInfo) -> Hashable:
        return self._answer(pod)

    def prepare(self, pod: PodInfo) -> QuotaState:
        return QuotaState(self._answer(pod))

    def pre_filter(self, state: QuotaState) -> PreFilterResult:
        return PreFilterResult(state.status)

    def wakes(self, happening: Happening, pod: PodInfo) -> bool:
        if isinstance(happening.new, frozenset):
            return self.book.quota_of(pod.pod).name in happening.new
        if self._hints is not None and not self._hints.may_help(happening, pod):
            return False
        return not self._answer(pod).is_rejected

    def wake_index(self) -> WakeIndex:
        return QuotaIndex(self.book, all_of_tree=self.checks.asks_ancestors)

    def _answer(self, pod: PodInfo) -> Status:
        checks = self.checks
        place = checks.place_of(pod.pod)
        if isinstance(place, Status):
            return place
        try:
            if checks.has_room(pod, place):
                return self._objection(pod, place) if self._has_hooks else SUCCESS
            decision = checks.decide(pod.pod, place)
        except (QuantityError, ProtocolError) as problem:
            return error(str(problem))
        if decision.is_allowed:
            return SUCCESS
        if decision.reason is AdmissionReason.ANCESTOR_MISSING:
            return error(decision.message)
        if not self.handle.table.is_trial:  # else what is used is only supposed
            self._refusals.add(place)
        return unschedulable(decision.message)

    def _objection(self, pod: PodInfo, place: Place) -> Status:
        text = self._hooks.objection(place.ref.name, pod.pod)
        return unschedulable(text) if text else SUCCESS

    def room_for(self, pods: Iterable[PodInfo]) -> Status:
        status, places = self.checks.room_for(pods)
        for place in places:
            self._refusals.add(place)
        return SUCCESS if status.code is Code.SKIP else status

    def rivals(self, pod: PodInfo) -> Iterable[str]:
        ref = self.book.quota_of(pod.pod)
        tree = self.book.tree_of(ref)
        quota = tree.get(ref.name) if tree is not None else None
        for key, counted in quota.pods.items() if quota is not None else ():
            known = self.book.pod(key) if counted.is_assigned else None
            if known is not None:
                yield known.metadata.uid or key

    def standing(self, pod: PodInfo, count: int = 1) -> PodStanding | None:
        """What so many pods like this one meet at their quota, for people; None where no quota has a say."""
        return self.checks.standing(pod.pod, count)

    # Preemption, loops, questions

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        return self._preemption.post_filter(pod, diagnosis)

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        return self._preemption.outlook(pod, diagnosis)

    def controllers(self) -> Sequence[BackgroundController]:
        return self.accounts.controllers.loops()

    def endpoints(self) -> Sequence[Endpoint]:
        def one(request: ApiRequest) -> ApiAnswer:
            return endpoint.one(self.book, request)

        def many(request: ApiRequest) -> ApiAnswer:
            return endpoint.many(self.book, request)

        return (Endpoint("quotas/{name}", one), Endpoint("quotas", many))
