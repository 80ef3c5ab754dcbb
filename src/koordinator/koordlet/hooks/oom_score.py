"""Which processes the kernel kills first: `oom_score_adj` of containers. Source: behaviour/koordlet-act 22."""

from collections.abc import Mapping

from koordinator.api.annotations import koordlet as annotations_of
from koordinator.api.annotations.koordlet import OOMScoreRangeError


def score(annotations: Mapping[str, str], container: str, obj: str = "") -> int | None:
    """What every process of the container gets, its own value before the pod's; None leaves them alone.

    A value out of range is left alone, too. Raises: ProtocolError when an annotation is malformed; a malformed
    list of containers hides the pod's value.
    """
    try:
        return annotations_of.oom_score_adj(annotations, container, obj)
    except OOMScoreRangeError:
        return None
