"""Serve what the scheduler's own API tells of gangs. Source: behaviour/gangs 18."""

from collections.abc import Iterable
from typing import Any

from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiRequest, Endpoint
from koordinator.scheduler.plugins.coscheduling.gangs import Gang, GangCache, GangGroup

NANOS = 1_000_000_000
NEVER = "0001-01-01T00:00:00Z"
"""How upstream writes a time that is not set."""


def endpoints(cache: GangCache) -> tuple[Endpoint, ...]:
    """`GET gang/{namespace}/{name}`, and `GET gangs`: all by their ids."""

    def one(request: ApiRequest) -> ApiAnswer:
        gang_id = f"{request.path['namespace']}/{request.path['name']}"
        gang = cache.get(gang_id)
        if gang is None:
            return ApiAnswer(f"cannot find gang {gang_id}", 404)
        return ApiAnswer(described(gang))

    def many(_: ApiRequest) -> ApiAnswer:
        return ApiAnswer({gang_id: described(gang) for gang_id, gang in sorted(cache.gangs().items())})

    return Endpoint("gang/{namespace}/{name}", one), Endpoint("gangs", many)


def described(gang: Gang) -> dict[str, Any]:
    """Return a gang as it stands, with the field names of upstream; sets are objects with empty values."""
    config = gang.config
    return {
        "name": gang.gang_id,
        "waitTime": round(config.wait_s * NANOS),
        "createTime": config.created or NEVER,
        "mode": config.mode.value,
        "gangMatchPolicy": config.match_policy.value,
        "minRequiredNumber": config.minimum,
        "totalChildrenNum": config.total,
        "gangGroup": list(config.group),
        "children": _set(gang.children),
        "pendingChildren": _set(gang.pending),
        "waitingForBindChildren": _set(gang.waiting),
        "boundChildren": _set(gang.bound),
        "onceResourceSatisfied": gang.group.once_satisfied,
        "gangGroupInfo": _described_group(gang.group, is_initialised=config.is_initialised),
        "gangFrom": config.source.value,
        "hasGangInit": config.is_initialised,
    }


def _described_group(group: GangGroup, *, is_initialised: bool) -> dict[str, Any]:
    return {
        "Initialized": is_initialised,
        "GangGroupId": group.group_id,
        "GangGroup": list(group.ids),
        "OnceResourceSatisfied": group.once_satisfied,
        "WaitingGangIDs": _set(group.waiting_gangs),
        "RepresentativePodKey": group.representative,
        "BindingMemberPods": _set(group.binding),
    }


def _set(members: Iterable[str]) -> dict[str, dict[str, str]]:
    return {key: {} for key in sorted(members)}
