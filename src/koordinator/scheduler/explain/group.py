"""Explain why the pods of a question are not placed, as the status of a ScheduleExplanation tells it.

Pods are tried one after the other, each next to those placed before it, on the node table itself and undone.
Source: behaviour/crds 10, and behaviour/scheduler C6.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.api.schedule_explanation import (
    DetailedExplanation,
    Explanation,
    NodeFailedDetail,
    NodePossibleVictims,
    PossibleVictim,
    ScheduledPod,
    sorted_details,
)
from koordinator.scheduler.engine.answers import left_out_reason
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.post_filter import CycleDiagnosis
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.explain.survey import Survey, survey
from koordinator.scheduler.plugin.framework import PreemptionOffer
from koordinator.scheduler.plugin.status import Code, Status, unresolvable
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, trial_of

VICTIM_NODES_MAX = 5
WHOLE_CLUSTER = ""


class Try(msgspec.Struct, frozen=True):
    """The progress of a try of all pods; `stuck` is what the first pod without a node met."""

    placed: tuple[ScheduledPod, ...]
    stuck: Survey | None
    status: Status | None
    details: tuple[NodeFailedDetail, ...]
    offers: tuple[PreemptionOffer, ...]

    @property
    def explanation(self) -> Explanation:
        return Explanation(
            schedulable=self.status is None,
            failed_message="" if self.status is None else self.status.message,
            feasible_scheduling_result=list(self.placed),
            node_failed_details=list(self.details),
        )


def explain_domain(
    engine: Engine, pods: Sequence[PodInfo], domain: str = WHOLE_CLUSTER, rows: Rows | None = None
) -> DetailedExplanation:
    """Return whether all pods find nodes in a domain (`rows` (rows,); None: all nodes), without and with evictions.

    Pods that have a node keep it. Raises: nothing; the table is as before in the end.
    """
    plain = _try(engine, pods, rows, with_evictions=False)
    if plain.status is None:
        return DetailedExplanation(
            topology_domain=domain, schedulable=True, schedule_explanation=plain.explanation
        )
    after = _try(engine, pods, rows, with_evictions=True)
    return DetailedExplanation(
        topology_domain=domain,
        schedulable_after_preemption=after.status is None,
        failed_message=plain.status.message,
        schedule_explanation=plain.explanation,
        node_possible_victims=_victims(engine, after.offers),
        preempt_explanation=after.explanation,
    )


def domains(engine: Engine, key: str) -> dict[str, Rows]:
    """Return the nodes (rows,) by their value of a label, sorted by value. A label value cannot hold a `/`, so
    `key` may be the part of the label's name after it.
    """
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in engine.table.rows.tolist():
        node = engine.table.node_at(row)
        assert node is not None, row
        for name, value in node.metadata.labels.items():
            if key in (name, name.rpartition("/")[2]):
                found[value].append(row)
                break
    return {value: np.array(rows, np.intp) for value, rows in sorted(found.items())}


def _try(engine: Engine, pods: Sequence[PodInfo], rows: Rows | None, *, with_evictions: bool) -> Try:
    placed: list[ScheduledPod] = []
    all_offers: list[PreemptionOffer] = []
    with trial_of(engine.table) as trial:
        for pod in pods:
            place = engine.table.place_of(pod.uid)
            if place is not None:
                placed.append(_scheduled(pod.pod, engine.table.name_of(place.row)))
                continue
            profile = engine.profiles.get(pod.pod.spec.scheduler_name)
            if profile is None:
                status = unresolvable(f"scheduler {pod.pod.spec.scheduler_name!r} is not served here")
                return Try(tuple(placed), None, status, (), tuple(all_offers))
            found = survey(engine, profile, pod)
            takers = found.takers if rows is None else np.intersect1d(found.takers, rows)
            offers = _offers(found, rows) if with_evictions and takers.size == 0 else ()
            all_offers += offers
            if takers.size:
                totals = found.evaluation.totals_of(takers)
                name = engine.table.name_of(int(takers[totals.argmax()]))
            elif offers:
                name = _make_room(trial, offers[0])
            else:
                message = found.evaluation.fit_error("", found.kept_free.values())
                status = unresolvable(message)
                return Try(tuple(placed), found, status, tuple(_details(found, rows)), tuple(all_offers))
            trial.add(pod, name)
            placed.append(_scheduled(pod.pod, name))
    return Try(tuple(placed), None, None, (), tuple(all_offers))


def _scheduled(pod: Pod, node_name: str) -> ScheduledPod:
    meta = pod.metadata
    return ScheduledPod(namespace=meta.namespace, name=meta.name, uid=meta.uid, node_name=node_name)


def _offers(found: Survey, rows: Rows | None) -> tuple[PreemptionOffer, ...]:
    """Evictions that make room in the domain, best first."""
    table = found.engine.table
    view = View(found.profile, table, found.engine.nominations, found.pod)
    asked = CycleDiagnosis(view, found.profile, found.evaluation, found.kept_free)
    allowed = None if rows is None else {table.name_of(row) for row in rows.tolist()}
    offers = [
        offer for plugin in found.profile.post_filters for offer in plugin.outlook(found.pod, asked).offers
    ]
    return tuple(offer for offer in offers if allowed is None or offer.node_name in allowed)


def _make_room(trial: Trial, offer: PreemptionOffer) -> str:
    for victim in offer.pods:
        trial.take(victim)
    return offer.node_name


def _details(found: Survey, rows: Rows | None) -> list[NodeFailedDetail]:
    """Return nodes of the domain by the first refusal that they met."""
    names: defaultdict[tuple[str, str, bool], list[str]] = defaultdict(list)
    inside = np.ones(found.rows.size, np.bool_) if rows is None else np.isin(found.rows, rows)
    first = np.argmax(found.codes != 0, axis=0) if found.filters else np.zeros(found.rows.size, np.intp)
    statuses: dict[tuple[int, int], Status] = {}
    narrowed = unresolvable(left_out_reason(found.evaluation.narrowed_by)).by(
        " ".join(found.evaluation.narrowed_by)
    )
    for position in np.flatnonzero(inside).tolist():
        row, index = int(found.rows[position]), int(first[position])
        code = int(found.codes[index, position]) if found.filters else 0
        if not found.evaluation.status.is_success:
            status = found.evaluation.status
        elif found.left_out[position]:
            status = narrowed
        elif code:
            status = statuses.setdefault((index, code), found.status_of(index, code))
        else:
            status = found.kept_free[row]
        might_help = status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        names[status.plugin, status.message, might_help].append(found.engine.table.name_of(row))
    return sorted_details(
        NodeFailedDetail(failed_plugin=plugin, reason=reason, preempt_might_help=helps, failed_nodes=nodes)
        for (plugin, reason, helps), nodes in names.items()
    )


def _victims(engine: Engine, offers: Iterable[PreemptionOffer]) -> list[NodePossibleVictims]:
    by_node: dict[str, dict[str, PossibleVictim]] = {}
    for offer in offers:
        if offer.node_name not in by_node and len(by_node) >= VICTIM_NODES_MAX:
            continue
        known = by_node.setdefault(offer.node_name, {})
        for pod in offer.pods:
            meta = pod.pod.metadata
            known[pod.uid] = PossibleVictim(
                namespace=meta.namespace,
                name=meta.name,
                uid=meta.uid,
                is_nominated_pod=bool(engine.nominations.node_of(pod.uid)),
            )
    return [
        NodePossibleVictims(node_name=node, possible_victims=list(pods.values()))
        for node, pods in sorted(by_node.items())
    ]


def is_same(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Return whether two statuses on the wire say the same, whenever they were looked at."""
    time = "lastUpdateTime"
    return {k: v for k, v in one.items() if k != time} == {k: v for k, v in other.items() if k != time}
