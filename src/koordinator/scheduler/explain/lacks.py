"""What a pod lacks on the nodes, in a few words."""

from collections import Counter

import numpy as np

from koordinator.api import resource_vector
from koordinator.scheduler.explain.quotas import explain_quota, refused_by_quota
from koordinator.scheduler.explain.remedies import wanted_amounts
from koordinator.scheduler.explain.survey import Survey, reasons
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.table.columns import Rows

FIT = "NodeResourcesFit"
TOLD_MAX = 3


def lacks(found: Survey, status: Status, rows: Rows | None = None, where: str = "") -> str:
    """`lacks 2 nvidia.com/gpu on every node in SpineLayer spine-3`, or the reasons with their nodes.

    `status` is what the scheduler says, `rows` are the nodes in question (None: all), `where` says which these are. To
    be put behind the pod's name.
    """
    if refused_by_quota(status) and (quota := explain_quota(found.profile, found.pod)) is not None:
        return f"finds its quota full: {quota.sentence}"
    if not found.evaluation.status.is_success:
        return f"is refused: {status.message}" if status.message else f"is refused by {status.plugin}"
    inside = np.ones(found.rows.size, np.bool_) if rows is None else np.isin(found.rows, rows)
    count = int(inside.sum())
    place = f" in {where}" if where else ""
    if short := _short(found, inside):
        return f"lacks {short} on every node{place}" if count > 1 else f"lacks {short}{place}"
    parts = [f"{number} {reason}" for reason, number in _counts(found, inside)]
    more = f", and {len(parts) - TOLD_MAX} more reasons" if len(parts) > TOLD_MAX else ""
    return f"finds no place on any of {count} nodes{place}: {', '.join(parts[:TOLD_MAX])}{more}"


def _short(found: Survey, inside: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> str:
    """The one resource that all nodes are too full for, with what the freest of them lacks; else nothing."""
    index = next((i for i, each in enumerate(found.filters) if each.name == FIT), None)
    if index is None or not inside.any():
        return ""
    refused = found.refused[:, inside]
    if not refused[index].all() or (refused.sum(axis=0) > 1).any():
        return ""
    table = found.engine.table
    if (found.free_pods[inside] <= 0).any():
        return ""
    wanted = wanted_amounts(found)
    columns = list(wanted)
    free = found.free(columns)[:, inside]
    lacking = np.maximum(np.array(list(wanted.values()))[:, np.newaxis] - free, 0)
    short = lacking > 0
    if short.any(axis=1).sum() != 1:
        return ""
    column = int(np.flatnonzero(short.any(axis=1))[0])
    name = table.registry.names[columns[column]]
    amounts = lacking[column]
    least = resource_vector.readable_lot(name, int(amounts.min()))
    at_least = "" if amounts.min() == amounts.max() else "at least "
    return f"{at_least}{least}"


def _counts(found: Survey, inside: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[tuple[str, int]]:
    """Nodes in question per reason, most first."""
    if inside.all():
        return [(each.reason, each.node_count) for each in reasons(found)]
    counts: Counter[str] = Counter()
    for index in range(len(found.filters)):
        codes = found.codes[index, inside]
        for code in np.unique(codes[codes != 0]).tolist():
            for reason in found.status_of(index, code).reasons:
                counts[reason] += int((codes == code).sum())
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
