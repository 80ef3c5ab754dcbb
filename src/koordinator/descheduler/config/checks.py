"""Members and checks that several argument kinds share; each check raises ProtocolError naming the field."""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from koordinator.api import duration
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import compile_selector
from koordinator.api.meta import ViewPart
from koordinator.api.scalars import ScalarError
from koordinator.descheduler.pod_filter import Namespaces, PodSelector, check_namespaces

NonNegative = Annotated[int, msgspec.Meta(ge=0)]


class NodePluginArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The nodes and pods that a plugin looks at."""

    paused: bool = False
    node_selector: LabelSelector | None = None
    pod_selectors: list[PodSelector] = []
    evictable_namespaces: Namespaces | None = None


class MovingArgs(NodePluginArgs, frozen=True, kw_only=True):
    """The same, for a plugin that moves pods to other nodes."""

    dry_run: bool = False
    node_fit: bool = True


def check_selected(args: NodePluginArgs) -> None:
    """Raises: ProtocolError for what cannot be read of nodes and pods."""
    check_namespaces(args.evictable_namespaces, "evictableNamespaces")
    pod_selectors(args.pod_selectors)
    selector(args.node_selector, "nodeSelector")


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
