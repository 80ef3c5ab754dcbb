"""Answer ScheduleExplanation objects: who wants to know creates one, the leading scheduler fills its status with why
the pods of the question are not placed.

Pods are tried one after the other, each next to those placed before it, on the node table itself and undone.
Source: behaviour/crds 10, and behaviour/scheduler C6.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from koordinator.api import duration, gang_labels, labels
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.pod_labels import is_terminated
from koordinator.api.schedule_explanation import (
    DetailedExplanation,
    Explanation,
    NodeFailedDetail,
    NodePossibleVictims,
    PossibleVictim,
    ScheduledPod,
    ScheduleExplanation,
    ScheduleExplanationStatus,
    sorted_details,
)
from koordinator.clock import parse_rfc3339, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.controller import Controller
from koordinator.cluster.informer import Informer, key_of
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.engine.answers import left_out
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.answer import PodVerdict
from koordinator.scheduler.explain.gang_group import group_of_pod
from koordinator.scheduler.explain.gangs import explain_group
from koordinator.scheduler.explain.quotas import explain_quota
from koordinator.scheduler.explain.survey import Steps, Survey, in_turns, survey
from koordinator.scheduler.plugin.capabilities import BackgroundController
from koordinator.scheduler.plugin.framework import PreemptionOffer
from koordinator.scheduler.plugin.status import Code, Status, unresolvable
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of

log = logging.getLogger(__name__)

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
    """Return the nodes (rows,) by their value of a label, sorted by value. A label value cannot hold a `/`, so `key`
    may be the part of the label's name after it."""
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
                name = offers[0].node_name
                for victim in offers[0].pods:
                    trial.take(victim)
            else:
                status = unresolvable(found.evaluation.fit_error("", found.kept_free.values()))
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
    asked = found.diagnosis()
    allowed = None if rows is None else {table.name_of(row) for row in rows.tolist()}
    offers = [
        offer for plugin in found.profile.post_filters for offer in plugin.outlook(found.pod, asked).offers
    ]
    return tuple(offer for offer in offers if allowed is None or offer.node_name in allowed)


def _details(found: Survey, rows: Rows | None) -> list[NodeFailedDetail]:
    """Return nodes of the domain by the first refusal that they met."""
    names: defaultdict[tuple[str, str, bool], list[str]] = defaultdict(list)
    inside = found.inside(rows)
    first = np.argmax(found.codes != 0, axis=0) if found.filters else np.zeros(found.rows.size, np.intp)
    statuses: dict[tuple[int, int], Status] = {}
    narrowed = left_out(found.evaluation.narrowed_by).by(" ".join(found.evaluation.narrowed_by))
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


NAME = "schedule explanations"
TTL_DEFAULT = "24h"
CHECK_S = 10.0
"""Time until a change in the cluster shows in an answer."""
REFRESH_S = 60.0
"""An answer that stays the same is dated anew this often."""
PODS_MAX = 32
"""Members of a job that are tried, about 5 ms each; a larger job is answered for its first ones."""
DOMAINS_MAX = 32
_INDEX = "questioned"

Key = tuple[str, str]


class ExplanationObjects:
    """Keeps the statuses of all ScheduleExplanations true, and deletes those whose `ttl` is over.

    A question names a pod (`namespace/name`), a job (the label `questioned-object-key` of its pods, perhaps
    after `namespace/`) or gangs (`namespace/name`, several with commas).
    """

    def __init__(self, engine: Engine, pods: Informer[Pod], cluster: Cluster, rng: random.Random) -> None:
        self._engine = engine
        self._pods = pods
        self._cluster = cluster
        self._clock = engine.clock
        self._rng = rng
        pods.add_index(_INDEX, questions_of)

    @property
    def background(self) -> BackgroundController:
        return BackgroundController(NAME, self.run)

    async def run(self) -> None:
        """Answer until cancelled."""
        objects = Informer(self._cluster, ScheduleExplanation, rng=new_rng(self._rng))
        controller: Controller[Key] = Controller(NAME, lambda key: self._reconcile(objects, key))
        controller.watch(objects, lambda each: [key_of(each)])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(objects.run(), name=objects.guard.name)
            tasks.create_task(controller.run([objects]), name=NAME)

    async def _reconcile(self, objects: Informer[ScheduleExplanation], key: Key) -> float | None:
        namespace, name = key
        asked = objects.get(name, namespace)
        if asked is None:
            return None
        now_s = self._clock.now()
        left_s = time_left_s(asked, now_s)
        if left_s is not None and left_s <= 0:
            try:
                await self._cluster.delete(ScheduleExplanation, name, namespace, uid=asked.metadata.uid)
            except errors.NotFound:
                log.debug("explanation was already deleted", extra={"explanation": asked.key})
            return None
        status = await self.answer(asked)
        said_at = asked.status.last_update_time
        is_news = msgspec.structs.replace(status, last_update_time=said_at) != asked.status
        if is_news or said_at is None or now_s - parse_rfc3339(said_at) >= REFRESH_S:
            await self._write(asked, status, now_s)
        return CHECK_S if left_s is None else min(CHECK_S, left_s)

    async def _write(
        self, asked: ScheduleExplanation, status: ScheduleExplanationStatus, now_s: float
    ) -> None:
        wire = msgspec.to_builtins(msgspec.structs.replace(status, last_update_time=rfc3339(now_s)))
        # A merge patch leaves out what it does not name: members that are not set now have to go.
        gone = {field.encode_name: None for field in msgspec.structs.fields(ScheduleExplanationStatus)}
        meta = asked.metadata
        patch = {"metadata": {"uid": meta.uid}, "status": {**gone, **wire}}
        try:
            await self._cluster.patch(
                ScheduleExplanation, meta.name, patch, meta.namespace, subresource="status"
            )
        except errors.NotFound:
            log.debug("explanation was deleted", extra={"explanation": asked.key})

    async def answer(self, asked: ScheduleExplanation) -> ScheduleExplanationStatus:
        """Return the status without its time. Other tasks get their turn between the domains."""
        found = self._questioned(asked.spec.question_object_key)
        if not found:
            return ScheduleExplanationStatus(failed_message=_not_found(asked))
        try:
            pods = [PodInfo.of(pod, self._engine.table.registry) for pod in found[:PODS_MAX]]
        except ProtocolError as error:
            return ScheduleExplanationStatus(failed_message=str(error))
        self._engine.refresh(self._clock.now())
        whole = explain_domain(self._engine, pods)
        details = [await in_turns(with_wider_reasons(self._engine, pods, whole), self._engine)]
        key = topology_key(asked, found)
        if key:
            for domain in list(domains(self._engine, key))[:DOMAINS_MAX]:
                await asyncio.sleep(0)
                rows = domains(self._engine, key).get(domain)
                if rows is not None:  # it was there a moment ago
                    details.append(explain_domain(self._engine, pods, domain, rows))
        return ScheduleExplanationStatus(
            schedulable=details[0].schedulable,
            schedulable_after_preemption=details[0].schedulable_after_preemption,
            failed_message=details[0].failed_message,
            detailed_explanation=details,
        )

    def _questioned(self, key: str) -> list[Pod]:
        """Return pods that the question is about and that have not ended, by name."""
        namespace, _, name = key.partition("/")
        pod = self._pods.get(name, namespace)
        found = {each.key: each for part in key.split(",") for each in self._pods.by_index(_INDEX, part)}
        if pod is not None:
            found[pod.key] = pod
        alive = [each for each in found.values() if not is_terminated(each)]
        return sorted(alive, key=lambda each: each.key)


def with_wider_reasons(
    engine: Engine, pods: Sequence[PodInfo], whole: DetailedExplanation
) -> Steps[DetailedExplanation]:
    """Yield what keeps the gang of the pods as a whole, or the quota of the first, in front of what nodes say."""
    first = pods[0]
    gang = group_of_pod(engine, first.pod)
    if gang is not None:
        answer = (yield from explain_group(engine, gang, with_remedies=False, is_live=True)).answer
        if answer.verdict in (PodVerdict.BOUND, PodVerdict.SCHEDULABLE):
            return whole
        message = " ".join(filter(None, (answer.sentence, whole.failed_message)))
        return msgspec.structs.replace(whole, schedulable=False, failed_message=message)
    profile = engine.profiles.get(first.pod.spec.scheduler_name)
    is_placed = engine.table.place_of(first.uid) is not None
    quota = explain_quota(profile, first) if profile is not None and not is_placed else None
    if quota is None or quota.fits:
        return whole
    message = "; ".join(filter(None, (quota.sentence, whole.failed_message)))
    return msgspec.structs.replace(whole, failed_message=message)


def questions_of(pod: Pod) -> Iterable[str]:
    """Yield what a question may call the pod, apart from its own name."""
    meta = pod.metadata
    job = meta.labels.get(labels.QUESTIONED_OBJECT_KEY)
    if job:
        yield job
        yield f"{meta.namespace}/{job}"
    gang = gang_labels.gang_name(meta.labels, meta.annotations)
    if gang:
        yield f"{meta.namespace}/{gang}"


def time_left_s(asked: ScheduleExplanation, now_s: float) -> float | None:
    """Return seconds until the object's `ttl` is over, None when it is kept (0) or its times cannot be read."""
    try:
        ttl_s = duration.parse(asked.spec.ttl or TTL_DEFAULT)
        created_s = parse_rfc3339(asked.metadata.creation_timestamp or "")
    except (KoordinatorError, ValueError):
        return None  # never delete what we do not understand
    return None if ttl_s <= 0 else created_s + ttl_s - now_s


def topology_key(asked: ScheduleExplanation, pods: Iterable[Pod]) -> str:
    """Return the node label whose values are answered one by one: of the object, else of the first pod that has it."""
    name = labels.TOPOLOGY_KEY_TO_EXPLAIN
    own = asked.metadata.labels.get(name, "")
    return own or next((pod.metadata.labels[name] for pod in pods if name in pod.metadata.labels), "")


def _not_found(asked: ScheduleExplanation) -> str:
    if asked.spec.question_object_template is not None:
        return "questionObjectTemplate is not supported: name an existing pod in questionObjectKey"
    return f"no pod, job or gang is called {asked.spec.question_object_key!r}"
