"""When the members of a gang may be scheduled, must wait, are released or sent back.

One round at a time: a group of gangs is tried member by member, nothing else in between; then all members
that have a place are released together, or all give it back. Source: spec 05, sections 5 to 8.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMatchPolicy, GangMode
from koordinator.api.sigs import PodGroup
from koordinator.scheduler.plugins.coscheduling.config import (
    GangConfig,
    GangDefaults,
    from_pod,
    from_pod_group,
    gang_id_of,
)
from koordinator.scheduler.plugins.coscheduling.decisions import (
    Begin,
    EndReason,
    Failure,
    Gate,
    GateReason,
    Next,
    Permit,
    PermitReason,
    Rejection,
)
from koordinator.scheduler.plugins.coscheduling.gangs import Gang, GangCache
from koordinator.scheduler.suggestion import Suggestion

FINISHED_PHASES = ("Succeeded", "Failed")


class Round(msgspec.Struct):
    """The group that is being scheduled now."""

    first: str
    gang_id: str
    """The gang of the first pod."""
    gangs: tuple[str, ...]
    group_id: str
    tried: set[str]
    queue: deque[tuple[str, str]]
    """Members to try with their gang, in order; those that appear later are found when it is empty."""
    failure: str = ""
    """Why a member could not be placed: the others that are tried fail with it."""
    preemption_message: str = ""
    """What came of making room for the member that failed; once is enough per round."""
    suggestion: Suggestion | None = None
    """What a plugin suggests to users of the member that failed."""
    is_condition_patched: bool = False
    planned: dict[str, str] = msgspec.field(default_factory=dict)
    """Member → the node that was planned for it, when the whole group was planned at once."""


class GangRounds:
    """The state machine of all gangs, driven by events and by the scheduling cycle."""

    def __init__(self, defaults: GangDefaults | None = None, *, patches_conditions: bool = True) -> None:
        self.cache = GangCache()
        self.round: Round | None = None
        self._defaults = defaults or GangDefaults()
        self._patches_conditions = patches_conditions
        self._held: dict[str, str] = {}
        """Pods that wait in Permit, with their gang: they outlive the gang's record."""

    # Events. Each answers which pods should enter the queue now.

    def on_pod_add(self, pod: Pod) -> tuple[str, ...]:
        """A pod was created, or is seen for the first time."""
        gang = self._see(pod)
        is_on_node = bool(pod.spec.node_name)
        return (key_of(pod),) if gang is not None and gang.is_complete and not is_on_node else ()

    def on_pod_update(self, pod: Pod) -> None:
        """A pod changed; what finished ones report changes nothing."""
        if pod.status.phase not in FINISHED_PHASES:
            self._see(pod)

    def on_pod_delete(self, pod: Pod) -> tuple[str, ...]:
        """A pod is gone. When it was the one that failed its group, another member should be tried."""
        key = key_of(pod)
        self._held.pop(key, None)
        gang = self.cache.get(gang_id_of(pod))
        if gang is None:
            return ()
        group, is_root_cause = gang.group, gang.group.root_cause == key
        self.cache.remove_member(gang, key)
        if not is_root_cause:
            return ()
        group.root_cause = ""
        return self._some_pending(group.gangs)

    def on_pod_group_add(self, pod_group: PodGroup) -> tuple[str, ...]:
        """A PodGroup was created, or is seen for the first time."""
        config = from_pod_group(pod_group, self._defaults)
        gang = self.cache.ensure(f"{pod_group.metadata.namespace}/{pod_group.metadata.name}")
        self.cache.configure(gang, config)
        return self._some_pending({gang.gang_id}) if gang.is_complete else ()

    def on_pod_group_update(self, pod_group: PodGroup) -> tuple[str, ...]:
        """A PodGroup changed; that of an unknown gang is ignored."""
        gang = self.cache.get(f"{pod_group.metadata.namespace}/{pod_group.metadata.name}")
        if gang is None:
            return ()
        was_complete = gang.is_complete
        self.cache.configure(gang, from_pod_group(pod_group, self._defaults))
        became_complete = gang.is_complete and not was_complete
        return self._some_pending({gang.gang_id}) if became_complete else ()

    def on_pod_group_delete(self, pod_group: PodGroup) -> None:
        """A PodGroup is gone, and with it the gang, even when pods remain."""
        gang = self.cache.get(f"{pod_group.metadata.namespace}/{pod_group.metadata.name}")
        if gang is not None:
            self.cache.drop(gang)

    def _see(self, pod: Pod) -> Gang | None:
        gang_id, key = gang_id_of(pod), key_of(pod)
        if not gang_id:
            return None
        gang = self.cache.ensure(gang_id)
        if not gang.config.is_initialised and (config := from_pod(pod, self._defaults)) is not None:
            self.cache.configure(gang, config)
        is_on_node = bool(pod.spec.node_name)
        self.cache.add_member(gang, key, pod.metadata.uid, is_on_node=is_on_node)
        if is_on_node:
            self._held.pop(key, None)
        return gang

    def _some_pending(self, gang_ids: set[str]) -> tuple[str, ...]:
        """One member that has no place, of the first gang that has such a member."""
        for gang_id in sorted(gang_ids):
            gang = self.cache.get(gang_id)
            if gang is not None and gang.pending:
                return (min(gang.pending),)
        return ()

    # The way into the queue, and the start of a cycle

    def pre_enqueue(self, pod: Pod) -> Gate:
        """Whether the pod may enter the active queue: one member of each group may, once all are there."""
        gate = self.look(pod)
        gang = self.cache.get(gang_id_of(pod))
        if gang is not None and gate.is_open and not is_on_its_own(gang):
            gang.group.representative = key_of(pod)
        elif gang is not None and gate.reason is GateReason.INCOMPLETE:
            self.cache.forget_representative(gang, key_of(pod))
        return gate

    def look(self, pod: Pod) -> Gate:
        """What `pre_enqueue` would answer now; nobody comes to stand for the group by that."""
        gang, gate = self._checked(pod)
        if gang is None or gate.reason is not GateReason.OK:
            return gate
        key, group, now = key_of(pod), gang.group, self.round
        if now is not None and gang.gang_id in now.gangs and key not in now.tried:
            message = f"gangGroup {group.group_id} is scheduling and this pod has not been attempted"
            return Gate(GateReason.ROUND_RUNNING, message)
        if key not in gang.pending:
            return Gate(GateReason.NOT_PENDING, f"pod {key} is not exists in gangCache")
        if group.representative not in ("", key):
            other = f"representative pod {group.representative} of gangGroupID {group.group_id}"
            return Gate(GateReason.REPRESENTED, f"{other} already exists")
        return Gate(GateReason.OK)

    def begin(self, pod: Pod, *, has_topology: bool = True) -> Begin:
        """Whether the pod may be tried now; the first member of a group starts its round.

        A round of another group that is still open is ended first.
        """
        gang, gate = self._checked(pod)
        if gang is None or gate.reason is not GateReason.OK:
            if gang is not None:
                self.cache.forget_representative(gang, key_of(pod))
            return Begin(gate)
        key, group, now = key_of(pod), gang.group, self.round
        if now is not None and now.group_id == group.group_id:
            if now.failure:
                return Begin(Gate(GateReason.ROUND_FAILED, now.failure))
            now.tried.add(key)
            return Begin(Gate(GateReason.OK))
        if gang.config.topology is not None and not has_topology:
            return Begin(Gate(GateReason.NO_TOPOLOGY, "no cluster network topology"))
        ended = self._end(EndReason.OTHER_GROUP) if now is not None else Next()
        group.representative = ""
        self.round = Round(
            first=key,
            gang_id=gang.gang_id,
            gangs=gang.config.group,
            group_id=group.group_id,
            tried={key},
            queue=deque(),
        )
        return Begin(Gate(GateReason.OK), has_started=True, ended=ended)

    def _checked(self, pod: Pod) -> tuple[Gang | None, Gate]:
        """The gang, if its rules apply to the pod, and whether all gangs of its group are complete."""
        gang_id, key = gang_id_of(pod), key_of(pod)
        if not gang_id:
            return None, Gate(GateReason.OK)
        gang, about = self.cache.get(gang_id), f"gangName: {gang_id}, podName: {key}"
        if gang is None:
            return None, Gate(GateReason.GANG_UNKNOWN, f"can't find gang, {about}")
        if not gang.config.is_initialised:
            return None, Gate(GateReason.GANG_UNCONFIGURED, f"gang has not init, {about}")
        if is_on_its_own(gang):
            return None, Gate(GateReason.OK)
        if objections := self._incomplete(gang.config):
            ids = " ".join(gang.config.group)
            about = f"current gang: {gang_id}, podName: {key}"
            message = f"gangGroup [{ids}] basic check: {', '.join(objections)}, {about}"
            return gang, Gate(GateReason.INCOMPLETE, message)
        return gang, Gate(GateReason.OK)

    def _incomplete(self, config: GangConfig) -> list[str]:
        known = {gang_id: self.cache.get(gang_id) for gang_id in config.group}
        unknown = [gang_id for gang_id, gang in known.items() if gang is None]
        gangs = [gang for gang in known.values() if gang is not None]
        unconfigured = [gang.gang_id for gang in gangs if not gang.config.is_initialised]
        objections = []
        if unknown:
            objections.append(f"memberGangs [{' '.join(unknown)}] doesn't exists")
        if unconfigured:
            objections.append(f"memberGangs [{' '.join(unconfigured)}] has not init")
        if any(gang.config.is_initialised and not gang.is_complete for gang in gangs):
            objections.append(f"memberGangs [{' '.join(config.group)}] child pod not collect enough")
        return objections

    def is_tried_as_a_whole(self, pod: Pod) -> bool:
        """Whether an attempt of the pod is one of its whole gang group."""
        gang = self.cache.get(gang_id_of(pod))
        return gang is not None and not is_on_its_own(gang)

    # The round

    def next_pod(self) -> Next:
        """The member that must be tried next, before anything else is taken from the queue."""
        now = self.round
        if now is None:
            return Next()
        if self.cache.get(now.gang_id) is None:
            return self._end(EndReason.GANG_GONE)
        while True:
            if not now.queue:
                now.queue.extend(self._untried(now))
            if not now.queue:
                return self._end(EndReason.ALL_TRIED)
            key, gang_id = now.queue.popleft()
            gang = self.cache.get(gang_id)
            if gang is not None and key in gang.pending and key not in now.tried:
                now.tried.add(key)
                return Next(key)

    def plan(self, nodes: Mapping[str, str]) -> None:
        """The members of the round that go together, with their nodes: they are tried next, in this order."""
        now = self.round
        assert now is not None
        now.planned = dict(nodes)
        gang_of = {key: gang.gang_id for gang in self._gangs_of(now) for key in gang.pending if key in nodes}
        now.queue = deque((key, gang_of[key]) for key in nodes if key in gang_of)

    def _gangs_of(self, now: Round) -> Iterator[Gang]:
        for gang_id in now.gangs:
            gang = self.cache.get(gang_id)
            if gang is not None:
                yield gang

    def _untried(self, now: Round) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for gang_id in now.gangs:
            gang = self.cache.get(gang_id)
            if gang is not None:
                found += [(key, gang_id) for key in sorted(gang.pending - now.tried)]
        return found

    def _end(self, reason: EndReason) -> Next:
        assert self.round is not None
        rejected, tried_count = self._take_held(self.round.gangs), len(self.round.tried)
        self.round = None
        return Next("", reason, rejected, tried_count)

    def _take_held(self, gang_ids: tuple[str, ...]) -> tuple[str, ...]:
        """The pods of these gangs that wait in Permit; the caller lets all of them go, one way or the other."""
        taken = tuple(sorted(key for key, gang_id in self._held.items() if gang_id in gang_ids))
        for key in taken:
            del self._held[key]
        return taken

    def fail_round(self, pod: Pod, fit_error: str) -> str:
        """No node holds the pod: the message that the round fails with, kept for the members that follow. Empty for a
        pod that is no concern of a gang."""
        gang = self.cache.get(gang_id_of(pod))
        if gang is None or is_on_its_own(gang):
            return ""
        key, now, group = key_of(pod), self.round, gang.group
        quoted = f'GangGroup "{group.group_id}" gets rejected due to member'
        if now is None or now.group_id != group.group_id:
            return f'{quoted} pod "{key}" is unschedulable'
        if not now.failure:
            waiting = sum(len(each.waiting) for each in self.cache.members_of(group))
            error = json.dumps(fit_error, ensure_ascii=False)
            why = f'{quoted} Pod "{key}" is unschedulable with reason {error}'
            now.failure = f"{why}, alreadyWaitForBound: {waiting}"
            group.root_cause = key
        return now.failure

    def filter_failed(self, pod: Pod, fit_error: str, *, is_root_cause: bool) -> Failure:
        """No node holds the pod: in a strict gang everybody gives its place back."""
        gang = self.cache.get(gang_id_of(pod))
        if gang is None or is_on_its_own(gang):
            return Failure()
        key, now = key_of(pod), self.round
        in_round = now is not None and now.group_id == gang.group.group_id
        message = self.fail_round(pod, fit_error)
        patched: tuple[str, ...] = ()
        if now is not None and in_round and not is_root_cause and not now.is_condition_patched:
            now.is_condition_patched = True
            if self._patches_conditions:
                patched = tuple(each for each, _ in self._untried(now) if each != key)
        if gang.config.mode is not GangMode.STRICT:
            return Failure(group_message=message, condition_patches=patched)
        gang.group.waiting_gangs.clear()
        gang.group.binding = frozenset()
        return Failure(
            group_message=message,
            message=f'Gang "{gang.gang_id}" gets rejected due to pod is unschedulable',
            rejected=self._take_held(gang.config.group),
            condition_patches=patched,
        )

    # The end of a cycle

    def permit(self, pod: Pod) -> Permit:
        """Whether a pod that has a place may be bound: when its whole group has enough places."""
        gang_id, key = gang_id_of(pod), key_of(pod)
        if not gang_id:
            return Permit(PermitReason.NO_GANG)
        gang = self.cache.get(gang_id)
        if gang is None:
            return Permit(PermitReason.GANG_UNKNOWN)
        self.cache.holds_place(gang, key)
        self.cache.forget_representative(gang, key)  # it was placed in the cycle of another one
        group = gang.group
        if not all(self._is_ready(each) for each in gang.config.group):
            group.waiting_gangs.update(gang.config.group)
            self._held[key] = gang_id
            return Permit(PermitReason.WAIT, wait_s=gang.config.wait_s)
        members = self.cache.members_of(group)
        if not group.binding:
            group.binding = frozenset(each.children.get(k, k) for each in members for k in each.waiting)
        ended, tried_count = None, 0
        if self.round is not None and self.round.group_id == group.group_id:
            tried_count = len(self.round.tried)
            self.round, ended = None, EndReason.SUCCEEDED
        group.root_cause = ""
        return Permit(
            PermitReason.RELEASED,
            allowed=self._take_held(gang.config.group),
            ended=ended,
            tried_count=tried_count,
            # Members beyond the minimum are gated, and no event would ever wake them.
            activate=self._some_pending(group.gangs),
        )

    def _is_ready(self, gang_id: str) -> bool:
        gang = self.cache.get(gang_id)
        if gang is None or not gang.config.is_initialised:
            return False
        minimum, waiting = gang.config.minimum, len(gang.waiting)
        match gang.config.match_policy:
            case GangMatchPolicy.ONLY_WAITING:
                return waiting >= minimum
            case GangMatchPolicy.WAITING_AND_RUNNING:
                return waiting + len(gang.bound) >= minimum
            case _:
                return waiting >= minimum or gang.group.once_satisfied

    def unreserve(self, pod: Pod) -> Rejection:
        """The pod lost its place, for whatever reason: in a strict gang, so do the others."""
        key = key_of(pod)
        self._held.pop(key, None)
        gang = self.cache.get(gang_id_of(pod))
        if gang is None:
            return Rejection()
        self.cache.gave_up_place(gang, key)
        if gang.config.mode is not GangMode.STRICT or is_on_its_own(gang):
            return Rejection()
        name = pod.metadata.name
        message = f'Gang "{gang.gang_id}" gets rejected due to Pod "{name}" in Unreserve'
        return Rejection(message, self._take_held(gang.config.group))

    def binding_mark(self, pod: Pod) -> tuple[str, int]:
        """The group that the pod is bound with, and how many of it; an empty id when it goes alone."""
        gang = self.cache.get(gang_id_of(pod))
        if gang is None:
            return "", 0
        binding = gang.group.binding
        if len(binding) < 2 or (pod.metadata.uid or key_of(pod)) not in binding:
            return "", 0
        return gang.group.group_id, len(binding)

    def post_bind(self, pod: Pod) -> None:
        """The pod was bound."""
        self._held.pop(key_of(pod), None)
        gang = self.cache.get(gang_id_of(pod))
        if gang is not None:
            self.cache.bound(gang, key_of(pod))


def key_of(pod: Pod) -> str:
    """`namespace/name`."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def is_on_its_own(gang: Gang) -> bool:
    """Whether the gang has started once and its members are scheduled one by one since."""
    return gang.config.match_policy is GangMatchPolicy.ONCE_SATISFIED and gang.group.once_satisfied
