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
    Watch,
)
from koordinator.scheduler.nodes import RowKeeper
from koordinator.scheduler.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugins.elastic_quota import admission, endpoint
from koordinator.scheduler.plugins.elastic_quota.admission import AdmissionReason, QuotaStanding
from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos, nanos_of
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.controllers import QuotaControllers
from koordinator.scheduler.plugins.elastic_quota.pods import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.preemption import QuotaPreemption
from koordinator.scheduler.plugins.elastic_quota.quota import OUTSIDE_THE_SHARES, ROOT, Quota
from koordinator.scheduler.plugins.elastic_quota.tree import QuotaTree
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import SKIP, SUCCESS, Status, error, unschedulable


class QuotaState(msgspec.Struct, frozen=True):
    """What PreFilter answers about pods of a class, as things stand."""

    status: Status


class ElasticQuota(
    PreFilterPlugin[QuotaState],
    PostFilterPlugin[QuotaState],
    ReservePlugin[QuotaState],
    ControllerProvider[QuotaState],
    ApiProvider[QuotaState],
    RowKeeper,
):
    name = "ElasticQuota"
    args = ElasticQuotaArgs
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.ELASTIC_QUOTA,
    )

    def __init__(self, args: ElasticQuotaArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.book = QuotaBook(args, handle.gates, handle.clock)
        self._has_runtime = args.enable_runtime_quota
        self._checks_ancestors = args.enable_check_parent_quota
        self._preemption = QuotaPreemption(args, handle, self.book, self.limit_of)
        self._controllers = QuotaControllers(args, handle, self.book, self._changed)
        book = self.book
        handle.watch(
            Watch(ElasticQuotaObject, self._quota_set, lambda _, new: self._quota_set(new), self._quota_gone)
        )
        handle.watch(Watch(Pod, book.set_pod, lambda _, new: book.set_pod(new), book.remove_pod))
        handle.watch(Watch(Node, self._node_set, lambda _, new: self._node_set(new), self._node_gone))

    # What happens

    def _quota_set(self, quota: ElasticQuotaObject) -> None:
        if self.book.set_quota(quota):
            self._changed()

    def _quota_gone(self, quota: ElasticQuotaObject) -> None:
        self.book.remove_quota(quota)
        self._changed()

    def _node_set(self, node: Node) -> None:
        self.book.set_node(node)

    def _node_gone(self, node: Node) -> None:
        self.book.remove_node(node)

    def _changed(self, names: frozenset[str] | None = None) -> None:
        """Pods that these quotas (None: any) refused may fit now."""
        self.handle.happened(Happening(ClusterEvent.ELASTIC_QUOTA, new=names))

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self.book.reserve(pod.key)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self.book.unreserve(pod.key)

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        own = pod.pod.metadata
        return (
            own.labels.get(labels.QUOTA_NAME, ""),
            own.namespace,
            quota_labels.is_pod_non_preemptible(own.labels),
        )

    def live_key(self, pod: PodInfo) -> Hashable:
        return self._answer(pod)

    def prepare(self, pod: PodInfo) -> QuotaState:
        return QuotaState(self._answer(pod))

    def pre_filter(self, state: QuotaState) -> PreFilterResult:
        return PreFilterResult(state.status)

    def wakes(self, happening: Happening, pod: PodInfo) -> bool:
        if happening.event is ClusterEvent.ELASTIC_QUOTA and happening.new is not None:
            return self.book.quota_of(pod.pod).name in happening.new
        return not self._answer(pod).is_rejected

    def limit_of(self, tree: QuotaTree, quota: Quota) -> Nanos:
        """What a quota may use now, after `tree.bring_up_to_date`."""
        if not self._has_runtime or quota.spec.name in OUTSIDE_THE_SHARES:
            return quota.max
        return quota.runtime

    def _answer(self, pod: PodInfo) -> Status:
        ref = self.book.quota_of(pod.pod)
        if not ref.name:
            return SKIP
        tree = self.book.tree_of(ref)
        if tree is None:
            text = (
                f"Could not find the specified ElasticQuotaManager for quota: {ref.name}, tree: {ref.tree_id}"
            )
            return error(text)
        quota = tree.bring_up_to_date(ref.name) if self._has_runtime else tree.get(ref.name)
        if quota is None:
            return error("Could not find the specified ElasticQuota")
        try:
            request = self._request_of(pod, ref)
        except (QuantityError, ProtocolError) as problem:
            return error(str(problem))
        ancestors = list(self._ancestors(tree, quota)) if self._checks_ancestors else []
        known = [(each, self.limit_of(tree, each)) for each in ancestors if isinstance(each, Quota)]
        is_preemptible = not quota_labels.is_pod_non_preemptible(pod.pod.metadata.labels)
        if len(known) == len(ancestors) and admission.has_room(
            request, quota, self.limit_of(tree, quota), is_preemptible=is_preemptible, ancestors=known
        ):
            return SUCCESS
        self._controllers.refused(ref, quota, self.limit_of(tree, quota))
        return self._refusal(pod, tree, quota, ancestors, is_preemptible=is_preemptible)

    def _request_of(self, pod: PodInfo, ref: QuotaRef) -> Nanos:
        """All that the pod asks for; from its quota where it is counted."""
        tree = self.book.tree_of(ref)
        quota = tree.get(ref.name) if tree is not None else None
        counted = quota.pods.get(pod.key) if quota is not None else None
        return counted.request if counted is not None else nanos_of(self.book.ask_of(pod.pod).request)

    def _ancestors(self, tree: QuotaTree, quota: Quota) -> Iterable[Quota | str]:
        """From the parent up, without the root; a name for one that is not known."""
        for name in tree.path(quota.spec.name)[1:]:
            if name != ROOT:
                yield tree.get(name) or name

    def _refusal(
        self,
        pod: PodInfo,
        tree: QuotaTree,
        quota: Quota,
        ancestors: Sequence[Quota | str],
        *,
        is_preemptible: bool,
    ) -> Status:
        has_runtime = self._has_runtime
        decision = admission.admit(
            self.book.ask_of(pod.pod).request,
            QuotaStanding.of(quota, has_runtime=has_runtime and quota.spec.name not in OUTSIDE_THE_SHARES),
            is_preemptible=is_preemptible,
            ancestors=[
                QuotaStanding.of(each, has_runtime=has_runtime) if isinstance(each, Quota) else each
                for each in ancestors
            ],
            only_requested=True,
        )
        if decision.is_allowed:
            return SUCCESS
        if decision.reason is AdmissionReason.ANCESTOR_MISSING:
            return error(decision.message)
        return unschedulable(decision.message)

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
