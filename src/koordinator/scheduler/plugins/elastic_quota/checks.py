"""Ask quotas about pods now: about one, and about many that only make sense together.

A pod that is counted as used already takes nothing more. Source: behaviour/elastic-quota 13.
"""

from collections.abc import Iterable

from koordinator.api import quota_labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.config.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status, error, unschedulable
from koordinator.scheduler.plugins.elastic_quota import admission, lending
from koordinator.scheduler.plugins.elastic_quota.admission import (
    AdmissionDecision,
    AdmissionReason,
    QuotaStanding,
)
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.lending import PodStanding
from koordinator.scheduler.plugins.elastic_quota.pod_quotas import PodQuota, PodQuotaCache, limit_of
from koordinator.scheduler.plugins.elastic_quota.quota import (
    OUTSIDE_THE_SHARES,
    Nanos,
    Quota,
    amounts_of,
    masked,
    nanos_of,
)
from koordinator.scheduler.plugins.elastic_quota.quota_changes import Latencies
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from koordinator.scheduler.table.pod_info import PodInfo


class QuotaChecks:
    """Questions to the books; asking changes nothing but how fresh runtimes are."""

    def __init__(self, args: ElasticQuotaArgs, book: QuotaBook, timed: Latencies) -> None:
        self._book = book
        self._has_runtime = args.enable_runtime_quota
        self.asks_ancestors = args.enable_check_parent_quota
        self._places = PodQuotaCache(book, has_runtime=self._has_runtime, asks_ancestors=self.asks_ancestors)
        self._refresh = timed.of("RefreshRuntime", GroupQuotaTree.bring_up_to_date)

    def limit_of(self, quota: Quota) -> Nanos:
        """Return what a quota may use now, as far as it is up to date."""
        return limit_of(quota, has_runtime=self._has_runtime)

    def place_of(self, pod: Pod) -> PodQuota | Status:
        """Return where a pod belongs, brought up to date; Skip for one without a quota, an error where its quota is
        out of reach.
        """
        place = self._places.of(pod)
        if isinstance(place, PodQuota) and place.has_runtime:
            self._bring_up_to_date(place)
        return place

    def place(self, ref: QuotaRef) -> PodQuota | Status:
        """Return the quota of that name, brought up to date."""
        place = self._places.at(ref)
        if isinstance(place, PodQuota) and place.has_runtime:
            self._bring_up_to_date(place)
        return place

    def _bring_up_to_date(self, place: PodQuota) -> None:
        if place.quota.fresh_version != place.tree.version:
            self._refresh(place.tree, place.ref.name)

    # One pod

    def request_of(self, pod: Pod, quota: Quota) -> Nanos:
        """Return all that a pod asks for; from its quota where it is counted. Raises: QuantityError, ProtocolError."""
        counted = quota.pods.get(pod.key)
        return counted.request if counted is not None else nanos_of(self._book.ask_of(pod).request)

    def has_room(self, pod: PodInfo, place: PodQuota) -> bool:
        """Return whether `decide` would allow the pod. Raises: QuantityError, ProtocolError."""
        quota = place.quota
        counted = quota.pods.get(pod.key)
        request = counted.request if counted is not None else self.request_of(pod.pod, quota)
        limit = quota.runtime if place.has_runtime else quota.max
        is_preemptible = not quota_labels.is_pod_non_preemptible(pod.pod.metadata.labels)
        if not admission.has_room(request, quota, limit, is_preemptible):
            return False
        return not place.ancestors or all(
            isinstance(each, Quota)
            and admission.fits(request, quota.max, each.below.used, self.limit_of(each))
            for each in place.ancestors
        )

    def decide(self, pod: Pod, place: PodQuota, count: int = 1) -> AdmissionDecision:
        """Return whether there is room for so many pods like this one, with the figures. Raises: QuantityError,
        ProtocolError.
        """
        request, written = self.request_of(pod, place.quota), self._book.ask_of(pod).request
        return decide_at(
            place,
            amounts_of({name: count * number for name, number in request.items()}, written),
            has_runtime=self._has_runtime,
            is_preemptible=not quota_labels.is_pod_non_preemptible(pod.metadata.labels),
            pod_count=count,
        )

    def _standing_of(self, quota: Quota) -> QuotaStanding:
        return _standing(quota, has_runtime=self._has_runtime)

    def standing(self, pod: Pod, count: int = 1) -> PodStanding | None:
        """Return what so many pods like this one meet at their quota, for people; None where no quota has a say."""
        place = self.place_of(pod)
        if isinstance(place, Status):
            return None
        try:
            decision = self.decide(pod, place, count)
        except (QuantityError, ProtocolError):
            return None
        report = lending.of_path(place.tree, place.ref.tree_id, place.ref.name)
        return lending.standing(report, place.ref.name, decision)

    # Many pods

    def room_for(self, pods: Iterable[PodInfo]) -> tuple[Status, list[PodQuota]]:
        """Return whether all of these pods together fit into their quotas, and the quotas that have no room.

        Pods that are counted as used already hold what they need. Skip where no quota has a say.
        """
        groups: dict[str, _Group] = {}
        for pod in pods:
            place = self._places.of(pod.pod)
            if isinstance(place, Status):
                if place.is_skip:
                    continue
                return place, []
            group = groups.get(place.ref.name)
            if group is None:
                group = groups[place.ref.name] = _Group(place)
                if place.has_runtime:
                    self._bring_up_to_date(place)
            counted = place.quota.pods.get(pod.key)
            if counted is not None and counted.is_assigned:
                continue
            try:
                request = counted.request if counted is not None else self.request_of(pod.pod, place.quota)
            except (QuantityError, ProtocolError) as problem:
                return error(f"{pod.key}: {problem}"), []
            group.add(pod, request)
        if not groups:
            return SKIP, []
        for group in groups.values():
            if self._have_room(group):
                continue
            decision = self._decide_together(group, groups.values())
            if not decision.is_allowed:
                is_broken = decision.reason is AdmissionReason.ANCESTOR_MISSING
                return (error if is_broken else unschedulable)(decision.message), [group.place]
        return SUCCESS, []

    @staticmethod
    def _have_room(group: "_Group") -> bool:
        """Return whether it is plain that `_decide_together` would allow the pods."""
        place, quota = group.place, group.place.quota
        return (
            not place.ancestors
            and admission.has_room(group.request, quota, place.limit)
            and (
                not group.fixed_count
                or admission.has_room(group.fixed, quota, place.limit, is_preemptible=False)
            )
        )

    def _decide_together(self, group: "_Group", groups: Iterable["_Group"]) -> AdmissionDecision:
        """Return whether the pods of one quota fit there, and further up with those of other quotas."""
        standing = self._standing_of(group.place.quota)
        decision = admission.admit(amounts_of(group.request), standing, pod_count=group.count)
        if decision.is_allowed and group.fixed:
            decision = admission.admit(
                amounts_of(group.fixed),
                standing,
                is_preemptible=False,
                pod_count=group.fixed_count,
            )
        if decision.is_allowed and group.place.ancestors:
            return self._decide_above(group, groups)
        return decision

    def _decide_above(self, group: "_Group", groups: Iterable["_Group"]) -> AdmissionDecision:
        place = group.place
        decision = AdmissionDecision(reason=AdmissionReason.OK, quota=place.ref.name)
        for ancestor in place.ancestors:
            below = [each for each in groups if any(one is ancestor for one in each.place.ancestors)]
            together: Nanos = {}
            for each in below:
                for name, number in masked(each.request, each.place.quota.max).items():
                    together[name] = together.get(name, 0) + number
            decision = admission.admit_above(
                amounts_of(together),
                ancestor if isinstance(ancestor, str) else self._standing_of(ancestor),
                path=place.path,
                pod_count=sum(each.count for each in below),
            )
            if not decision.is_allowed:
                return decision
        return decision


def decide_at(
    place: PodQuota, request: Amounts, *, has_runtime: bool, is_preemptible: bool = True, pod_count: int = 1
) -> AdmissionDecision:
    """Return whether there is room for a request where it belongs, brought up to date, and above. `has_runtime`:
    runtimes limit quotas.
    """
    return admission.admit(
        request,
        _standing(place.quota, has_runtime=has_runtime, like=request),
        is_preemptible=is_preemptible,
        ancestors=[
            _standing(each, has_runtime=has_runtime, like=request) if isinstance(each, Quota) else each
            for each in place.ancestors
        ],
        pod_count=pod_count,
    )


def _standing(quota: Quota, *, has_runtime: bool, like: Amounts | None = None) -> QuotaStanding:
    is_limited_by_it = has_runtime and quota.spec.name not in OUTSIDE_THE_SHARES
    return QuotaStanding.of(quota, has_runtime=is_limited_by_it, like=like)


class _Group:
    """Pods of one quota: how many, and what they ask for together beyond what they hold."""

    def __init__(self, place: PodQuota) -> None:
        self.place = place
        self.count = 0
        self.request: Nanos = {}
        self.fixed_count = 0
        self.fixed: Nanos = {}
        """Of those that cannot be preempted."""

    def add(self, pod: PodInfo, request: Nanos) -> None:
        self.count += 1
        self._sum_up(self.request, request)
        if quota_labels.is_pod_non_preemptible(pod.pod.metadata.labels):
            self.fixed_count += 1
            self._sum_up(self.fixed, request)

    @staticmethod
    def _sum_up(total: Nanos, request: Nanos) -> None:
        for name, number in request.items():
            total[name] = total.get(name, 0) + number
