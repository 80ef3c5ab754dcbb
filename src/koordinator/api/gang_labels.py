"""Labels and annotations that make pods a gang. Source: behaviour/api 6.8."""

import enum
from collections.abc import Mapping

from koordinator.api import duration, labels, scalars
from koordinator.api.annotations.codec import Annotation, Empty
from koordinator.api.errors import ProtocolError
from koordinator.api.labels import parse_int32, parsed, read

NO_INDEX = -1
"""The network-topology index of a pod that has none."""


class GangMode(enum.StrEnum):
    """The choice whether placed members are given back when the gang cannot be completed."""

    STRICT = "Strict"
    NON_STRICT = "NonStrict"


class GangMatchPolicy(enum.StrEnum):
    """The members that count towards the minimum."""

    ONLY_WAITING = "only-waiting"
    WAITING_AND_RUNNING = "waiting-and-running"
    ONCE_SATISFIED = "once-satisfied"


_GROUPS = Annotation(labels.GANG_GROUPS, list[str], empty=Empty.ABSENT)


def gang_name(pod_labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return the gang that a pod belongs to, empty for none."""
    return (
        pod_labels.get(labels.POD_GROUP)
        or pod_labels.get(labels.DEPRECATED_POD_GROUP)
        or annotations.get(labels.GANG_NAME, "")
    )


def min_available(pod_labels: Mapping[str, str], annotations: Mapping[str, str], obj: str = "") -> int:
    """Return the least number of members that must run together; the deprecated label comes first.

    Raises: ProtocolError when absent or malformed: no gang comes from this pod.
    """
    if old := pod_labels.get(labels.DEPRECATED_POD_GROUP_MIN_AVAILABLE):
        return parsed(old, labels.DEPRECATED_POD_GROUP_MIN_AVAILABLE, parse_int32, obj)
    text = annotations.get(labels.GANG_MIN_AVAILABLE)
    if text is None:
        raise ProtocolError(obj, labels.GANG_MIN_AVAILABLE, "missing")
    return parsed(text, labels.GANG_MIN_AVAILABLE, parse_int32, obj)


def total_number(annotations: Mapping[str, str], obj: str = "") -> int:
    """Return how many members the gang will have, 0 when not stated. Raises: ProtocolError when malformed."""
    text = annotations.get(labels.GANG_TOTAL_NUMBER)
    return parsed(text, labels.GANG_TOTAL_NUMBER, parse_int32, obj) if text else 0


def mode(annotations: Mapping[str, str]) -> GangMode:
    """Strict unless said otherwise."""
    is_lenient = annotations.get(labels.GANG_MODE) == GangMode.NON_STRICT
    return GangMode.NON_STRICT if is_lenient else GangMode.STRICT


def waiting_time_s(annotations: Mapping[str, str], obj: str = "") -> float:
    """Return how long members wait for each other, 0 when not stated. Raises: ProtocolError when malformed."""
    text = annotations.get(labels.GANG_WAITING_TIME)
    return parsed(text, labels.GANG_WAITING_TIME, duration.parse, obj) if text else 0.0


def groups(annotations: Mapping[str, str], obj: str = "") -> list[str]:
    """Return the gangs (`namespace/name`) that are placed together with this one; empty when not said.

    Raises: ProtocolError when malformed.
    """
    return _GROUPS.read(annotations, obj) or []


def match_policy(annotations: Mapping[str, str]) -> str:
    """Return the match policy's text under its own or its other key, empty when not said; unknown text is kept."""
    return annotations.get(labels.GANG_MATCH_POLICY) or annotations.get(labels.GANG_MATCH_POLICY_ALIAS, "")


def network_topology_index(annotations: Mapping[str, str]) -> int:
    """Return where in the network the member belongs, relative to the others; `NO_INDEX` when absent.

    Raises: ProtocolError when malformed.
    """
    return read(annotations, labels.GANG_NETWORK_TOPOLOGY_INDEX, scalars.parse_int, NO_INDEX)


def topology_order(name: str, annotations: Mapping[str, str]) -> tuple[bool, int, str]:
    """Return a sort key for gang members: those with an index first, by it, then by name.

    Only indices from 0 on count.
    """
    try:
        index = network_topology_index(annotations)
    except ProtocolError:
        index = NO_INDEX
    return (index < 0, max(index, NO_INDEX), name)
