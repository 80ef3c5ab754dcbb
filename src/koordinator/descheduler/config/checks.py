"""Checks that several argument kinds share; each raises ProtocolError naming the field."""

from collections.abc import Iterable

from koordinator.api import duration
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import compile_selector
from koordinator.api.scalars import ScalarError
from koordinator.descheduler.pod_filter import PodSelector


def require(holds: bool, field: str, reason: str) -> None:
    """Raises: ProtocolError that names the field, unless it `holds`."""
    if not holds:
        raise ProtocolError("", field, reason)


def seconds(text: str, field: str) -> float:
    """Return the duration that `text` says, in seconds. Raises: ProtocolError when it says none."""
    try:
        return duration.parse(text)
    except ScalarError as error:
        raise ProtocolError("", field, str(error)) from error


def selector(found: LabelSelector | None, field: str) -> None:
    """Raises: ProtocolError when there is a selector that cannot be compiled."""
    if found is not None:
        try:
            compile_selector(found)
        except ProtocolError as error:
            raise ProtocolError("", field, error.reason) from error


def pod_selectors(found: Iterable[PodSelector]) -> None:
    """Raises: ProtocolError that names the first selector that cannot be compiled."""
    for index, one in enumerate(found):
        selector(one.selector, f"podSelectors[{index}].selector")
