"""Decide how many pods of a workload may move at once. Pure. Source: behaviour/descheduler 8.4."""

from koordinator.api.errors import ProtocolError
from koordinator.api.scalars import ScalarError, parse_int
from koordinator.api.schema import IntOrString


def limit(replicas: int, given: IntOrString | None, field: str = "") -> int:
    """The limit for a workload of `replicas` pods: an integer, a percentage, or None for the default rule.

    Raises: ProtocolError for a text that is no percentage.
    """
    if given is None:
        found = replicas * 10 // 100 if replicas > 10 else 2 if replicas >= 4 else 1
    else:
        found = (given if isinstance(given, int) else percent(given, field) * replicas // 100) or 1
    return min(found, replicas)


def percent(text: str, field: str = "") -> int:
    """The N of `N%`. Raises: ProtocolError."""
    try:
        if not text.endswith("%"):
            raise ScalarError(text, "an integer or a percentage like 10%")
        return parse_int(text[:-1], 32)
    except ScalarError as error:
        raise ProtocolError("", field, str(error)) from error
