"""What quotas say about pods now: about one, and about many that only make sense together.

A pod that is counted as used already takes nothing more. Source: spec 06, section 13.
"""

from collections.abc import Iterable

import msgspec

from koordinator.api import quota_labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugins.elastic_quota import admission, report
from koordinator.scheduler.plugins.elastic_quota.admission import (
    AdmissionDecision,
    AdmissionReason,
    QuotaStanding,
)
from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos, amounts_of, masked, nanos_of
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.latencies import Latencies
from koordinator.scheduler.plugins.elastic_quota.pods import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import OUTSIDE_THE_SHARES, ROOT, Quota
from koordinator.scheduler.plugins.elastic_quota.report import PodStanding
from koordinator.scheduler.plugins.elastic_quota.tree import QuotaTree
from koordinator.scheduler.status import SKIP, SUCCESS, Status, error, unschedulable


class Place(msgspec.Struct, frozen=True):
    """A quota that pods belong to, up to date, with the ancestors that have a say."""

    ref: QuotaRef
    tree: QuotaTree
    quota: Quota
    ancestors: tuple[Quota | str, ...] = ()
    """From the parent up, without the root; a name for one that is not known."""

    @property
    def known(self) -> list[Quota]:
        """The quota and those of its ancestors that are known."""
        return [self.quota, *(each for each in self.ancestors if isinstance(each, Quota))]

    @property
    def path(self) -> tuple[str, ...]:
        """From the top down to the quota."""
        above = (each if isinstance(each, str) else each.spec.name for each in reversed(self.ancestors))
        return (*above, self.quota.spec.name)


class QuotaChecks:
    """Questions to the books; asking changes nothing but how fresh runtimes are."""

    def __init__(self, args: ElasticQuotaArgs, book: QuotaBook, timed: Latencies) -> None:
        self._book = book
        self._has_runtime = args.enable_runtime_quota
        self.asks_ancestors = args.enable_check_parent_quota
        self._refresh = timed.of("RefreshRuntime", QuotaTree.bring_up_to_date)

    def limit_of(self, quota: Quota) -> Nanos:
        """What a quota may use now, as far as it is up to date."""
        if not self._has_runtime or quota.spec.name in OUTSIDE_THE_SHARES:
            return quota.max
        return quota.runtime

    def place_of(self, pod: Pod) -> Place | Status:
        """Where a pod belongs; Skip for one without a quota, an error where its quota is out of reach."""
        ref = self._book.quota_of(pod)
        return self.place(ref) if ref.name else SKIP

    def place(self, ref: QuotaRef) -> Place | Status:
        """The quota of that name, brought up to date."""
        tree = self._book.tree_of(ref)
        if tree is None:
            return error(
                f"Could not find the specified ElasticQuotaManager for quota: {ref.name}, tree: {ref.tree_id}"
            )
        quota = self._refresh(tree, ref.name) if self._has_runtime else tree.get(ref.name)
        if quota is None:
            return error("Could not find the specified ElasticQuota")
        if not self.asks_ancestors:
            return Place(ref, tree, quota)
        above = tree.path(ref.name)[1:]
        return Place(ref, tree, quota, tuple(tree.get(name) or name for name in above if name != ROOT))

    # One pod

    def request_of(self, pod: Pod, quota: Quota) -> Nanos:
        """All that a pod asks for; from its quota where it is counted. Raises: QuantityError, ProtocolError."""
        counted = quota.pods.get(pod.key)
        return counted.request if counted is not None else nanos_of(self._book.ask_of(pod).request)

    def has_room(self, pod: Pod, place: Place) -> bool:
        """Whether `decide` would allow the pod. Raises: QuantityError, ProtocolError."""
        known = [(each, self.limit_of(each)) for each in place.ancestors if isinstance(each, Quota)]
        return len(known) == len(place.ancestors) and admission.has_room(
            self.request_of(pod, place.quota),
            place.quota,
            self.limit_of(place.quota),
            is_preemptible=not quota_labels.is_pod_non_preemptible(pod.metadata.labels),
            ancestors=known,
        )

    def decide(self, pod: Pod, place: Place) -> AdmissionDecision:
        """Whether there is room for the pod, with the figures. Raises: QuantityError, ProtocolError."""
        return self._decide(
            amounts_of(self.request_of(pod, place.quota)),
            place,
            is_preemptible=not quota_labels.is_pod_non_preemptible(pod.metadata.labels),
        )

    def _decide(self, request: Amounts, place: Place, *, is_preemptible: bool) -> AdmissionDecision:
        return admission.admit(
            request,
            self._standing_of(place.quota),
            is_preemptible=is_preemptible,
            ancestors=[
                self._standing_of(each) if isinstance(each, Quota) else each for each in place.ancestors
            ],
            only_requested=True,
        )

    def _standing_of(self, quota: Quota) -> QuotaStanding:
        has_runtime = self._has_runtime and quota.spec.name not in OUTSIDE_THE_SHARES
        return QuotaStanding.of(quota, has_runtime=has_runtime)

    def standing(self, pod: Pod) -> PodStanding | None:
        """What a pod meets at its quota, for people; None where no quota has a say."""
        place = self.place_of(pod)
        if isinstance(place, Status):
            return None
        try:
            decision = self.decide(pod, place)
        except (QuantityError, ProtocolError):
            return None
        ledger = report.of_path(place.tree, place.ref.tree_id, place.ref.name)
        return report.standing(ledger, place.ref.name, decision)

    # Many pods

    def room_for(self, pods: Iterable[Pod]) -> tuple[Status, list[Place]]:
        """Whether all of these pods together fit into their quotas, and the quotas that have no room.

        Pods that are counted as used already hold what they need. Skip where no quota has a say.
        """
        groups: dict[QuotaRef, _Group] = {}
        for pod in pods:
            ref = self._book.quota_of(pod)
            if not ref.name:
                continue
            group = groups.get(ref)
            if group is None:
                place = self.place(ref)
                if isinstance(place, Status):
                    return place, []
                group = groups[ref] = _Group(place)
            try:
                group.add(pod, self.request_of(pod, group.place.quota))
            except (QuantityError, ProtocolError) as problem:
                return error(f"{pod.key}: {problem}"), []
        if not groups:
            return SKIP, []
        for group in groups.values():
            decision = self._decide_together(group, groups.values())
            if not decision.is_allowed:
                is_broken = decision.reason is AdmissionReason.ANCESTOR_MISSING
                return (error if is_broken else unschedulable)(decision.message), [group.place]
        return SUCCESS, []

    def _decide_together(self, group: "_Group", groups: Iterable["_Group"]) -> AdmissionDecision:
        """Whether the pods of one quota fit there, and further up with those of other quotas."""
        standing = self._standing_of(group.place.quota)
        decision = admission.admit(
            amounts_of(group.request), standing, only_requested=True, pod_count=group.count
        )
        if decision.is_allowed and group.fixed:
            decision = admission.admit(
                amounts_of(group.fixed),
                standing,
                is_preemptible=False,
                only_requested=True,
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


class _Group:
    """Pods of one quota: how many, and what they ask for together beyond what they hold."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.count = 0
        self.request: Nanos = {}
        self.fixed_count = 0
        self.fixed: Nanos = {}
        """Of those that cannot be preempted."""

    def add(self, pod: Pod, request: Nanos) -> None:
        counted = self.place.quota.pods.get(pod.key)
        if counted is not None and counted.is_assigned:
            return
        self.count += 1
        self._sum_up(self.request, request)
        if quota_labels.is_pod_non_preemptible(pod.metadata.labels):
            self.fixed_count += 1
            self._sum_up(self.fixed, request)

    @staticmethod
    def _sum_up(total: Nanos, request: Nanos) -> None:
        for name, number in request.items():
            total[name] = total.get(name, 0) + number
