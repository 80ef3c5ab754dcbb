"""Decide what YARN is believed to use when its reports are missing. Pure. Source: behaviour/yarn 6.

A lost NodeManager may still have running containers (a work-preserving restart keeps them): calling their room
free at once would let Kubernetes over-book the node.
"""

import msgspec

from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.node_sync import NodeManagerReport

HOLD_S = 600.0
"""Default of `--nm-lost-hold`, the same as the ResourceManager's own expiry of NodeManagers."""

_KNOWN_STATES = ("RUNNING", "DECOMMISSIONING")


class Held(msgspec.Struct, frozen=True):
    """The last good figure of a NodeManager, and when it was read (seconds since 1970)."""

    used: YarnResource
    at_s: float


class Belief(msgspec.Struct, frozen=True):
    """The figures to count with; `used` None: nothing is known, so nothing may be written."""

    used: YarnResource | None
    held: Held | None
    reason: str


def believe(
    report: NodeManagerReport | None,
    held: Held | None,
    has_polled: bool,
    now_s: float,
    hold_s: float = HOLD_S,
) -> Belief:
    """Return what a NodeManager uses, from its report if it has one, else from memory for `hold_s` seconds.

    `has_polled` tells whether this cluster's reports were read at all since the operator started.
    """
    if not has_polled:
        return Belief(held.used if held is not None else None, held, "no report of this cluster was read yet")
    if report is not None and report.state in _KNOWN_STATES:
        used = report.used or YarnResource()
        return Belief(used, Held(used, now_s), f"the NodeManager is {report.state}")
    state = report.state if report is not None else "not reported"
    if held is not None and now_s - held.at_s < hold_s:
        return Belief(held.used, held, f"the NodeManager is {state}: its last figure is held")
    return Belief(YarnResource(), None, f"the NodeManager is {state} for longer than {hold_s:g} s")


def may_raise_total(report: NodeManagerReport | None) -> bool:
    """Return whether a NodeManager may be given more than it has: not one that is leaving."""
    return report is None or report.state != "DECOMMISSIONING"
