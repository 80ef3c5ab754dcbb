"""Which processes the kernel kills first: `oom_score_adj` of containers. Source: spec 11, section 22."""

from collections.abc import Mapping

from koordinator.api import labels, scalars
from koordinator.api.annotations.codec import Annotation
from koordinator.api.annotations.koordlet import OOM_SCORE_ADJ_MAX, OOM_SCORE_ADJ_MIN
from koordinator.api.errors import ProtocolError
from koordinator.api.scalars import ScalarError

_BY_CONTAINER = Annotation(labels.OOM_SCORE_ADJ_SPEC, dict[str, int])


def score(annotations: Mapping[str, str], container: str, obj: str = "") -> int | None:
    """What every process of the container gets, its own value before the pod's; None leaves them alone.

    A value out of range is left alone, too. Raises: ProtocolError when an annotation is malformed; a malformed
    list of containers hides the pod's value.
    """
    value = (_BY_CONTAINER.read(annotations, obj) or {}).get(container)
    text = annotations.get(labels.OOM_SCORE_ADJ)
    if value is None and text:
        try:
            value = scalars.parse_int(text)
        except ScalarError as error:
            raise ProtocolError(obj, labels.OOM_SCORE_ADJ, str(error)) from error
    if value is None or not OOM_SCORE_ADJ_MIN <= value <= OOM_SCORE_ADJ_MAX:
        return None
    return value
