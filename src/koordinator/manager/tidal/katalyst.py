"""Read what Katalyst's tide controller said of nodes, and say in its words what ours does with them. Pure.

Labels that pods select by stay true while they are kept. Its taints go: they evict at once, without asking a
disruption budget. Source: behaviour/tidal 2 and 3.1.
"""

from collections.abc import Mapping

from koordinator.api import labels
from koordinator.manager.tidal.nodes import Side, TidalPhase

_LABELS = (
    labels.KATALYST_NODE_POOL,
    labels.KATALYST_NODE_TYPE,
    labels.KATALYST_RESERVE,
    labels.KATALYST_TIDE,
)
TAINTS = (labels.KATALYST_ONLINE_NOT_USED, labels.KATALYST_OFFLINE_NOT_USED)
_ONLINE, _OFFLINE, _TRUE = "online", "offline", "true"


def phase_of(said: Mapping[str, str]) -> TidalPhase:
    """Return the phase of a node by its labels from there."""
    is_offline = said.get(labels.KATALYST_NODE_TYPE) == _OFFLINE
    return TidalPhase.BATCH if is_offline else TidalPhase.ONLINE


def reserve_of(said: Mapping[str, str]) -> Side | None:
    """Return the side that a node is reserved for by its labels from there."""
    if said.get(labels.KATALYST_RESERVE) != _TRUE:
        return None
    return Side.BATCH if phase_of(said) is TidalPhase.BATCH else Side.ONLINE


def changes(
    seen: Mapping[str, str], pool: str, phase: TidalPhase, reserve: Side | None
) -> dict[str, str | None]:
    """Return the labels to change so that a node says the same there. It is offline while it is lent; on its way it
    gets no new batch pods."""
    wanted = {
        labels.KATALYST_NODE_POOL: pool,
        labels.KATALYST_NODE_TYPE: _OFFLINE if phase is TidalPhase.BATCH else _ONLINE,
        labels.KATALYST_RESERVE: "false" if reserve is None else _TRUE,
    }
    if reserve is None:
        wanted[labels.KATALYST_TIDE] = _TRUE
    return {key: wanted.get(key) for key in _LABELS if wanted.get(key) != seen.get(key)}


def removals(seen: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that take all its labels off a node."""
    return {key: None for key in _LABELS if key in seen}
