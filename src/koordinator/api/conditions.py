"""Entries of `status.conditions`."""

from typing import Annotated

from koordinator.api.meta import ViewPart
from koordinator.api.schema import DATE_TIME, REQUIRED, always, at_least, limits, one_of


class Condition(ViewPart, frozen=True, kw_only=True):
    """A condition as built-in kinds have it; `status` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_probe_time: str | None = None
    last_heartbeat_time: str | None = None
    last_update_time: str | None = None
    observed_generation: int = 0


class StandardCondition(ViewPart, frozen=True, kw_only=True):
    """A condition in the form that Kubernetes recommends for custom resources."""

    type: Annotated[
        str,
        REQUIRED,
        limits(
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
        "What the condition is about, in CamelCase or as domain/CamelCase.",
    ] = always("")
    status: Annotated[str, REQUIRED, one_of("True", "False", "Unknown"), "Whether it holds."] = always("")
    reason: Annotated[
        str,
        REQUIRED,
        limits(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
        "Why it last changed, one CamelCase word for programs.",
    ] = always("")
    message: Annotated[str, REQUIRED, limits(max_length=32768), "The same for people; may be empty."] = (
        always("")
    )
    last_transition_time: Annotated[
        str, REQUIRED, DATE_TIME, "When the status last went from one value to another."
    ] = always("")
    observed_generation: Annotated[
        int, at_least(0), "The metadata.generation for which the condition was found."
    ] = 0
