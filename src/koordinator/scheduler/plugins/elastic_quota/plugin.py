"""The extension points of ElasticQuota: a pod may be placed while its quota has room for it.
Source: behaviour/elastic-quota."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from koordinator.api import labels, pod_labels, quota_labels, resource_list
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.capabilities import (
    ApiAnswer,
    ApiProvider,
    ApiRequest,
    BackgroundController,
    ControllerProvider,
    Endpoint,
    JobRoomPlugin,
)
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Mask,
    Outlook,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    QueueingHintIndex,
    ReservePlugin,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Code, Status, error, unschedulable
from koordinator.scheduler.plugins.elastic_quota.accounts import QuotaAccounts
from koordinator.scheduler.plugins.elastic_quota.admission import AdmissionReason, PodStanding
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.checks import PodQuota, QuotaChecks
from koordinator.scheduler.plugins.elastic_quota.evictions import QuotaPreemption
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.hints import QuotaQueueingHints
from koordinator.scheduler.plugins.elastic_quota.quota import Nanos, Quota, amounts_of
from koordinator.scheduler.table.columns import discard, grown
from koordinator.scheduler.table.pod_info import PodInfo


def describe_quota(book: QuotaBook, request: ApiRequest) -> ApiAnswer:
    """`GET quotas/{name}`."""
    name = request.path["name"]
    found = book.find(name)
    if found is None or name == labels.ROOT_QUOTA_NAME:
        return ApiAnswer(f"cannot find quota {name}", 404)
    tree, quota = found
    tree.bring_up_to_date(name)
    return ApiAnswer(described(quota, book.forest.tree_ids.get(name, ""), with_pods=_wants_pods(request)))


def describe_quotas(book: QuotaBook, request: ApiRequest) -> ApiAnswer:
    """`GET quotas?tree=`: all quotas by name, or those of one tree."""
    wanted, with_pods = request.query.get("tree", ""), _wants_pods(request)
    found: dict[str, Any] = {}
    for tree_id, tree, quota in book.quotas():
        if not wanted or wanted == tree_id:
            tree.bring_up_to_date(quota.spec.name)
            found[quota.spec.name] = described(quota, tree_id, with_pods=with_pods)
    return ApiAnswer(found)


def _wants_pods(request: ApiRequest) -> bool:
    return request.query.get("includePods", "").lower() in ("1", "t", "true")


def described(quota: Quota, tree_id: str, *, with_pods: bool) -> dict[str, Any]:
    """Return a quota as it stands, with the field names of upstream. Source: behaviour/elastic-quota 16."""
    own, below = quota.own, quota.below
    body: dict[str, Any] = {
        "name": quota.spec.name,
        "parentName": quota.spec.parent,
        "isParent": quota.spec.is_parent,
        "runtimeVersion": quota.runtime_version,
        "allowLentResource": quota.lends,
        "tree": tree_id,
    }
    amounts: dict[str, Nanos] = {
        "max": quota.max,
        "min": quota.min,
        "autoScaleMin": quota.auto_min,
        "used": below.used,
        "nonPreemptibleUsed": below.non_preemptible_used,
        "request": quota.request,
        "nonPreemptibleRequest": below.non_preemptible_request,
        "sharedWeight": quota.weight,
        "runtime": quota.runtime,
        "childRequest": below.request,
        "allocated": quota.allocated,
        "guaranteed": quota.guaranteed,
        "selfUsed": own.used,
        "selfNonPreemptibleUsed": own.non_preemptible_used,
        "selfRequest": own.request,
        "selfNonPreemptibleRequest": own.non_preemptible_request,
    }
    body.update((name, resource_list.to_wire(amounts_of(nanos))) for name, nanos in amounts.items())
    if with_pods:
        body["podCache"] = {
            key: {
                "isAssigned": counted.is_assigned,
                "resource": resource_list.to_wire(amounts_of(counted.amounts)),
            }
            for key, counted in sorted(quota.pods.items())
        }
    return body


_FREE = -1
_SLOTS_FIRST = 64


class QuotaIndex(QueueingHintIndex):
    """Slots by quota.

    The end of a pod makes room in its quota at once; what its siblings gain by that, they are told when it is worked
    out. `all_of_tree`: ancestors have a say, so that all quotas of a tree may depend on each other.
    """

    def __init__(self, book: QuotaBook, *, all_of_tree: bool) -> None:
        self._book = book
        self._all_of_tree = all_of_tree
        self._numbers: dict[str, int] = {}
        """Quota, or tree → the number that it has in `_slots`."""
        self._pods: dict[int, PodInfo] = {}
        self._slots = np.full(_SLOTS_FIRST, _FREE, np.int64)
        self._moves = book.moves

    def put(self, slot: int, pod: PodInfo) -> None:
        if slot >= self._slots.size:
            self._slots = grown(self._slots, max(slot + 1, 2 * self._slots.size), _FREE)
        self._pods[slot] = pod
        self._slots[slot] = self._number(pod)

    def clear(self, slot: int) -> None:
        del self._pods[slot]
        self._slots[slot] = _FREE

    def may_wake(self, event: QueueingEvent, slot_count: int) -> Mask:
        if self._moves != self._book.moves:
            self._moves = self._book.moves
            for slot, pod in self._pods.items():
                self._slots[slot] = self._number(pod)
        slots = self._slots[:slot_count]
        if isinstance(event.new, frozenset) and not self._all_of_tree:
            return np.isin(slots, [self._numbers[name] for name in event.new if name in self._numbers])
        if event.kind is ClusterEvent.ASSIGNED_POD_DELETED and isinstance(event.old, PodInfo):
            return np.asarray(slots == self._number(event.old))
        return np.asarray(slots != _FREE)

    def _number(self, pod: PodInfo) -> int:
        ref = self._book.quota_of(pod.pod)
        name = f"tree {ref.tree_id}" if self._all_of_tree else ref.name
        return self._numbers.setdefault(name, len(self._numbers))


class QuotaRefusals:
    """Quotas that had no room for a pod, and the room that they had.

    `wake` is told the names of quotas whose pods may fit now. A pod that gives back places of its own must have
    been refused before it took them (`ElasticQuota.room_for`), or it would make the room that it is woken by.

    Source: behaviour/elastic-quota 13.1.
    """

    def __init__(self, checks: QuotaChecks, wake: Callable[[frozenset[str]], None]) -> None:
        self._checks = checks
        self._wake = wake
        self._rooms: dict[QuotaRef, dict[str, Nanos]] = {}
        """Refusing quota → the room of it and its ancestors with a say, the least of all times it was asked."""
        self._depending: dict[str, set[QuotaRef]] = {}
        """Quota → those that it refused for."""

    def add(self, place: PodQuota) -> None:
        """There was no room for a pod."""
        rooms = self._rooms.setdefault(place.ref, {})
        for quota in place.known:
            name = quota.spec.name
            room, known = self._room(quota), rooms.get(name)
            if known is not None:
                room = {each: min(number, known.get(each, number)) for each, number in room.items()}
            rooms[name] = room
            self._depending.setdefault(name, set()).add(place.ref)

    def recheck(self, changed: set[str]) -> None:
        """These quotas use or may use something else than before."""
        refs = {ref for name in changed & self._depending.keys() for ref in self._depending[name]}
        grown: set[str] = set()
        for ref in refs:
            place, rooms = self._checks.place(ref), self._rooms[ref]
            if isinstance(place, Status):
                self._drop(ref)
            elif any(
                number > rooms.get(quota.spec.name, {}).get(name, number)
                for quota in place.known
                for name, number in self._room(quota).items()
            ):
                self._drop(ref)
                grown.add(ref.name)
        if grown:
            self._wake(frozenset(grown))

    def _drop(self, ref: QuotaRef) -> None:
        for name in self._rooms.pop(ref):
            discard(self._depending, name, ref)

    def _room(self, quota: Quota) -> Nanos:
        used = quota.below.used
        return {name: number - used.get(name, 0) for name, number in self._checks.limit_of(quota).items()}


class ElasticQuota(
    PreFilterPlugin[Status],
    PostFilterPlugin[Status],
    ReservePlugin[Status],
    ControllerProvider[Status],
    ApiProvider[Status],
    JobRoomPlugin[Status],
):
    """The state is the answer of PreFilter about pods of a class, as things stand."""

    name = "ElasticQuota"
    args = ElasticQuotaArgs
    wakes_on = (ClusterEvent.ASSIGNED_POD_DELETED, ClusterEvent.ELASTIC_QUOTA, ClusterEvent.POD_UPDATED)

    def __init__(self, args: ElasticQuotaArgs, handle: Handle) -> None:
        self.accounts = QuotaAccounts.of(args, handle)
        args = self.accounts.args_of(args)
        super().__init__(args, handle)
        book, self._hooks = self.accounts.book, self.accounts.hooks
        self.book = book
        self._has_hooks = bool(self._hooks)
        self.checks = QuotaChecks(args, book, self.accounts.timed)
        self._refusals = QuotaRefusals(self.checks, self._wake)
        self.accounts.changes.on_change.append(self._refusals.recheck)
        self._preemption = QuotaPreemption(args, handle, book)
        self._hints = QuotaQueueingHints(args, book, handle.clock) if args.enable_queue_hint else None

    def _wake(self, names: frozenset[str]) -> None:
        """Pods that these quotas refused may fit now."""
        self.handle.happened(QueueingEvent(ClusterEvent.ELASTIC_QUOTA, new=names))

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        return ()  # no node is another one for a pod of another quota: all that counts is in `live_key`

    def sleep_key(self, pod: PodInfo) -> Hashable:
        own, marks = pod.pod.metadata, pod.pod.metadata.labels
        return marks.get(labels.QUOTA_NAME, ""), own.namespace, quota_labels.is_pod_non_preemptible(marks)

    def is_relevant_update(self, old: PodInfo, new: PodInfo) -> bool:
        return self.sleep_key(old) != self.sleep_key(new) or old.request_key != new.request_key

    def live_key(self, pod: PodInfo) -> Hashable:
        return self._answer(pod)

    def prepare(self, pod: PodInfo) -> Status:
        return self._answer(pod)

    def pre_filter(self, state: Status) -> PreFilterResult:
        return PreFilterResult(state)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        if isinstance(event.new, frozenset):
            return self.book.quota_of(pod.pod).name in event.new
        if self._hints is not None and not self._hints.may_help(event, pod):
            return False
        return not self._answer(pod).is_rejected

    def wake_index(self) -> QueueingHintIndex:
        return QuotaIndex(self.book, all_of_tree=self.checks.asks_ancestors)

    def _answer(self, pod: PodInfo) -> Status:
        checks = self.checks
        place = checks.place_of(pod.pod)
        if isinstance(place, Status):
            return place
        try:
            if checks.has_room(pod, place):
                text = self._hooks.objection(place.ref.name, pod.pod) if self._has_hooks else ""
                return unschedulable(text) if text else SUCCESS
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

    def room_for(self, pods: Iterable[PodInfo]) -> Status:
        status, places = self.checks.room_for(pods)
        for place in places:
            self._refusals.add(place)
        return SUCCESS if status.code is Code.SKIP else status

    def rivals(self, pod: PodInfo) -> Iterable[str]:
        quota = self.book.quota_at(self.book.quota_of(pod.pod))
        for key, counted in quota.pods.items() if quota is not None else ():
            known = self.book.pod(key) if counted.is_assigned else None
            if known is not None:
                yield known.metadata.uid or key

    def standing(self, pod: PodInfo, count: int = 1) -> PodStanding | None:
        """Return what so many pods like this one meet at their quota, for people; None where no quota has a say."""
        return self.checks.standing(pod.pod, count)

    # Preemption, loops, questions

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        if pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return PostFilterResult(SKIP)  # room for pods to come is not made by evicting those that run
        return self._preemption.post_filter(pod, diagnosis)

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        if pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return super().outlook(pod, diagnosis)
        return self._preemption.outlook(pod, diagnosis)

    def controllers(self) -> Sequence[BackgroundController]:
        return self.accounts.loops()

    def endpoints(self) -> Sequence[Endpoint]:
        one, many = partial(describe_quota, self.book), partial(describe_quotas, self.book)
        return Endpoint("quotas/{name}", one), Endpoint("quotas", many)
