"""Read what a gang is told to be: by its PodGroup, or by the first of its pods that says so.

A malformed value never fails: it is as good as none. Source: behaviour/gangs 3.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from koordinator.api import gang_labels, labels, pod_labels
from koordinator.api.annotations import placement
from koordinator.api.annotations.placement import NetworkTopologySpec
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.gang_labels import GangMatchPolicy, GangMode
from koordinator.api.meta import ObjectMeta
from koordinator.api.sigs import PodGroup
from koordinator.scheduler.plugins.network_topology.placement import MUST_GATHER, PREFER_GATHER

T = TypeVar("T")
GATHER_STRATEGIES = (MUST_GATHER, PREFER_GATHER)


class GangSource(enum.StrEnum):
    """The object that configured a gang; the names that the debug API shows."""

    NOBODY = ""
    POD = "GangFromPodAnnotation"
    POD_GROUP = "GangFromPodGroupCrd"


class GangDefaults(msgspec.Struct, frozen=True):
    """The plugin's arguments for gangs that say nothing themselves."""

    timeout_s: float = 600.0
    match_policy: GangMatchPolicy = GangMatchPolicy.ONCE_SATISFIED


class GangConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for scheduling a gang. `source` is NOBODY until somebody has configured it."""

    source: GangSource = GangSource.NOBODY
    minimum: int = 0
    total: int = 0
    """Number of members that there will be; for information only."""
    mode: GangMode = GangMode.STRICT
    match_policy: GangMatchPolicy = GangMatchPolicy.ONCE_SATISFIED
    wait_s: float = 0.0
    group: tuple[str, ...]
    """Ids of the gangs that are placed together, sorted."""
    topology: NetworkTopologySpec | None = None
    created: str | None = None

    @property
    def is_initialised(self) -> bool:
        return self.source is not GangSource.NOBODY

    @property
    def group_id(self) -> str:
        """Return the name of the gang group."""
        return ",".join(self.group)


OF_RESERVATIONS = "/reservations"
"""Ends the id of a gang of reserve pods; no name has a slash."""


def gang_id_of(pod: Pod) -> str:
    """`namespace/name` of the pod's gang, empty for none. Reservations for a gang are a gang of their own."""
    meta = pod.metadata
    name = gang_labels.gang_name(meta.labels, meta.annotations)
    gang_id = f"{meta.namespace}/{name}" if name else ""
    if not gang_id or not pod_labels.is_reserve_pod(meta.annotations):
        return gang_id
    # What the descheduler reserves is for one member of a gang that runs: its move waits for no others.
    is_for_move = meta.labels.get(labels.CREATED_BY) == labels.DESCHEDULER
    return "" if is_for_move else gang_id + OF_RESERVATIONS


def is_of_reservations(gang_id: str) -> bool:
    """Return whether the members of a gang are reserve pods."""
    return gang_id.endswith(OF_RESERVATIONS)


def for_reservations(group: PodGroup) -> PodGroup:
    """Return a PodGroup as it describes the Reservations for its gang."""
    named = msgspec.structs.replace(group.metadata, name=group.metadata.name + OF_RESERVATIONS)
    return msgspec.structs.replace(group, metadata=named)


def from_pod(pod: Pod, defaults: GangDefaults) -> GangConfig | None:
    """Return the gang as its pod describes it. None when the pod does not: it belongs to a PodGroup, or has no proper
    minimum."""
    meta = pod.metadata
    if meta.labels.get(labels.POD_GROUP):
        return None
    try:
        minimum = gang_labels.min_available(meta.labels, meta.annotations)
    except ProtocolError:
        return None
    wait_s = _or(0.0, gang_labels.waiting_time_s, meta.annotations)
    return _configured(GangSource.POD, gang_id_of(pod), meta, defaults, minimum=minimum, wait_s=wait_s)


def from_pod_group(group: PodGroup, defaults: GangDefaults) -> GangConfig:
    """Return the gang as its PodGroup describes it."""
    return _configured(
        GangSource.POD_GROUP,
        group.key,
        group.metadata,
        defaults,
        minimum=group.spec.min_member,
        wait_s=float(group.spec.schedule_timeout_seconds or 0),
    )


def problems_of(pod: Pod) -> tuple[str, ...]:
    """Return what is wrong in the description of a gang that a pod gives, and what follows. Nothing for a pod whose
    gang a PodGroup describes."""
    meta = pod.metadata
    if meta.labels.get(labels.POD_GROUP) or not gang_id_of(pod):
        return ()
    found = [] if from_pod(pod, GangDefaults()) is not None else [_problem_of_minimum(pod)]
    checks = (*_CHECKS, (gang_labels.waiting_time_s, "the scheduler's default counts"))
    return (*found, *_problems(gang_id_of(pod), meta.annotations, checks))


NO_MINIMUM = "is no minimum: members are placed one by one, as pods without a gang are"


def problems_of_group(group: PodGroup) -> tuple[str, ...]:
    """Return the same for a PodGroup."""
    minimum = group.spec.min_member
    found = [] if minimum > 0 else [f"spec.minMember: {minimum} {NO_MINIMUM}"]
    return (*found, *_problems(group.key, group.metadata.annotations, _CHECKS))


def _problem_of_minimum(pod: Pod) -> str:
    meta = pod.metadata
    problem = _objection(lambda own: gang_labels.min_available(meta.labels, own), meta.annotations)
    return f"{problem}: the members of gang {gang_id_of(pod)} wait until a pod or a PodGroup says how many it needs"


def _check_policy(annotations: Mapping[str, str]) -> None:
    own = annotations.get(labels.GANG_MATCH_POLICY)
    key = labels.GANG_MATCH_POLICY if own else labels.GANG_MATCH_POLICY_ALIAS
    _check_word(annotations, key, tuple(GangMatchPolicy))


def _check_word(annotations: Mapping[str, str], key: str, words: tuple[str, ...]) -> None:
    text = annotations.get(key)
    if text and text not in words:
        raise ProtocolError("", key, f"{text[:80]!r} is none of {', '.join(words)}")


Check = tuple[Callable[[Mapping[str, str]], object], str]
"""Raises ProtocolError when an annotation is malformed, and what then follows."""

_CHECKS: tuple[Check, ...] = (
    (gang_labels.total_number, "the minimum counts"),
    (lambda own: _check_word(own, labels.GANG_MODE, tuple(GangMode)), "Strict counts"),
    (_check_policy, "the scheduler's default counts"),
    (gang_labels.groups, "the gang is placed by itself"),
    (placement.NETWORK_TOPOLOGY_SPEC.read, "the gang is placed without regard to the network"),
)


def _problems(gang_id: str, annotations: Mapping[str, str], checks: Iterable[Check]) -> Iterator[str]:
    for check, consequence in checks:
        if problem := _objection(check, annotations):
            yield f"{problem}: {consequence}"
    spec = _or(None, placement.NETWORK_TOPOLOGY_SPEC.read, annotations)
    for rule in spec.gather_strategy if spec is not None else ():
        if rule.strategy not in GATHER_STRATEGIES:
            words = f"{rule.strategy[:80]!r} is none of {', '.join(GATHER_STRATEGIES)}"
            where = f"annotation {labels.GANG_NETWORK_TOPOLOGY_SPEC}: strategy of {rule.layer}"
            yield f"{where}: {words}: the rule does not count"
    group = _or(list[str](), gang_labels.groups, annotations)
    if malformed := [each for each in group if each.count("/") != 1]:
        names = ", ".join(map(repr, malformed))
        yield f"annotation {labels.GANG_GROUPS}: {names} names no gang (namespace/name): the group never gets complete"
    elif group and gang_id not in group:
        yield f"annotation {labels.GANG_GROUPS}: gang {gang_id} itself is missing: it waits for the others, they do not"


def _objection(check: Callable[[Mapping[str, str]], object], annotations: Mapping[str, str]) -> str:
    try:
        check(annotations)
    except ProtocolError as error:
        return f"annotation {error.field}: {error.reason}"
    return ""


def _configured(
    source: GangSource, gang_id: str, meta: ObjectMeta, defaults: GangDefaults, *, minimum: int, wait_s: float
) -> GangConfig:
    annotations, no_groups = meta.annotations, list[str]()
    suffix = OF_RESERVATIONS if is_of_reservations(gang_id) else ""
    return GangConfig(
        source=source,
        minimum=minimum,
        total=max(_or(0, gang_labels.total_number, annotations) or minimum, minimum),
        mode=gang_labels.mode(annotations),
        match_policy=_match_policy(annotations, defaults),
        wait_s=wait_s if wait_s > 0 else defaults.timeout_s,
        group=tuple(sorted(each + suffix for each in _or(no_groups, gang_labels.groups, annotations)))
        or (gang_id,),
        topology=_or(None, placement.NETWORK_TOPOLOGY_SPEC.read, annotations),
        created=meta.creation_timestamp,
    )


def _match_policy(annotations: Mapping[str, str], defaults: GangDefaults) -> GangMatchPolicy:
    try:
        return GangMatchPolicy(gang_labels.match_policy(annotations))
    except ValueError:
        return defaults.match_policy


def _or(default: T, read: Callable[[Mapping[str, str]], T], annotations: Mapping[str, str]) -> T:
    """Return the written value, the default where it is malformed."""
    try:
        return read(annotations)
    except ProtocolError:
        return default
