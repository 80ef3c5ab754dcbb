"""The extension points of ElasticQuota: a pod may be placed while its quota has room for it. Source: spec 06.

Requests are counted from the pods that the API knows; what is in use from the pods that count on nodes, assumed ones
included. So a trial of the node table that takes pods away gives their quota its room back, too, and whoever asks
whether a pod could be placed without them gets the true answer.
"""

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from koordinator.api import labels, quota_labels
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.sigs import ElasticQuota as ElasticQuotaObject
from koordinator.scheduler.capabilities import (
    ApiAnswer,
    ApiProvider,
    ApiRequest,
    BackgroundController,
    ControllerProvider,
    Endpoint,
    JobRoomPlugin,
)
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    ReservePlugin,
    WakeIndex,
    Watch,
)
from koordinator.scheduler.nodes import RowKeeper
from koordinator.scheduler.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugins.elastic_quota import endpoint
from koordinator.scheduler.plugins.elastic_quota.admission import AdmissionReason
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.checks import QuotaChecks
from koordinator.scheduler.plugins.elastic_quota.controllers import QuotaControllers
from koordinator.scheduler.plugins.elastic_quota.hints import QueueHints, QuotaUpdate
from koordinator.scheduler.plugins.elastic_quota.hooks import Hooks
from koordinator.scheduler.plugins.elastic_quota.latencies import Latencies
from koordinator.scheduler.plugins.elastic_quota.places import Place
from koordinator.scheduler.plugins.elastic_quota.preemption import QuotaPreemption
from koordinator.scheduler.plugins.elastic_quota.report import PodStanding
from koordinator.scheduler.plugins.elastic_quota.wake_index import QuotaIndex
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import SUCCESS, Code, Status, error, unschedulable


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
    RowKeeper,
):
    name = "ElasticQuota"
    args = ElasticQuotaArgs
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.ELASTIC_QUOTA,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: ElasticQuotaArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        hooks = self._hooks = Hooks.of(args.hook_plugins, handle)
        self._has_hooks = bool(hooks)
        book = self.book = QuotaBook(args, handle.gates, handle.clock, hooks)
        timed = Latencies(handle)
        self.checks = QuotaChecks(args, book, timed)
        self._preemption = QuotaPreemption(args, handle, book, self.checks.limit_of)
        self._controllers = QuotaControllers(args, handle, book, self.checks, hooks, self._wake)
        self._news = self._controllers.news
        self._hints = QueueHints(args, book, handle.clock) if args.enable_queue_hint else None
        self._set_quota = timed.of("UpdateQuota", book.set_quota)
        self._remove_quota = timed.of("DeleteQuota", book.remove_quota)
        self._reserve = timed.of("ReservePod", book.reserve)
        self._unreserve = timed.of("UnreservePod", book.unreserve)
        added = self._news.after(timed.of("OnPodAdd", book.set_pod))
        updated = self._news.after(timed.of("OnPodUpdate", book.set_pod))
        deleted = self._news.after(timed.of("OnPodDelete", book.remove_pod))
        set_node = self._news.after(book.set_node)
        handle.watch(
            Watch(ElasticQuotaObject, self._quota_set, lambda _, new: self._quota_set(new), self._quota_gone)
        )
        handle.watch(Watch(Pod, added, lambda _, new: updated(new), deleted))
        handle.watch(Watch(Node, set_node, lambda _, new: set_node(new), self._news.after(book.remove_node)))

    # What happens

    def _quota_set(self, quota: ElasticQuotaObject) -> None:
        name = quota.metadata.name
        before, former = self.book.spec_of(name), self.book.objects.get(name)
        if self._set_quota(quota):
            after = self.book.spec_of(name)
            update: QuotaUpdate | None = None
            if before is not None and after is not None and former is not None and self._hints is not None:
                tree_id = self.book.forest.tree_ids.get(name, "")
                update = QuotaUpdate(before, after, tree_id, self._hooks.see_change(former, quota))
            self.handle.happened(Happening(ClusterEvent.ELASTIC_QUOTA, new=update))
        self._news.happened()

    def _quota_gone(self, quota: ElasticQuotaObject) -> None:
        self._remove_quota(quota)
        self.handle.happened(Happening(ClusterEvent.ELASTIC_QUOTA))
        self._news.happened()

    def _wake(self, names: frozenset[str]) -> None:
        """Pods that these quotas refused may fit now."""
        self.handle.happened(Happening(ClusterEvent.ELASTIC_QUOTA, new=names))

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._reserve(pod.key)
        self._news.happened()

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._unreserve(pod.key)
        self._news.happened()

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
            self._controllers.refusals.add(place)
        return unschedulable(decision.message)

    def _objection(self, pod: PodInfo, place: Place) -> Status:
        text = self._hooks.objection(place.ref.name, pod.pod)
        return unschedulable(text) if text else SUCCESS

    def room_for(self, pods: Iterable[PodInfo]) -> Status:
        status, places = self.checks.room_for(pods)
        for place in places:
            self._controllers.refusals.add(place)
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
        return self._controllers.loops()

    def endpoints(self) -> Sequence[Endpoint]:
        def one(request: ApiRequest) -> ApiAnswer:
            return endpoint.one(self.book, request)

        def many(request: ApiRequest) -> ApiAnswer:
            return endpoint.many(self.book, request)

        return (Endpoint("quotas/{name}", one), Endpoint("quotas", many))
