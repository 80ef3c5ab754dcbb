"""A gang group as a plan of all its members, to be placed in one cycle (gate EnableInlineBatchSchedule).

Where each member goes is left to the engine. All gangs of the group need their minimum; members beyond it are
placed as far as there is room.
"""

from koordinator.scheduler.plugin.capabilities import Plan, Quorum
from koordinator.scheduler.plugins.coscheduling.gangs import key_of
from koordinator.scheduler.plugins.coscheduling.running import RunningGangs
from koordinator.scheduler.table.pod_info import PodInfo


def whole_group(gangs: RunningGangs, pod: PodInfo, *, falls_back: bool = False) -> Plan | None:
    """All members that have no place, the pod first, then in the order of a round. None unless the pod starts a round,
    and for groups that cannot be planned: those of a topology have planners of their own, and members of several
    schedulers or profiles are tried one by one."""
    key, now, group = key_of(pod.pod), gangs.round_of(pod.pod), gangs.group_of(pod.pod)
    if now is None or group is None or now.first != key or now.failure:
        return None
    members, quorums = [pod], []
    for gang in gangs.rounds.cache.members_of(group):
        if gang.config.topology is not None:
            return None
        found = [info for each in sorted(gang.startable()) if (info := gangs.info(each)) is not None]
        if any(info.pod.spec.scheduler_name != pod.pod.spec.scheduler_name for info in found):
            return None
        members += [info for info in found if info.uid != pod.uid]
        quorums.append(Quorum(frozenset(info.uid for info in found), max(0, gangs.rounds.lacking(gang))))
    if len(members) == 1:
        return None
    return Plan(tuple(members), quorums=tuple(quorums), falls_back=falls_back)
