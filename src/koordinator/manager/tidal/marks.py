"""Read the marks of tidal pools on nodes, and make the patch that brings them about. Source: behaviour/tidal 3.1.

A node's phase is what its label says; every change of it is one patch with all marks, for the version that was seen.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import labels
from koordinator.api.affinity import Taint
from koordinator.api.core import Node
from koordinator.api.tolerations import NO_SCHEDULE
from koordinator.manager.tidal import katalyst
from koordinator.manager.tidal.nodes import Side, TidalPhase

_LABELS = (labels.TIDAL_POOL, labels.TIDAL_PHASE, labels.TIDAL_RESERVE)
_ANNOTATIONS = (
    labels.TIDAL_SINCE,
    labels.TIDAL_REASON,
    labels.TIDAL_BLOCKED_UNTIL,
    labels.TIDAL_RETURN_AT,
    labels.TIDAL_KATALYST,
)
TAINTS = (labels.TIDAL_BATCH_PHASE_TAINT, labels.TIDAL_ONLINE_PHASE_TAINT)
_TAINT_OF = {
    TidalPhase.TO_BATCH: labels.TIDAL_BATCH_PHASE_TAINT,
    TidalPhase.BATCH: labels.TIDAL_BATCH_PHASE_TAINT,
    TidalPhase.TO_ONLINE: labels.TIDAL_ONLINE_PHASE_TAINT,
}
_LENT = (TidalPhase.TO_BATCH, TidalPhase.BATCH)
_PHASES = {phase.value: phase for phase in TidalPhase}
_SIDES = {side.value: side for side in Side}


class NodeMarks(msgspec.Struct, frozen=True, kw_only=True):
    """All that we say on a node; `pool` is empty on a node without marks, `return_at_s` 0 unless it returns.

    `has_katalyst`: it says the same by Katalyst's labels.
    """

    pool: str = ""
    phase: TidalPhase = TidalPhase.ONLINE
    since_s: float = 0.0
    reserve: Side | None = None
    reason: str = ""
    blocked_until_s: float = 0.0
    return_at_s: float = 0.0
    has_katalyst: bool = False

    @classmethod
    def of(cls, node: Node) -> "NodeMarks":
        """Return what a node says; a text that cannot be read counts as none."""
        said, notes = node.metadata.labels, node.metadata.annotations
        return cls(
            pool=said.get(labels.TIDAL_POOL, ""),
            phase=_PHASES.get(said.get(labels.TIDAL_PHASE, ""), TidalPhase.ONLINE),
            since_s=clock.parse_rfc3339_or(notes.get(labels.TIDAL_SINCE), 0.0),
            reserve=_SIDES.get(said.get(labels.TIDAL_RESERVE, "")),
            reason=notes.get(labels.TIDAL_REASON, ""),
            blocked_until_s=clock.parse_rfc3339_or(notes.get(labels.TIDAL_BLOCKED_UNTIL), 0.0),
            return_at_s=clock.parse_rfc3339_or(notes.get(labels.TIDAL_RETURN_AT), 0.0),
            has_katalyst=labels.TIDAL_KATALYST in notes,
        )

    @classmethod
    def adopted(cls, node: Node) -> "NodeMarks":
        """Return what a node says, by Katalyst's labels where it bears no phase of ours."""
        marks, said = cls.of(node), node.metadata.labels
        if labels.TIDAL_PHASE in said:
            return marks
        phase, reserve = katalyst.phase_of(said), katalyst.reserve_of(said)
        return msgspec.structs.replace(marks, phase=phase, reserve=reserve)


def patch(node: Node, wanted: NodeMarks | None) -> dict[str, Any] | None:
    """Return the merge patch after which a node says what is wanted, nothing at all for None; None when it
    does already. The patch holds for the version that was seen only."""
    wanted_labels, wanted_notes = _texts(wanted)
    seen_labels, seen_notes = node.metadata.labels, node.metadata.annotations
    changed_labels = {
        key: wanted_labels.get(key) for key in _LABELS if wanted_labels.get(key) != seen_labels.get(key)
    }
    if wanted is not None and wanted.has_katalyst:
        changed_labels |= katalyst.changes(seen_labels, wanted.pool, wanted.phase, wanted.reserve)
    elif labels.TIDAL_KATALYST in seen_notes:
        changed_labels |= katalyst.removals(seen_labels)
    changed_notes = {
        key: wanted_notes.get(key) for key in _ANNOTATIONS if wanted_notes.get(key) != seen_notes.get(key)
    } | _autoscaler_notes(seen_notes, wanted)
    taints = _with_taint(node.spec.taints, wanted)
    if not (changed_labels or changed_notes) and taints is None:
        return None
    metadata: dict[str, Any] = {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}
    if changed_labels:
        metadata["labels"] = changed_labels
    if changed_notes:
        metadata["annotations"] = changed_notes
    return {"metadata": metadata, **({"spec": {"taints": taints}} if taints is not None else {})}


def _texts(wanted: NodeMarks | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations."""
    if wanted is None:
        return {}, {}
    said = {labels.TIDAL_POOL: wanted.pool, labels.TIDAL_PHASE: wanted.phase.value}
    if wanted.reserve is not None:
        said[labels.TIDAL_RESERVE] = wanted.reserve.value
    notes = {labels.TIDAL_SINCE: clock.rfc3339(wanted.since_s)}
    if wanted.reason:
        notes[labels.TIDAL_REASON] = wanted.reason
    if wanted.blocked_until_s:
        notes[labels.TIDAL_BLOCKED_UNTIL] = clock.rfc3339(wanted.blocked_until_s)
    if wanted.return_at_s:
        notes[labels.TIDAL_RETURN_AT] = clock.rfc3339(wanted.return_at_s)
    if wanted.has_katalyst:
        notes[labels.TIDAL_KATALYST] = "true"
    return said, notes


def _autoscaler_notes(seen: Mapping[str, str], wanted: NodeMarks | None) -> dict[str, str | None]:
    """Return the changes that keep the cluster autoscaler from removing a lent node, which looks unused to it. A text
    that somebody else has set stays."""
    is_ours = labels.TIDAL_KEPT_BY in seen
    if wanted is not None and wanted.phase in _LENT:
        is_free = not is_ours and labels.SCALE_DOWN_DISABLED not in seen
        return {labels.SCALE_DOWN_DISABLED: "true", labels.TIDAL_KEPT_BY: wanted.pool} if is_free else {}
    return {labels.SCALE_DOWN_DISABLED: None, labels.TIDAL_KEPT_BY: None} if is_ours else {}


def _with_taint(seen: list[Taint], marks: NodeMarks | None) -> list[dict[str, Any]] | None:
    """Return all taints after which only that of the phase is ours, and none is Katalyst's on a node that was adopted;
    None when that is so already. API servers replace the list as a whole, which the version that the patch is for
    makes safe."""
    wanted = _TAINT_OF.get(marks.phase) if marks is not None else None
    known = (*TAINTS, *katalyst.TAINTS) if marks is not None and marks.has_katalyst else TAINTS
    ours = [(taint.key, taint.effect) for taint in seen if taint.key in known]
    if ours == ([] if wanted is None else [(wanted, NO_SCHEDULE)]):
        return None
    kept: list[dict[str, Any]] = [msgspec.to_builtins(taint) for taint in seen if taint.key not in known]
    return kept if wanted is None else [*kept, {"key": wanted, "effect": NO_SCHEDULE}]
