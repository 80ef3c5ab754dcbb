"""Decide the next step for one borrowed pod, from how it is in both clusters. Pure. Source: behaviour/tidal 5.

A pod is created in the lender at most once. Before that, the borrower's pod is marked (`LENT_AS`); a marked pod that is
not in the lender was there and is gone, unless we know for sure that no create of ours has reached the lender.
"""

import enum
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.virtual_node import status
from koordinator.virtual_node.objects import PodDocument


class Action(enum.Enum):
    """The one thing to be done."""

    NOTHING = "as it should be"
    ADMIT = "find a node of the lender for it, and create it there"
    MIRROR = "tell the borrower how it is"
    FAIL = "tell the borrower that it was reclaimed"
    DELETE = "delete it in the lender"
    FINISH = "let the borrower's pod go"


class Step(msgspec.Struct, frozen=True):
    """An action with what it needs: a status patch, a grace period in seconds, words."""

    action: Action
    patch: dict[str, Any] | None = None
    grace_s: int | None = None
    message: str = ""


NOTHING = Step(Action.NOTHING)


def next_step(borrowed: PodDocument | None, lent: PodDocument | None, *, is_unsent: bool) -> Step:
    """Return the next step; `borrowed` is None when the borrower has no such pod on the virtual node (any more),
    `is_unsent` when the lender has surely not heard of it yet."""
    if borrowed is None:
        return _orphan(lent)
    if borrowed.is_deleted:
        return _deleted(borrowed, lent)
    if borrowed.has_ended:
        if lent is None or lent.has_ended or lent.is_deleted:
            return NOTHING
        return Step(Action.DELETE, message="the borrower's pod has ended")
    if lent is not None and lent.is_deleted and lent.phase == "Failed":
        return Step(Action.FAIL)  # it failed because somebody in the lender wanted it away
    if lent is not None:
        return _mirror(borrowed, lent)
    is_marked = labels.LENT_AS in borrowed.metadata.annotations
    return Step(Action.FAIL) if is_marked and not is_unsent else Step(Action.ADMIT)


def _orphan(lent: PodDocument | None) -> Step:
    if lent is None or lent.is_deleted:
        return NOTHING
    return Step(Action.DELETE, message="the borrower has no such pod")


def _deleted(borrowed: PodDocument, lent: PodDocument | None) -> Step:
    """Somebody deleted the borrower's pod: as with a kubelet it goes when its containers have ended."""
    if lent is None:
        return Step(Action.FINISH)
    grace_s = borrowed.metadata.deletion_grace_period_seconds
    if lent.has_ended:
        grace_s = 0
    current_s = lent.metadata.deletion_grace_period_seconds
    is_shorter = grace_s is not None and current_s is not None and grace_s < current_s
    if not lent.is_deleted or is_shorter:
        return Step(Action.DELETE, grace_s=grace_s, message="the borrower's pod is deleted")
    return NOTHING if borrowed.has_ended else _mirror(borrowed, lent)


def _mirror(borrowed: PodDocument, lent: PodDocument) -> Step:
    patch = status.mirrored(borrowed, lent)
    return NOTHING if patch is None else Step(Action.MIRROR, patch=patch)
