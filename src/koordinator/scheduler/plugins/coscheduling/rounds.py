"""Decide when the members of a gang may be scheduled, must wait, are released or sent back.

One round at a time: a group of gangs is tried member by member, nothing else in between; then all members
that have a place are released together, or all give it back. Source: behaviour/gangs 5 to 8.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMode
from koordinator.scheduler.plugins.coscheduling.config import GangConfig, gang_id_of
from koordinator.scheduler.plugins.coscheduling.events import (
    Begin,
    Effect,
    EndReason,
    GangEvents,
    GangGate,
    GangRound,
    GateReason,
    MemberFailure,
    Next,
    Permit,
    PermitReason,
    is_on_its_own,
)
from koordinator.scheduler.plugins.coscheduling.gangs import Gang, uid_of

OPEN = GangGate(GateReason.OK)
GO_ON = Begin(OPEN)


class GangRounds(GangEvents):
    """The state machine of all gangs, driven by events and by the scheduling cycle.

    `is_in_line` tells whether a member is in the queue, or being tried: one that something else holds back cannot
    stand for its group.
    """

    # The way into the queue, and the start of a cycle

    def pre_enqueue(self, pod: Pod) -> GangGate:
        """Return whether the pod may enter the active queue: one member of each group may, once all are there."""
        gang, gate = self._looked_at(pod)
        if gang is not None and gate.is_open:
            gang.group.representative = pod.key
        elif gang is not None:
            self.cache.forget_representative(gang, pod.key)
        return gate

    def look(self, pod: Pod) -> GangGate:
        """Return what `pre_enqueue` would answer now; nobody comes to stand for the group by that."""
        return self._looked_at(pod)[1]

    def _looked_at(self, pod: Pod) -> tuple[Gang | None, GangGate]:
        gang, gate = self._checked(pod)
        if gang is None or not gate.is_open:
            return gang, gate
        key, group, now = pod.key, gang.group, self.round
        if now is not None and gang.gang_id in now.gangs and key not in now.tried:
            message = f"gangGroup {group.group_id} is scheduling and this pod has not been attempted"
            return gang, GangGate(GateReason.ROUND_RUNNING, message)
        if key not in gang.pending:
            return gang, GangGate(GateReason.NOT_PENDING, f"pod {key} is not exists in gangCache")
        if group.representative != key and self._is_represented(group):
            other = f"representative pod {group.representative} of gangGroupID {group.group_id}"
            return gang, GangGate(GateReason.REPRESENTED, f"{other} already exists")
        return gang, OPEN

    def begin(self, pod: Pod, *, has_topology: bool = True) -> Begin:
        """Return whether the pod may be tried now; the first member of a group starts its round.

        A round of another group that is still open is ended first.
        """
        now = self.round
        if now is not None and now.version == self.cache.version and not now.failure:
            known = self.cache.get(gang_id_of(pod))
            if known is not None and known.group.group_id == now.group_id:
                now.tried.add(pod.key)
                return GO_ON
        gang, gate = self._checked(pod)
        if gang is None or not gate.is_open:
            if gang is not None:
                self.cache.forget_representative(gang, pod.key)
            return Begin(gate)
        key, group = pod.key, gang.group
        if now is not None and now.group_id == group.group_id:
            if now.failure:
                return Begin(GangGate(GateReason.ROUND_FAILED, now.failure))
            now.tried.add(key)
            now.version = self.cache.version
            return GO_ON
        if gang.config.topology is not None and not has_topology:
            return Begin(GangGate(GateReason.NO_TOPOLOGY, "no cluster network topology"))
        ended = self._end(EndReason.OTHER_GROUP) if now is not None else Next()
        group.representative = ""
        self.round = GangRound(
            key, gang.gang_id, gang.config.group, group.group_id, {key}, version=self.cache.version
        )
        return Begin(OPEN, has_started=True, ended=ended)

    def _checked(self, pod: Pod) -> tuple[Gang | None, GangGate]:
        """Return the gang, if its rules apply to the pod, and whether all gangs of its group are complete."""
        gang_id, key = gang_id_of(pod), pod.key
        if not gang_id:
            return None, OPEN
        gang = self.cache.get(gang_id)
        if gang is None or not gang.config.is_initialised:
            about = f"gangName: {gang_id}, podName: {key}"
            if gang is None:
                return None, GangGate(GateReason.GANG_UNKNOWN, f"can't find gang, {about}")
            return None, GangGate(GateReason.GANG_UNCONFIGURED, f"gang has not init, {about}")
        if is_on_its_own(gang):
            return None, OPEN
        if objections := self._incomplete(gang.config):
            ids = " ".join(gang.config.group)
            about = f"current gang: {gang_id}, podName: {key}"
            message = f"gangGroup [{ids}] basic check: {', '.join(objections)}, {about}"
            return gang, GangGate(GateReason.INCOMPLETE, message)
        return gang, OPEN

    def _incomplete(self, config: GangConfig) -> list[str]:
        known = [self.cache.get(gang_id) for gang_id in config.group]
        if all(gang is not None and gang.is_complete for gang in known):
            return []
        unknown = [gang_id for gang_id, gang in zip(config.group, known, strict=True) if gang is None]
        gangs = [gang for gang in known if gang is not None]
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
        """Return whether an attempt of the pod is one of its whole gang group."""
        gang = self.cache.get(gang_id_of(pod))
        return gang is not None and not is_on_its_own(gang)

    # The round

    def next_pod(self) -> Next:
        """Return the member that must be tried next, before anything else is taken from the queue."""
        now = self.round
        if now is None:
            return Next(self._next_begun()) if self.cache.begun else Next()
        if self.cache.get(now.gang_id) is None:
            return self._end(EndReason.GANG_GONE)
        if now.queue is None:
            now.queue = deque(self._untried(now))
        while now.queue:
            key, gang_id = now.queue.popleft()
            if self._is_untried(now, key, gang_id):
                now.tried.add(key)
                return Next(key)
        return self._end(EndReason.ALL_TRIED)

    def _next_begun(self) -> str:
        """A member of a group that somebody began to bind and did not finish: a scheduler that died, most likely. Each
        such group has one round before all other pods; if that fails it waits for room like everybody."""
        while self.cache.begun:
            group_id = next(iter(self.cache.begun))
            del self.cache.begun[group_id]
            group = self.cache.group(group_id)
            if group is None or group.once_satisfied:
                continue
            gangs = self.cache.members_of(group)
            if any(gang.placed_count for gang in gangs) and (found := self.cache.candidates(group)):
                return found[0]
        return ""

    def plan(self, nodes: Mapping[str, str]) -> None:
        """Set the members of the round that go together, with their nodes: only they are tried, in this order."""
        now = self.round
        assert now is not None
        now.planned = dict(nodes)
        gang_of = {key: gang.gang_id for gang in self._gangs_of(now) for key in gang.pending if key in nodes}
        now.queue = deque((key, gang_of[key]) for key in nodes if key in gang_of)

    def prefer(self, members: Iterable[tuple[str, str]]) -> None:
        """Members of the round, with their gangs, that are tried before the others."""
        if self.round is not None:
            self.round.queue = deque((*members, *self._untried(self.round)))

    def spare(self, members: Mapping[str, str]) -> None:
        """Members of a failed round, with their uids, that need not be tried: they know."""
        now = self.round
        if now is not None and now.failure:
            for gang in self._gangs_of(now):
                now.tried.update(key for key in gang.pending if members.get(key) == gang.children[key])

    def _gangs_of(self, now: GangRound) -> Iterator[Gang]:
        for gang_id in now.gangs:
            gang = self.cache.get(gang_id)
            if gang is not None:
                yield gang

    def _untried(self, now: GangRound) -> list[tuple[str, str]]:
        """Return members to be tried, with their gangs: those that gangs lack before those beyond a minimum, who might
        take their room."""
        first: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for gang in self._gangs_of(now):
            keys = [(key, gang.gang_id) for key in sorted(gang.pending) if key not in now.tried]
            tried = sum(key in gang.pending for key in now.tried)
            count = max(0, self.lacking(gang) - tried)
            first += keys[:count]
            others += keys[count:]
        return first + others

    def _is_untried(self, now: GangRound, key: str, gang_id: str) -> bool:
        gang = self.cache.get(gang_id)
        is_startable = gang is not None and key in gang.pending and key not in gang.leaving
        return is_startable and key not in now.tried

    def _end(self, reason: EndReason) -> Next:
        assert self.round is not None
        now, self.round = self.round, None
        keeps = reason is not EndReason.GANG_GONE and self._keeps_places(now.gangs)
        rejected = () if keeps else self._take_held(now.gangs)
        one_of: tuple[str, ...] = ()
        gang = self.cache.get(now.gang_id)
        if gang is None:
            one_of = self._adopt(now.gang_id)
        elif now.failure and not gang.group.root_cause:
            one_of = self.cache.candidates(gang.group)  # the member whose wake-up it would wait for is gone
        return Next("", reason, rejected, len(now.tried), one_of)

    def _keeps_places(self, gang_ids: tuple[str, ...]) -> bool:
        """Return whether members go on waiting after a round in which the group did not get enough places."""
        gangs = [self.cache.get(gang_id) for gang_id in gang_ids]
        return all(gang is not None and gang.config.mode is GangMode.NON_STRICT for gang in gangs)

    def fail_round(self, pod: Pod, fit_error: str) -> str:
        """No node holds the pod: the message that the round fails with, kept for the members that follow. Empty for a
        pod that is no concern of a gang."""
        gang = self.cache.get(gang_id_of(pod))
        if gang is None or is_on_its_own(gang):
            return ""
        key, now, group = pod.key, self.round, gang.group
        quoted = f'GangGroup "{group.group_id}" gets rejected due to member'
        if now is None or now.group_id != group.group_id:
            return f'{quoted} pod "{key}" is unschedulable'
        if now.failure:
            return now.failure
        waiting = sum(len(each.waiting) for each in self.cache.members_of(group))
        error = json.dumps(fit_error, ensure_ascii=False)
        failure = f'{quoted} Pod "{key}" is unschedulable with reason {error}, alreadyWaitForBound: {waiting}'
        group.root_cause = key
        if not self._keeps_places(now.gangs):
            now.failure = failure
        return failure

    def filter_failed(self, pod: Pod, fit_error: str, *, is_root_cause: bool) -> MemberFailure:
        """No node holds the pod: in a strict gang everybody gives its place back."""
        gang = self.cache.get(gang_id_of(pod))
        if gang is None or is_on_its_own(gang):
            return MemberFailure()
        key, now = pod.key, self.round
        in_round = now is not None and now.group_id == gang.group.group_id
        message = self.fail_round(pod, fit_error)
        patched: tuple[str, ...] = ()
        if now is not None and in_round and not is_root_cause and not now.is_condition_patched:
            now.is_condition_patched = True
            if self._patches_conditions:
                patched = tuple(each for each, _ in self._untried(now) if each != key)
        if gang.config.mode is not GangMode.STRICT:
            return MemberFailure(group_message=message, condition_patches=patched)
        rejected = self._take_held(gang.config.group)
        if sum(len(each.waiting) for each in self.cache.members_of(gang.group)) <= len(rejected):
            gang.group.waiting_gangs.clear()
            gang.group.binding = frozenset()
        return MemberFailure(
            group_message=message,
            message=f'Gang "{gang.gang_id}" gets rejected due to pod is unschedulable',
            rejected=rejected,
            condition_patches=patched,
        )

    # The end of a cycle

    def permit(self, pod: Pod) -> Permit:
        """Return whether a pod that has a place may be bound: when its whole group has enough places."""
        gang_id, key = gang_id_of(pod), pod.key
        if not gang_id:
            return Permit(PermitReason.NO_GANG)
        gang = self.cache.get(gang_id)
        if gang is None or not self.cache.is_current(pod):  # it may have been deleted during its cycle
            return Permit(PermitReason.GANG_UNKNOWN)
        self.cache.holds_place(gang, key)
        self.cache.forget_representative(gang, key)  # it was placed in the cycle of another one
        group, is_alone = gang.group, is_on_its_own(gang)
        if self._has_to_wait(gang, is_alone=is_alone):
            if len(group.waiting_gangs) < len(gang.config.group):
                group.waiting_gangs.update(gang.config.group)
            self._held.setdefault(gang_id, {})[key] = uid_of(pod)
            return Permit(PermitReason.WAIT, wait_s=gang.config.wait_s)
        if not group.binding:
            members = self.cache.members_of(group)
            group.binding = frozenset(each.children[k] for each in members for k in each.waiting)
        now, group.root_cause = self.round, ""
        allowed = self._take_held(gang.config.group)
        # Members beyond the minimum are gated, and no event would ever wake them.
        one_of = () if is_alone else self.cache.candidates(group, gang_id)
        if now is None or now.group_id != group.group_id:
            return Permit(PermitReason.RELEASED, allowed=allowed, ended=Next(one_of=one_of))
        self.round = None
        ended = Next(ended=EndReason.SUCCEEDED, tried_count=len(now.tried), one_of=one_of)
        return Permit(PermitReason.RELEASED, allowed=allowed, ended=ended)

    def _has_to_wait(self, gang: Gang, *, is_alone: bool) -> bool:
        """Return whether some gang of the group lacks members. A group that has started waits for nobody, also not for
        a gang that is not described any more."""
        if is_alone:
            return False
        if len(gang.waiting) + len(gang.bound) < gang.config.minimum:  # whatever of these counts
            return True
        return not all(map(self._is_ready, gang.config.group))

    def unreserve(self, pod: Pod) -> Effect:
        """Note that the pod lost its place, for whatever reason: in a strict gang, so do the others. One that is
        gone is not missed where enough others are left."""
        gang_id, key = gang_id_of(pod), pod.key
        gang = self.cache.get(gang_id)
        is_current = self.cache.is_current(pod)
        is_tired = False
        if self._held.get(gang_id, {}).get(key) == uid_of(pod):
            self._take_one(gang_id, key)
            now = self.round
            is_tired = (
                now is None or gang is None or now.group_id != gang.group.group_id
            )  # nobody has told it to
        if gang is None or not is_current:
            return self._gone(gang)
        self.cache.gave_up_place(gang, key)
        self._line_up(key, gang_id)
        if gang.config.mode is not GangMode.STRICT or is_on_its_own(gang):
            return Effect(is_tired=is_tired)
        if key in gang.leaving and not self._incomplete(gang.config):
            return Effect()
        message = f'Gang "{gang.gang_id}" gets rejected due to Pod "{pod.metadata.name}" in Unreserve'
        rejected = self._take_held(gang.config.group)
        return Effect(rejected=rejected, message=message, is_tired=is_tired)

    def _gone(self, gang: Gang | None) -> Effect:
        """Note that a pod that is no member any more lost its place."""
        if gang is None or gang.config.mode is not GangMode.STRICT or is_on_its_own(gang):
            return Effect()
        if not self._incomplete(gang.config):
            return Effect()
        message = f'Gang "{gang.gang_id}" gets rejected due to a pod that is gone'
        return Effect(rejected=self._take_held(gang.config.group), message=message)

    def is_released(self, pod: Pod) -> bool:
        """Return whether the pod is being bound together with its group."""
        gang = self.cache.get(gang_id_of(pod))
        return gang is not None and self.cache.is_current(pod) and uid_of(pod) in gang.group.binding

    def binding_mark(self, pod: Pod) -> tuple[str, int]:
        """Return the group that the pod is bound with, and how many of it; an empty id when it goes alone."""
        gang = self.cache.get(gang_id_of(pod))
        if gang is None:
            return "", 0
        binding = gang.group.binding
        if len(binding) < 2 or uid_of(pod) not in binding:
            return "", 0
        return gang.group.group_id, len(binding)

    def post_bind(self, pod: Pod) -> Effect:
        """Note that the pod was bound."""
        gang_id, key = gang_id_of(pod), pod.key
        gang = self.cache.get(gang_id)
        if gang is None or not self.cache.is_current(pod):
            return Effect()
        had_started = gang.group.once_satisfied
        self._take_one(gang_id, key)
        self.cache.bound(gang, key)
        return self._after_binding(gang, had_started=had_started)
