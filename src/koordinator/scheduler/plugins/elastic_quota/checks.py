"""Ask quotas about pods now: about one, and about many that only make sense together.

Where pods belong is remembered: the quota of a label or a namespace is looked for once, and again when a quota came,
went or changed. A pod that is counted as used already takes nothing more. Source: behaviour/elastic-quota 13.
"""

from collections.abc import Iterable

import msgspec

from koordinator.api import labels, quota_labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_list import mask
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status, error, unschedulable
from koordinator.scheduler.plugins.elastic_quota import admission
from koordinator.scheduler.plugins.elastic_quota.admission import (
    AdmissionDecision,
    AdmissionReason,
    PodStanding,
)
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import (
    OUTSIDE_THE_SHARES,
    ROOT,
    Nanos,
    Quota,
    accumulate_in_place,
    amounts_of,
    nanos_of,
)
from koordinator.scheduler.plugins.elastic_quota.quota_changes import Latencies
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from koordinator.scheduler.table.pod_info import PodInfo

REMEMBERED_MAX = 20_000
"""Labels and namespaces; pods may come with any number of them."""


class PodQuota(msgspec.Struct, frozen=True, eq=False):
    """A quota that pods belong to, with the ancestors that have a say."""

    ref: QuotaRef
    tree: GroupQuotaTree
    quota: Quota
    has_runtime: bool
    """Whether its runtime limits it, and not its max."""
    ancestors: tuple[Quota | str, ...] = ()
    """From the parent up, without the root; a name for one that is not known."""

    @property
    def limit(self) -> Nanos:
        """Return what the quota may use, as far as it is up to date."""
        return self.quota.runtime if self.has_runtime else self.quota.max

    @property
    def known(self) -> list[Quota]:
        """Return the quota and those of its ancestors that are known."""
        return [self.quota, *(each for each in self.ancestors if isinstance(each, Quota))]

    @property
    def path(self) -> tuple[str, ...]:
        """From the top down to the quota."""
        above = (each if isinstance(each, str) else each.spec.name for each in reversed(self.ancestors))
        return (*above, self.quota.spec.name)


def place_in(
    tree: GroupQuotaTree, ref: QuotaRef, *, has_runtime: bool, asks_ancestors: bool
) -> PodQuota | Status:
    """Return the quota of that name with the ancestors that have a say; an error where the tree does not know it."""
    quota = tree.get(ref.name)
    if quota is None:
        return error("Could not find the specified ElasticQuota")
    above = tree.path(ref.name)[1:] if asks_ancestors else ()
    return PodQuota(
        ref,
        tree,
        quota,
        has_runtime=has_runtime and ref.name not in OUTSIDE_THE_SHARES,
        ancestors=tuple(tree.get(name) or name for name in above if name != ROOT),
    )


class PodQuotaCache:
    """Place by pod. `has_runtime`: runtimes limit quotas; `asks_ancestors`: ancestors have a say."""

    def __init__(self, book: QuotaBook, *, has_runtime: bool, asks_ancestors: bool) -> None:
        self._book = book
        self._has_runtime = has_runtime
        self._asks_ancestors = asks_ancestors
        self._revision = book.revision
        self._places: dict[str, PodQuota | Status] = {}
        """By label, or for pods without one by `/namespace`."""

    def of(self, pod: Pod) -> PodQuota | Status:
        """Return where a pod belongs; Skip for one without a quota, an error where its quota is out of reach."""
        if self._revision != self._book.revision:
            self._revision = self._book.revision
            self._places.clear()
        meta = pod.metadata
        key = meta.labels.get(labels.QUOTA_NAME) or "/" + meta.namespace
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= REMEMBERED_MAX:
                self._places.clear()
            ref = self._book.quota_of(pod)
            place = self._places[key] = self.at(ref) if ref.name else SKIP
        return place

    def at(self, ref: QuotaRef) -> PodQuota | Status:
        """Return the quota of that name."""
        tree = self._book.tree_of(ref)
        if tree is None:
            return error(
                f"Could not find the specified ElasticQuotaManager for quota: {ref.name}, tree: {ref.tree_id}"
            )
        return place_in(tree, ref, has_runtime=self._has_runtime, asks_ancestors=self._asks_ancestors)


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
        return quota.limit(has_runtime=self._has_runtime)

    def place_of(self, pod: Pod) -> PodQuota | Status:
        """Return where a pod belongs, brought up to date; Skip for one without a quota, an error where its quota is out
        of reach."""
        return self._up_to_date(self._places.of(pod))

    def place(self, ref: QuotaRef) -> PodQuota | Status:
        """Return the quota of that name, brought up to date."""
        return self._up_to_date(self._places.at(ref))

    def _up_to_date(self, place: PodQuota | Status) -> PodQuota | Status:
        if (
            isinstance(place, PodQuota)
            and place.has_runtime
            and place.quota.fresh_version != place.tree.version
        ):
            self._refresh(place.tree, place.ref.name)
        return place

    # One pod

    def request_of(self, pod: Pod, quota: Quota) -> Nanos:
        """Return all that a pod asks for; from its quota where it is counted. Raises: QuantityError, ProtocolError."""
        counted = quota.pods.get(pod.key)
        return counted.request if counted is not None else nanos_of(self._book.request_of(pod))

    def has_room(self, pod: PodInfo, place: PodQuota) -> bool:
        """Return whether `decide` would allow the pod. Raises: QuantityError, ProtocolError."""
        quota = place.quota
        counted = quota.pods.get(pod.key)
        request = counted.request if counted is not None else self.request_of(pod.pod, quota)
        is_preemptible = not quota_labels.is_pod_non_preemptible(pod.pod.metadata.labels)
        if not admission.has_room(request, quota, place.limit, is_preemptible):
            return False
        return not place.ancestors or all(
            isinstance(each, Quota)
            and admission.fits(request, quota.max, each.below.used, self.limit_of(each))
            for each in place.ancestors
        )

    def decide(self, pod: Pod, place: PodQuota, count: int = 1) -> AdmissionDecision:
        """Return whether there is room for so many pods like this one, with the figures. Raises: QuantityError,
        ProtocolError."""
        request, written = self.request_of(pod, place.quota), self._book.request_of(pod)
        return admission.admit(
            amounts_of({name: count * number for name, number in request.items()}, written),
            place.quota,
            has_runtime=self._has_runtime,
            is_preemptible=not quota_labels.is_pod_non_preemptible(pod.metadata.labels),
            ancestors=place.ancestors,
            pod_count=count,
        )

    def standing(self, pod: Pod, count: int = 1) -> PodStanding | None:
        """Return what so many pods like this one meet at their quota, for people; None where no quota has a say."""
        place = self.place_of(pod)
        if isinstance(place, Status):
            return None
        try:
            decision = self.decide(pod, place, count)
        except (QuantityError, ProtocolError):
            return None
        report = admission.of_path(place.tree, place.ref.tree_id, place.ref.name)
        return admission.standing(report, place.ref.name, decision)

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
                self._up_to_date(place)
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
        quota, has_runtime = group.place.quota, self._has_runtime
        decision = admission.admit(
            amounts_of(group.request), quota, has_runtime=has_runtime, pod_count=group.count
        )
        if decision.is_allowed and group.fixed:
            decision = admission.admit(
                amounts_of(group.fixed),
                quota,
                has_runtime=has_runtime,
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
                accumulate_in_place(together, mask(each.request, each.place.quota.max))
            decision = admission.admit_above(
                amounts_of(together),
                ancestor,
                has_runtime=self._has_runtime,
                path=place.path,
                pod_count=sum(each.count for each in below),
            )
            if not decision.is_allowed:
                return decision
        return decision


class _Group:
    """Pods of one quota: how many, and what they ask for together beyond what they hold."""

    def __init__(self, place: PodQuota) -> None:
        self.place = place
        self.count = 0
        self.request: Nanos = {}
        self.fixed_count = 0
        self.fixed: Nanos = {}
        """Amount of those that cannot be preempted."""

    def add(self, pod: PodInfo, request: Nanos) -> None:
        self.count += 1
        accumulate_in_place(self.request, request)
        if quota_labels.is_pod_non_preemptible(pod.pod.metadata.labels):
            self.fixed_count += 1
            accumulate_in_place(self.fixed, request)
