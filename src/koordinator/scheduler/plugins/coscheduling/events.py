"""Apply to gangs that pods and PodGroups come, change and go, and decide what follows for members. Source:
behaviour/gangs 4 and 5."""

import enum
from collections import deque
from collections.abc import Callable

import msgspec

from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMatchPolicy
from koordinator.api.pod_labels import is_terminated
from koordinator.api.sigs import PodGroup
from koordinator.scheduler.plugin.status import Suggestion
from koordinator.scheduler.plugins.coscheduling.config import (
    GangDefaults,
    from_pod,
    from_pod_group,
    gang_id_of,
)
from koordinator.scheduler.plugins.coscheduling.gangs import (
    Gang,
    GangCache,
    GangGroup,
)


class Effect(msgspec.Struct, frozen=True):
    """The consequence of an event."""

    activate: tuple[str, ...] = ()
    """Members that shall all enter the queue now, where it lets them."""
    one_of: tuple[str, ...] = ()
    """Members one of which shall enter the queue now: the first that it lets in."""
    allowed: tuple[str, ...] = ()
    """Waiting pods that are released."""
    rejected: tuple[str, ...] = ()
    """Waiting pods that must give their place back."""
    message: str = ""
    """Reason for which they must."""
    is_tired: bool = False
    """The time of those that waited was up: others shall have a go, and the group again after them."""


class GateReason(enum.Enum):
    """The reason why a pod may not enter the queue, or not be tried."""

    OK = "no objection"
    GANG_UNKNOWN = "the gang is not known"
    GANG_UNCONFIGURED = "nobody has described the gang yet"
    INCOMPLETE = "not all members of the gang group exist"
    ROUND_RUNNING = "the gang group is being scheduled, the pod's turn will come"
    ROUND_FAILED = "another member has failed the round"
    NOT_PENDING = "the pod is no member without a place"
    REPRESENTED = "another member is in the queue for the gang group"
    RESTING = "the gang group waited in vain until its time was up, and lets others have a go"
    NO_TOPOLOGY = "the gang asks for a network topology that is not known"


class GangGate(msgspec.Struct, frozen=True):
    """The decision whether a pod may go on, and the words if not."""

    reason: GateReason
    message: str = ""

    @property
    def is_open(self) -> bool:
        return self.reason is GateReason.OK


class EndReason(enum.Enum):
    """The reason why a round is over; the words are those of the metric's label."""

    SUCCEEDED = "gang is already succeed"
    ALL_TRIED = "all pending pods is already been attempted"
    GANG_GONE = "gang is nil, may be already deleted"
    OTHER_GROUP = "another gang group is scheduled"


class Next(msgspec.Struct, frozen=True):
    """The member to try next, or none; when the round is over: why, and who must give its place back."""

    pod: str = ""
    ended: EndReason | None = None
    rejected: tuple[str, ...] = ()
    tried_count: int = 0
    """Members that were tried in the round that ended."""
    one_of: tuple[str, ...] = ()
    """Members one of which shall enter the queue now: nothing else would wake their group."""


class Begin(msgspec.Struct, frozen=True):
    """The decision whether a pod may be tried, whether it starts a round, and how an older round was ended for it."""

    gate: GangGate
    has_started: bool = False
    ended: Next = Next()


class MemberFailure(msgspec.Struct, frozen=True):
    """The consequence when no node holds a member."""

    group_message: str = ""
    """Reason for which the round has failed; kept for the members that follow."""
    message: str = ""
    rejected: tuple[str, ...] = ()
    """Waiting pods that must give their place back."""
    condition_patches: tuple[str, ...] = ()
    """Untried members that shall learn from their status why they are pending."""


class PermitReason(enum.Enum):
    """The reason why a pod that has a place may be bound, or not."""

    NO_GANG = "no member of a gang"
    RELEASED = "the gang group has enough places"
    WAIT = "the gang group does not have enough places yet"
    GANG_UNKNOWN = "Gang not found"


class Permit(msgspec.Struct, frozen=True):
    """The answer, with the waiting pods that are released, too."""

    reason: PermitReason
    wait_s: float = 0.0
    allowed: tuple[str, ...] = ()
    ended: Next = Next()


class GangRound(msgspec.Struct):
    """The group that is being scheduled now."""

    first: str
    gang_id: str
    """The gang of the first pod."""
    gangs: tuple[str, ...]
    group_id: str
    tried: set[str]
    queue: deque[tuple[str, str]] | None = None
    """Members to try with their gang, in order; None before the second one is asked for."""
    failure: str = ""
    """Reason for which a member could not be placed: the others that are tried fail with it."""
    preemption_message: str = ""
    """Result of making room for the member that failed; once is enough per round."""
    suggestion: Suggestion | None = None
    """Suggestion of a plugin to users of the member that failed."""
    is_condition_patched: bool = False
    version: int = -1
    """Version of the books when it was last checked that all gangs of the group are complete."""
    planned: dict[str, str] = msgspec.field(default_factory=dict)
    """Member → the node that was planned for it, when the whole group was planned at once."""


class GangEvents:
    """The books of gangs, kept by events, and what follows from each. See `GangRounds`, which adds the rounds."""

    def __init__(
        self,
        defaults: GangDefaults | None = None,
        *,
        patches_conditions: bool = True,
        is_in_line: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.cache = GangCache()
        self.round: GangRound | None = None
        self._defaults = defaults or GangDefaults()
        self._patches_conditions = patches_conditions
        self._is_in_line = is_in_line
        self._held: dict[str, dict[str, str]] = {}
        """Gang → pods that wait in Permit, with their uids: they outlive the gang's record."""

    # Events

    def on_pod_add(self, pod: Pod) -> Effect:
        """Note that a pod was created, or is seen for the first time."""
        key, had_started = pod.key, self._has_started(pod)
        gang = self._see(pod)
        if gang is None:
            return Effect()
        if key in gang.bound:
            return self._after_binding(gang, had_started=had_started, was_pending=True)
        return Effect(activate=(key,) if gang.is_complete and key not in gang.leaving else ())

    def on_pod_update(self, pod: Pod) -> Effect:
        """Note that a pod changed. Of pods that have ended nothing counts but that they have."""
        known, key = self.cache.get(gang_id_of(pod)), pod.key
        had_started = self._has_started(pod)
        is_awaited = known is not None and key in (known.group.representative, known.group.root_cause)
        was_bound = known is not None and key in known.bound
        was_pending = known is not None and key in known.pending
        was_leaving = known is not None and key in known.leaving
        if is_terminated(pod):
            if known is None:
                self.cache.remember(pod)
                return Effect()
            self.cache.ended(known, pod)
            gang: Gang | None = known
        else:
            gang = self._see(pod)
        if gang is None:
            return Effect()
        if key in gang.leaving and not was_leaving:
            return self._without(gang, key, is_awaited=is_awaited)
        if key in gang.bound and not was_bound:  # the answer to our own binding may come after this
            return self._after_binding(gang, had_started=had_started, was_pending=was_pending)
        return Effect()

    def on_pod_delete(self, pod: Pod) -> Effect:
        """Note that a pod is gone. When its group relied on it to be tried again, another member should be."""
        key, gang_id = pod.key, gang_id_of(pod)
        self._take_one(gang_id, key)
        gang = self.cache.get(gang_id)
        if gang is None:
            self.cache.remove_member(gang_id, pod)
            return Effect()
        group = gang.group
        is_awaited = key in (group.representative, group.root_cause)
        self.cache.remove_member(gang_id, pod)
        return self._succeed(group, key) if is_awaited else Effect()

    def on_pod_group_add(self, pod_group: PodGroup) -> Effect:
        """Note that a PodGroup was created, or is seen for the first time."""
        gang_id = pod_group.key
        gang = self.cache.ensure(gang_id)
        self.cache.configure(gang, from_pod_group(pod_group, self._defaults))
        for pod in self.cache.orphans_of(gang_id):
            self._see(pod)
        return self._start_or_release(gang)

    def on_pod_group_update(self, pod_group: PodGroup) -> Effect:
        """Note that a PodGroup changed; that of an unknown gang is ignored."""
        gang = self.cache.get(pod_group.key)
        config = from_pod_group(pod_group, self._defaults)
        if gang is None or gang.config == config:
            return Effect()
        former = gang.group
        self.cache.configure(gang, config)
        effect = self._start_or_release(gang)
        if former is not gang.group and not former.representative and not effect.one_of:
            effect = msgspec.structs.replace(effect, one_of=self.cache.candidates(former))
        return effect

    def on_pod_group_delete(self, pod_group: PodGroup) -> Effect:
        """Note that a PodGroup is gone, and with it the gang, unless pods that remain describe one themselves."""
        gang_id = pod_group.key
        gang = self.cache.get(gang_id)
        if gang is None:
            return Effect()
        self.cache.drop(gang)
        in_round = self.round is not None and gang_id in self.round.gangs
        if in_round:
            return Effect()  # the end of the round sees to those that wait
        rejected = self._take_held((gang_id,))
        return Effect(one_of=self._adopt(gang_id), rejected=rejected, message=EndReason.GANG_GONE.value)

    def _adopt(self, gang_id: str) -> tuple[str, ...]:
        """Pods that are left of a gang without its PodGroup may describe a gang themselves; whom to try then."""
        for pod in self.cache.orphans_of(gang_id):
            if from_pod(pod, self._defaults) is not None:
                self._see(pod)
        gang = self.cache.get(gang_id)
        return self.cache.candidates(gang.group) if gang is not None else ()

    def _see(self, pod: Pod) -> Gang | None:
        gang_id, key = gang_id_of(pod), pod.key
        if not gang_id:
            return None
        gang = self.cache.ensure(gang_id)
        if not gang.config.is_initialised and (config := from_pod(pod, self._defaults)) is not None:
            self.cache.configure(gang, config)
        is_new = key not in gang.children
        self.cache.add_member(gang, pod)
        if key in gang.bound:
            self._take_one(gang_id, key)
        elif is_new:
            self._line_up(key, gang_id)
        return gang

    def _line_up(self, key: str, gang_id: str) -> None:
        """Note that a member came to be without a place during a round: it is tried after the others."""
        now = self.round
        if now is not None and now.queue is not None and gang_id in now.gangs:
            now.queue.append((key, gang_id))

    # What follows from events

    def _start_or_release(self, gang: Gang) -> Effect:
        """Note that the gang is described anew: members that wait may be enough now, or one of them should be tried."""
        group = gang.group
        if self._holds_any(group) and all(map(self._is_ready, group.ids)):
            return self._release(gang)
        if group.once_satisfied:
            return Effect(activate=self._all_startable(group))
        is_busy = self.round is not None and self.round.group_id == group.group_id
        if is_busy or not gang.is_complete or self._is_represented(group):
            return Effect()
        return Effect(one_of=self.cache.candidates(group, gang.gang_id))

    def _has_started(self, pod: Pod) -> bool:
        gang = self.cache.get(gang_id_of(pod))
        return gang is not None and gang.group.once_satisfied

    def _after_binding(self, gang: Gang, *, had_started: bool, was_pending: bool = False) -> Effect:
        """Note that a member was bound: those that wait may be enough now, and once the group has started all others
        are scheduled one by one. `was_pending`: somebody else bound it, so nobody has looked at the others."""
        group = gang.group
        if had_started:
            return Effect()
        if group.once_satisfied:
            self.cache.begun.pop(group.group_id, None)
        elif was_pending:
            self.cache.begun[group.group_id] = None
        if is_on_its_own(gang):
            return Effect(activate=self._all_startable(group))
        if was_pending and self._holds_any(group) and all(map(self._is_ready, group.ids)):
            return self._release(gang)
        if was_pending and self.round is None and not self._is_represented(group):
            return Effect(one_of=self.cache.candidates(group, gang.gang_id))
        return Effect()

    def _release(self, gang: Gang) -> Effect:
        """Let those that wait be bound. Members beyond the minimum are gated, so one of them is sent after them."""
        group = gang.group
        return Effect(allowed=self._take_held(group.ids), one_of=self.cache.candidates(group, gang.gang_id))

    def _without(self, gang: Gang, key: str, *, is_awaited: bool) -> Effect:
        """Note that a member is being deleted, or ended, before it was bound."""
        if key in self._held.get(gang.gang_id, {}):
            self._take_one(gang.gang_id, key)
            return Effect(rejected=(key,), message=f"pod {key} is being deleted")
        return self._succeed(gang.group, key) if is_awaited else Effect()

    def _succeed(self, group: GangGroup, key: str) -> Effect:
        """Return the member whose turn or whose wake-up the group waited for is out: another one takes its place."""
        if group.root_cause == key:
            group.root_cause = ""
        is_busy = self.round is not None and self.round.group_id == group.group_id
        return Effect() if is_busy else Effect(one_of=self.cache.candidates(group))

    def _is_represented(self, group: GangGroup) -> bool:
        return group.representative != "" and self._is_in_line(group.representative)

    def _all_startable(self, group: GangGroup) -> tuple[str, ...]:
        return tuple(key for gang in self.cache.members_of(group) for key in gang.startable())

    def _is_ready(self, gang_id: str) -> bool:
        gang = self.cache.get(gang_id)
        if gang is None or not gang.config.is_initialised:
            return False
        return is_on_its_own(gang) or self.lacking(gang) <= 0

    def lacking(self, gang: Gang) -> int:
        """Return how many more members must get a place before a gang that starts may be bound; 0 or less for none."""
        lacking = gang.config.minimum - gang.waiting_count
        match gang.config.match_policy:
            case GangMatchPolicy.ONLY_WAITING if gang.group.once_satisfied or not gang.group.was_released:
                return lacking
            case GangMatchPolicy.WAITING_AND_RUNNING:
                return lacking - gang.running_count
            case _:
                # Members that a scheduler bound before it died count: the others complete what it began.
                return lacking - gang.placed_count

    # Who waits in Permit

    def _holds_any(self, group: GangGroup) -> bool:
        return any(gang_id in self._held for gang_id in group.ids)

    def _take_one(self, gang_id: str, key: str) -> None:
        held = self._held.get(gang_id)
        if held is not None and held.pop(key, None) is not None and not held:
            del self._held[gang_id]

    def _take_held(self, gang_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return the pods of these gangs that wait in Permit; the caller lets all of them go, one way or the other."""
        return tuple(sorted(key for gang_id in gang_ids for key in self._held.pop(gang_id, ())))


def is_on_its_own(gang: Gang) -> bool:
    """Return whether the gang has started once and its members are scheduled one by one since."""
    return gang.config.match_policy is GangMatchPolicy.ONCE_SATISFIED and gang.group.once_satisfied
