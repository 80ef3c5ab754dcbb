"""Find remedies: the smallest changes after which some node takes the pod, each of them tried out.

Changes of the pod are evaluated as the cycle would evaluate the changed pod. Changes of the cluster (room on a
node, pods that leave) follow from the shortage columns, or are tried on the node table and undone.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np

from koordinator.api import resource_vector, resources, tolerations
from koordinator.api.affinity import Taint
from koordinator.api.errors import KoordinatorError
from koordinator.scheduler.config.default_plugins import FIT
from koordinator.scheduler.engine.evaluation_cache import evaluate
from koordinator.scheduler.engine.post_filter import CycleDiagnosis, is_over, texts_with
from koordinator.scheduler.explain import variants
from koordinator.scheduler.explain.answer import NodeVictims, PreemptionAnswer, Remedy
from koordinator.scheduler.explain.survey import Survey
from koordinator.scheduler.explain.variants import Variant
from koordinator.scheduler.plugin.framework import Mask, PostFilterPlugin, PreemptionOffer
from koordinator.scheduler.plugin.status import Code
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of

VARIANTS_MAX = 24
"""Changed pods that are evaluated one by one; each costs one full scan of the nodes."""
PAIRS_MAX = 24
TAINT_SETS_MAX = 8
NEAR_NODES_MAX = 3
LEAVING_ROWS_MAX = 64
MANY_NODES = 10


def remedies(found: Survey) -> list[Remedy]:
    """Changes that make the pod fit, those of the pod first."""
    if found.rows.size == 0:
        return []
    single = _tried(found, [[each] for each in variants_of(found)[:VARIANTS_MAX]])
    if not single:
        single = _tried(found, _pairs(variants_of(found)))
    changes = [*single, *room(found), *_leaving(found), *_uncordon(found)]
    handled = {plugin for plugin, _ in _HANDLED}
    return [*changes, *_new_node(found), *_others(found, handled)]


# Changes of the pod


def variants_of(found: Survey, but: Container[str] = ()) -> list[Variant]:
    """Changed pods worth trying: only what concerns plugins that refuse nodes, `but` those of the named ones."""
    pod = found.pod.pod
    refusing = _refusing(found)
    made: list[Variant] = []
    for plugin, make in _HANDLED:
        if plugin in refusing and plugin not in but:
            made += make(found)
    if "NodeAffinity" not in refusing and found.left_out.any():
        made += variants.for_selectors(pod)
    return made


def _refusing(found: Survey) -> set[str]:
    if not found.evaluation.status.is_success:
        return {found.evaluation.status.plugin}
    names = {plugin.name for index, plugin in enumerate(found.filters) if found.codes[index].any()}
    return names | {status.plugin for status in found.kept_free.values()}


def _pairs(made: Sequence[Variant]) -> list[list[Variant]]:
    """Two changes that concern different plugins."""
    pairs = [
        [one, other]
        for number, one in enumerate(made)
        for other in made[number + 1 :]
        if one.plugin != other.plugin
    ]
    return pairs[:PAIRS_MAX]


def _tried(found: Survey, changes: Iterable[Sequence[Variant]]) -> list[Remedy]:
    """Return the remedies after which some node takes the pod. A larger change is left out when a smaller one of its
    kind does as well; most nodes first within a kind."""
    kept: list[Remedy] = []
    for change in changes:
        rows = _takers(found, change)
        if rows.size == 0:
            continue
        kind = "+".join(each.kind for each in change)
        if any(other.kind == kind and other.node_count >= rows.size for other in kept) and any(
            "whole" in each.change for each in change
        ):
            continue
        kept.append(_remedy(found, kind, " and ".join(each.change for each in change), rows))
    kinds = list(dict.fromkeys(remedy.kind for remedy in kept))
    # Requests come with the smallest reduction first, which opens fewest nodes.
    return sorted(
        kept, key=lambda each: (kinds.index(each.kind), 0 if each.kind == "requests" else -each.node_count)
    )


def _remedy(found: Survey, kind: str, change: str, rows: Sequence[int] | Rows) -> Remedy:
    """Return a remedy after which these rows take the pod."""
    return Remedy(kind=kind, change=change, node_count=len(rows), examples=found.names_of(rows))


def _takers(found: Survey, change: Sequence[Variant]) -> Rows:
    """Return rows that take the changed pod, next to the pods nominated there."""
    pod = found.pod.pod
    for each in change:
        pod = each.apply(pod)
    engine, profile = found.engine, found.profile
    try:
        info = PodInfo.of(pod, engine.table.registry)
    except KoordinatorError:
        return found.rows[:0]  # the change made an amount that is none: nothing to offer
    evaluation = evaluate(profile, engine.table, info)
    if not evaluation.status.is_success:
        return found.rows[:0]
    kept_free = engine.cycle.kept_free(profile, info, evaluation)
    return evaluation.feasible[~np.isin(evaluation.feasible, list(kept_free))]


def _taints(found: Survey) -> list[Variant]:
    """Return one per distinct set of taints that keeps the pod out, on most nodes first; nodes where nothing else
    objects come first."""
    index = found.index_of("TaintToleration")
    if index is None:
        return []
    alone = found.is_alone
    own = tuple(found.pod.pod.spec.tolerations)
    counts: dict[tuple[Taint, ...], list[int]] = {}
    for position in np.flatnonzero(found.codes[index] != 0).tolist():
        node = found.engine.table.node_at(int(found.rows[position]))
        hard = () if node is None else tuple(t for t in node.spec.taints if tolerations.keeps_out(own, (t,)))
        timeless = (Taint(key=t.key, value=t.value, effect=t.effect) for t in hard)
        key = tuple(sorted(timeless, key=tolerations.text_of))
        entry = counts.setdefault(key, [0, 0])
        entry[0] += bool(alone[position])
        entry[1] += 1
    ranked = sorted(
        counts, key=lambda key: ([-n for n in counts[key]], [tolerations.text_of(t) for t in key])
    )
    return [variants.for_taints(key) for key in ranked[:TAINT_SETS_MAX] if key]


def _requests(found: Survey) -> list[Variant]:
    """Requests as low as the freest nodes ask for, where nothing but resources is in the way.

    One variant per resource that alone is short somewhere, and one for the node that is nearest in all.
    """
    wanted = found.wanted
    columns = list(wanted)
    if not columns:
        return []
    only_fit = _only(found, FIT) & (found.free_pods > 0)
    free = np.maximum(found.free(columns)[:, only_fit], 0)
    amounts = np.array(list(wanted.values()), np.int64)[:, np.newaxis]
    short = amounts > free
    names = found.engine.table.registry.names
    by_name = found.engine.table.registry.named(wanted.items())
    made = []
    for number, column in enumerate(columns):
        alone = short[number] & (short.sum(axis=0) == 1)
        room = np.sort(free[number, alone])[::-1]
        targets = {int(room[index]) for index in (0, min(MANY_NODES, room.size) - 1) if room.size}
        for target in sorted((t for t in targets if t > 0), reverse=True):
            made.append(variants.for_requests(found.pod.pod, by_name, {names[column]: target}))
    if not made and free.shape[1]:
        shortage = (np.maximum(amounts - free, 0) / amounts).max(axis=0)
        nearest = int(shortage.argmin())
        at_most = {names[c]: int(free[n, nearest]) for n, c in enumerate(columns) if short[n, nearest]}
        if at_most and min(at_most.values()) > 0:
            made.append(variants.for_requests(found.pod.pod, by_name, at_most))
    return made


_HANDLED: tuple[tuple[str, Callable[[Survey], list[Variant]]], ...] = (
    (FIT, _requests),
    ("NodeAffinity", lambda found: variants.for_selectors(found.pod.pod)),
    ("TaintToleration", _taints),
    ("PodTopologySpread", lambda found: variants.for_spreading(found.pod.pod)),
    ("InterPodAffinity", lambda found: variants.for_pod_terms(found.pod.pod)),
    ("NodePorts", lambda found: variants.for_ports(found.pod.pod)),
    ("NodeUnschedulable", lambda _: []),
)
"""Filters for which we know what to change; about all others only "if it did not object" can be said."""


# Changes of the cluster


def _only(found: Survey, plugin: str) -> Mask:
    """(rows,): nodes to which only this plugin objects."""
    index = found.index_of(plugin)
    if index is None:
        return np.zeros(found.rows.size, np.bool_)
    return np.asarray(found.refused[index] & found.is_alone)


def room(found: Survey, among: Rows | None = None) -> list[Remedy]:
    """Return what to free on the nodes (of these, None: of all) that lack least, where nothing but room is missing."""
    wanted = found.wanted
    columns = list(wanted)
    only_fit = _only(found, FIT) & found.inside(among)
    if not only_fit.any():
        return []
    table = found.engine.table
    amounts = np.array(list(wanted.values()), np.int64)[:, np.newaxis]
    capacity = table.allocatable[columns][:, found.rows]
    has_capacity = (capacity >= amounts).all(axis=0) & (table.pods_max[found.rows] > 0)
    shortage = np.maximum(amounts - found.free(columns), 0)
    share = (shortage / np.maximum(capacity, 1)).max(axis=0, initial=0.0)
    share[~(only_fit & has_capacity)] = np.inf
    made = []
    for position in np.argsort(share, kind="stable")[:NEAR_NODES_MAX].tolist():
        if not np.isfinite(share[position]):
            break
        row, free_pods = int(found.rows[position]), int(found.free_pods[position])
        parts = [
            resource_vector.readable_lot(table.registry.names[column], int(shortage[n, position]))
            for n, column in enumerate(columns)
            if shortage[n, position] > 0
        ]
        if free_pods <= 0:
            parts.append(f"{1 - free_pods} of {resources.PODS}")
        made.append(_remedy(found, "room", f"free {' and '.join(parts)} on {table.name_of(row)}", [row]))
    return made


def _leaving(found: Survey) -> list[Remedy]:
    """Return nodes that take the pod once pods that are being deleted are gone."""
    table = found.engine.table
    view = found.view
    made: list[Remedy] = []
    looked_at = 0
    for row in found.rows.tolist():
        leaving = [p for p in table.pods_at(row).values() if p.pod.metadata.deletion_timestamp is not None]
        if not leaving:
            continue
        looked_at += 1
        if looked_at > LEAVING_ROWS_MAX or len(made) >= NEAR_NODES_MAX:
            break
        with trial_of(table) as trial:
            for other in leaving:
                trial.take(other)
            fits = view.check(row).is_success
        if fits:
            change = f"wait until {len(leaving)} pods that are being deleted have left {table.name_of(row)}"
            made.append(_remedy(found, "wait", change, [row]))
    return made


def _uncordon(found: Survey) -> list[Remedy]:
    rows = found.rows[_only(found, "NodeUnschedulable")]
    change = "uncordon a node that nothing else speaks against"
    return [_remedy(found, "uncordon", change, rows)] if rows.size else []


def _new_node(found: Survey) -> list[Remedy]:
    """Return the remedies by which another node, empty and otherwise like one that exists, would take the pod."""
    table = found.engine.table
    row = model_row(found)
    if row is None:
        return []
    with trial_of(table) as trial:
        for other in list(table.pods_at(row).values()):
            trial.take(other)
        fits = found.view.check(row).is_success
    change = f"add a node like {table.name_of(row)}: empty, it takes the pod"
    return [_remedy(found, "node", change, [row])] if fits else []


def model_row(found: Survey, among: Rows | None = None) -> int | None:
    """Return the node (of these, None: of all) with fewest pods that nothing but its pods can be in the way of."""
    table = found.engine.table
    if not found.evaluation.status.is_success:
        return None
    hopeless = found.left_out | ~found.inside(among)
    for index in range(len(found.filters)):
        codes = found.codes[index]
        for code in np.unique(codes[codes != 0]).tolist():
            if found.status_of(index, code).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
                hopeless |= codes == code
    rows = found.rows[~hopeless]
    return int(rows[table.pod_count[rows].argmin()]) if rows.size else None


def _others(found: Survey, handled: set[str]) -> list[Remedy]:
    """Return nodes to which only one plugin objects: what it says would help, else that it objects."""
    made: list[Remedy] = []
    for index, plugin in enumerate(found.filters):
        rows = found.rows[_only(found, plugin.name)]
        if plugin.name in handled or rows.size == 0:
            continue
        reliefs = plugin.reliefs(found.evaluation.states[plugin.name], rows)
        if reliefs:
            made += [_remedy(found, each.kind, each.change, each.rows) for each in reliefs]
            continue
        code = int(found.codes[index, int(np.searchsorted(found.rows, rows[0]))])
        reason = found.status_of(index, code).message
        made.append(_remedy(found, "other", f"lift what {plugin.name} objects to ({reason})", rows))
    return made


PREEMPTION_NODES_MAX = 5

Ways = tuple[PreemptionOffer, ...]


def preemption_of(
    found: Survey,
    asked: CycleDiagnosis,
    plugins: Sequence[PostFilterPlugin[Any]] | None = None,
    nodes_max: int | None = PREEMPTION_NODES_MAX,
) -> PreemptionAnswer:
    """Ask PostFilter plugins as the cycle does (those of the profile, unless said otherwise): in order, until one made
    room or forbids the others to. `nodes_max` limits what is told of each."""
    texts: tuple[str, ...] = ()
    nominated = ""
    offers: list[PreemptionOffer] = []
    for plugin in found.profile.post_filters if plugins is None else plugins:
        outlook = plugin.outlook(found.pod, asked)
        status = outlook.result.status
        if status.is_skip:
            continue
        texts = texts_with(texts, status)
        nominated = outlook.result.nominated_node or nominated
        offers += outlook.offers[:nodes_max]
        if is_over(status):
            break
    return PreemptionAnswer(
        message=asked.post_filter_text(texts), nominated_node=nominated, nodes=victims(offers)
    )


def victims(offers: Sequence[PreemptionOffer]) -> list[NodeVictims]:
    """Ways to make room as an answer has them."""
    return [
        NodeVictims(
            node=offer.node_name, pods=[pod.key for pod in offer.pods], budget_violations=offer.violations
        )
        for offer in offers
    ]


def offers_for(found: Survey, plugins: Sequence[PostFilterPlugin[Any]]) -> Ways:
    """Ways to make room for a pod that no node takes, best first, of the first plugin that knows any."""
    asked = found.diagnosis()
    for plugin in plugins:
        outlook = plugin.outlook(found.pod, asked)
        status = outlook.result.status
        if outlook.offers or is_over(status):
            return outlook.offers
    return ()
