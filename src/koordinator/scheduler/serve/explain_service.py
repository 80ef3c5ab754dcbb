"""Explain over HTTP why a pod (`GET /apis/v1/explain/<namespace>/<pod>`), a gang (`GET
/apis/v1/explain/gangs/<namespace>/<gang>`) or a Reservation (`GET /apis/v1/explain/cluster/reservations/<name>`) is
pending, from the scheduler that decides about it; and where pods would go that are moved (`POST /apis/v1/moves`)."""

import difflib
from collections.abc import Iterable, Sequence

import msgspec
from aiohttp import web

from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.reservation import Reservation
from koordinator.endpoints import json_response
from koordinator.scheduler.explain.answer import BEST_NODES, ConditionLine, GangAnswer, PodAnswer, QueueLine
from koordinator.scheduler.explain.decide import PodQuestion, every_node, explain
from koordinator.scheduler.explain.gang_group import GangSet, gang_keys, group_of, group_of_pod
from koordinator.scheduler.explain.gangs import GangExplanation, explain_group
from koordinator.scheduler.explain.reservations import explain_reservation
from koordinator.scheduler.explain.survey import in_turns
from koordinator.scheduler.explain.tries import Found, PodToMove, prove
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.pod_info import PodInfo

PATH = "/explain/{namespace}/{pod}"
"""Below `/apis/v1`, which only the leader serves."""
GANG_PATH = "/explain/gangs/{namespace}/{gang}"
RESERVATION_PATH = "/explain/cluster/reservations/{reservation}"
MOVES_PATH = "/moves"
MOVES_MAX = 500
"""Moves of one request: they are tried in one go, in about a millisecond each."""
ALIKE_MAX = 5
BEST_MAX = 1_000


async def pod_answer(scheduler: Scheduler, request: web.Request) -> web.Response:
    """Answer `PATH`. Query parameters: `nodes` (names with commas, or `*`), `best` (how many nodes the score
    table has)."""
    namespace, name = request.match_info["namespace"], request.match_info["pod"]
    pod = scheduler.caches.pods.get(name, namespace)
    if pod is None:
        keys = (each.key for each in scheduler.caches.pods.list())
        alike = names_alike(f"{namespace}/{name}", keys)
        return json_response({"message": f"cannot find pod {namespace}/{name}", "alike": alike}, 404)
    nodes = request.query.get("nodes", "")
    try:
        best = int(request.query.get("best", BEST_NODES))
    except ValueError:
        return json_response({"message": f"best: {request.query['best']!r} is no number"}, 400)
    wanted = None if nodes == "*" else tuple(filter(None, nodes.split(",")))
    unknown = [each for each in wanted or () if scheduler.table.row_of(each) is None]
    if unknown:
        return json_response({"message": f"cannot find node {unknown[0]}"}, 404)
    question = PodQuestion(nodes=wanted, best=max(0, min(best, BEST_MAX)))
    try:
        return json_response(await explain_live(scheduler, pod, question))
    except ProtocolError as error:
        return json_response({"message": str(error)}, 422)


async def gang_answer(scheduler: Scheduler, request: web.Request) -> web.Response:
    """Answer `GANG_PATH`."""
    key = f"{request.match_info['namespace']}/{request.match_info['gang']}"
    found = await explain_gang_live(scheduler, key)
    if found is None:
        alike = names_alike(key, gang_keys(scheduler.engine))
        return json_response({"message": f"cannot find gang {key}", "alike": alike}, 404)
    return json_response(found)


async def reservation_answer(scheduler: Scheduler, request: web.Request) -> web.Response:
    """Answer `RESERVATION_PATH`. Query parameter: `pod` (`namespace/name`), the only one to tell about."""
    name, pod = request.match_info["reservation"], request.query.get("pod", "")
    informer = scheduler.caches.find(Reservation)
    known = informer.list() if informer is not None else []
    found = next((each for each in known if each.metadata.name == name), None)
    if found is None:
        alike = names_alike(name, [each.metadata.name for each in known])
        return json_response({"message": f"cannot find reservation {name}", "alike": alike}, 404)
    if pod and scheduler.caches.pods.get(*reversed(pod.split("/", 1))) is None:
        return json_response({"message": f"cannot find pod {pod}", "alike": []}, 404)
    scheduler.engine.refresh(scheduler.clock.now())
    steps = explain_reservation(scheduler.engine, found, scheduler.caches.pods.list(), pod)
    return json_response(await in_turns(steps, scheduler.engine))


async def moves_answer(scheduler: Scheduler, request: web.Request) -> web.Response:
    """Answer `MOVES_PATH`: where the successors of running pods would be placed, in order, as if room was reserved for
    all of them."""
    try:
        wanted = msgspec.json.decode(await request.read(), type=list[PodToMove])
    except msgspec.DecodeError as error:
        return json_response({"message": f"moves: {error}"}, 400)
    if len(wanted) > MOVES_MAX:
        return json_response({"message": f"{len(wanted)} moves, at most {MOVES_MAX} at once"}, 400)
    return json_response(prove_live(scheduler, wanted))


def prove_live(scheduler: Scheduler, wanted: Sequence[PodToMove]) -> list[Found]:
    """Return where a running scheduler would place the successors of pods; nothing is scheduled meanwhile."""
    scheduler.engine.refresh(scheduler.clock.now())
    return prove(scheduler.engine, wanted)


async def explain_gang_live(scheduler: Scheduler, key: str) -> GangAnswer | None:
    """Return the explanation of a gang that a running scheduler knows, None of one that it does not; slice by slice."""
    group = group_of(scheduler.engine, key)
    return (await _explain_live(scheduler, group)).answer if group is not None else None


async def _explain_live(
    scheduler: Scheduler, group: GangSet, *, with_remedies: bool = True
) -> GangExplanation:
    engine = scheduler.engine
    engine.refresh(scheduler.clock.now())
    return await in_turns(explain_group(engine, group, with_remedies=with_remedies, is_live=True), engine)


async def explain_live(scheduler: Scheduler, pod: Pod, question: PodQuestion) -> PodAnswer:
    """Return the explanation of a pod that a running scheduler knows, with where it waits; that of its gang slice by
    slice. Raises: ProtocolError when the pod's requests cannot be read."""
    engine = scheduler.engine
    group = group_of_pod(engine, pod)
    of_gang = None
    if group is not None:
        of_gang = await _explain_live(scheduler, group, with_remedies=question.with_remedies)
    uid = pod.metadata.uid or pod.key
    entry, place = scheduler.queue.find(uid), scheduler.table.place_of(uid)
    info = entry.pod if entry is not None else place.pod if place is not None else None
    if info is None:
        info = PodInfo.of(pod, scheduler.table.registry)
    engine.refresh(scheduler.clock.now())
    attempt = 1 + (entry.attempt_count if entry is not None else 0)
    is_about_all = question.nodes is None and place is None
    nodes = () if is_about_all else question.nodes
    found = explain(engine, info, msgspec.structs.replace(question, attempt=attempt, nodes=nodes), of_gang)
    is_judged = bool(found.pre_filter or found.reasons or found.feasible_count)
    if is_about_all and is_judged:
        found = msgspec.structs.replace(found, nodes=await in_turns(every_node(engine, info), engine))
    return msgspec.structs.replace(found, queue=_queue_line(scheduler, uid), conditions=condition_lines(pod))


def condition_lines(pod: Pod) -> list[ConditionLine]:
    """Return the pod's conditions as they were reported."""
    return [
        ConditionLine(
            type=each.type, status=each.status, reason=each.reason or "", message=each.message or ""
        )
        for each in pod.status.conditions
    ]


def _queue_line(scheduler: Scheduler, uid: str) -> QueueLine | None:
    waiting, place = scheduler.waiting.find(uid), scheduler.table.place_of(uid)
    if waiting is not None:
        return QueueLine(area="waiting for permission", wakes_on=list(waiting.pending_plugins))
    if place is not None:
        return QueueLine(area="being bound") if place.assumed else None
    entry, area = scheduler.queue.find(uid), scheduler.queue.area_of(uid)
    if entry is None:
        return QueueLine(area=area) if area else None
    is_asleep = area in ("unschedulable", "gated")
    wakes_on = sorted(entry.refused_by) if is_asleep else []
    return QueueLine(area=area, attempts=entry.attempt_count, wakes_on=wakes_on)


def names_alike(wanted: str, names: Iterable[str]) -> list[str]:
    """Return names that a person may have meant: the same name elsewhere first, then similar ones."""
    known = sorted(names)
    bare = wanted.rpartition("/")[2]
    same = [each for each in known if each.rpartition("/")[2] == bare]
    parts = [each for each in known if bare and bare in each]
    close = difflib.get_close_matches(wanted, known, n=ALIKE_MAX, cutoff=0.6)
    return list(dict.fromkeys([*same, *parts, *close]))[:ALIKE_MAX]
