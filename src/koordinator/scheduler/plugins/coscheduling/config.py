"""What a gang is told to be: by its PodGroup, or by the first of its pods that says so.

A malformed value never fails: it is as good as none. Source: spec 05, section 3.
"""

import enum
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from koordinator.api import gang_labels, labels
from koordinator.api.annotations import placement
from koordinator.api.annotations.placement import NetworkTopologySpec
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.gang_labels import GangMatchPolicy, GangMode
from koordinator.api.sigs import PodGroup

T = TypeVar("T")


class GangSource(enum.StrEnum):
    """Who configured a gang; the names that the debug API shows."""

    NOBODY = ""
    POD = "GangFromPodAnnotation"
    POD_GROUP = "GangFromPodGroupCrd"


class GangDefaults(msgspec.Struct, frozen=True):
    """What the plugin's arguments say where a gang does not."""

    timeout_s: float = 600.0
    match_policy: GangMatchPolicy = GangMatchPolicy.ONCE_SATISFIED


class GangConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a gang is scheduled. `source` is NOBODY until somebody has configured it."""

    source: GangSource = GangSource.NOBODY
    minimum: int = 0
    total: int = 0
    """How many members there will be; for information only."""
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
        """The name of the gang group."""
        return ",".join(self.group)


def gang_id_of(pod: Pod) -> str:
    """`namespace/name` of the pod's gang, empty for none."""
    meta = pod.metadata
    name = gang_labels.gang_name(meta.labels, meta.annotations)
    return f"{meta.namespace}/{name}" if name else ""


def unconfigured(gang_id: str) -> GangConfig:
    """A gang that is known by name only."""
    return GangConfig(group=(gang_id,))


def from_pod(pod: Pod, defaults: GangDefaults) -> GangConfig | None:
    """The gang as its pod describes it. None when the pod does not: it belongs to a PodGroup, or has no
    proper minimum."""
    meta = pod.metadata
    if meta.labels.get(labels.POD_GROUP):
        return None
    try:
        minimum = gang_labels.min_available(meta.labels, meta.annotations)
    except ProtocolError:
        return None
    wait_s = _or(0.0, gang_labels.waiting_time_s, meta.annotations)
    return _configured(
        GangSource.POD,
        gang_id_of(pod),
        meta.annotations,
        defaults,
        minimum=minimum,
        wait_s=wait_s,
        created=meta.creation_timestamp,
    )


def from_pod_group(group: PodGroup, defaults: GangDefaults) -> GangConfig:
    """The gang as its PodGroup describes it."""
    meta = group.metadata
    return _configured(
        GangSource.POD_GROUP,
        f"{meta.namespace}/{meta.name}",
        meta.annotations,
        defaults,
        minimum=group.spec.min_member,
        wait_s=float(group.spec.schedule_timeout_seconds or 0),
        created=meta.creation_timestamp,
    )


def _configured(
    source: GangSource,
    gang_id: str,
    annotations: Mapping[str, str],
    defaults: GangDefaults,
    *,
    minimum: int,
    wait_s: float,
    created: str | None,
) -> GangConfig:
    no_groups: list[str] = []
    return GangConfig(
        source=source,
        minimum=minimum,
        total=max(_or(0, gang_labels.total_number, annotations) or minimum, minimum),
        mode=gang_labels.mode(annotations),
        match_policy=_match_policy(annotations, defaults),
        wait_s=wait_s if wait_s > 0 else defaults.timeout_s,
        group=tuple(sorted(_or(no_groups, gang_labels.groups, annotations))) or (gang_id,),
        topology=_or(None, placement.NETWORK_TOPOLOGY_SPEC.read, annotations),
        created=created,
    )


def _match_policy(annotations: Mapping[str, str], defaults: GangDefaults) -> GangMatchPolicy:
    try:
        return GangMatchPolicy(gang_labels.match_policy(annotations))
    except ValueError:
        return defaults.match_policy


def _or(default: T, read: Callable[[Mapping[str, str]], T], annotations: Mapping[str, str]) -> T:
    """What is written, the default where it is malformed."""
    try:
        return read(annotations)
    except ProtocolError:
        return default
