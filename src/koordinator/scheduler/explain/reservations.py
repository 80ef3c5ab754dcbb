"""Explain a Reservation: where it is or why it is nowhere, who may use it, who does, and why other pods do not."""

from collections.abc import Sequence

import msgspec

from koordinator.api import quantity, readable, resource_list
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.pod_labels import is_terminated
from koordinator.api.reservation import Reservation, ReservationOwner
from koordinator.clock import rfc3339
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.answer import PodVerdict, ReservationAnswer, ReservationPod, ReservedAmount
from koordinator.scheduler.explain.decide import PodQuestion, explain
from koordinator.scheduler.explain.reserved_room import held_of, used_of, words
from koordinator.scheduler.explain.survey import Steps
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.ledger import ReservationRecord
from koordinator.scheduler.plugins.reservation.matching import ReservationOwners
from koordinator.scheduler.plugins.reservation.plugin import ReservationPlugin
from koordinator.scheduler.table.pod_info import PodInfo

PODS_MAX = 20
PODS_PER_SLICE = 2_000
"""Pods that are held against the owners before others have a turn."""


def explain_reservation(
    engine: Engine, reservation: Reservation, pods: Sequence[Pod], asked: str = ""
) -> Steps[ReservationAnswer]:
    """Return the answer, slice by slice. `pods` are all that the cluster has; of `asked` (`namespace/name`) it is told
    why it does not use the reservation, whether that is for it or not."""
    plugin = next(iter(engine.plugins_of(ReservationPlugin)), None)
    meta, status = reservation.metadata, reservation.status
    answer = ReservationAnswer(
        reservation=meta.name,
        uid=meta.uid,
        verdict=PodVerdict.ERROR,
        sentence="",
        phase=status.phase or objects.PENDING,
        node=status.node_name,
        owners=[owner_words(each) for each in reservation.spec.owners],
        users=[f"{each.namespace}/{each.name}" for each in status.current_owners],
    )
    if reason := objects.invalid_reason(reservation):
        return _with(answer, PodVerdict.ERROR, f"cannot be used: {reason}")
    if objects.is_terminated(reservation):
        return _with(answer, PodVerdict.FINISHED, _end_of(reservation))
    if plugin is None:
        return _with(
            answer, PodVerdict.FOREIGN, "is nobody's business: no profile here has the plugin Reservation"
        )
    answer = msgspec.structs.replace(answer, ends=_ends(reservation), notes=_notes(reservation))
    record = plugin.ledger.find(meta.uid)
    if record is None:
        answer = _placing(engine, plugin, reservation, answer)
    else:
        answer = _available(answer, record)
    found = yield from _concerned(reservation, pods, asked)
    using = set(answer.users)
    others = [pod for pod in found if pod.key not in using]
    lines = [
        ReservationPod(pod=pod.key, node=pod.spec.node_name, says=_says(engine, pod, record, reservation))
        for pod in others[:PODS_MAX]
    ]
    return msgspec.structs.replace(answer, pods=lines, pod_count=len(others))


def _with(answer: ReservationAnswer, verdict: PodVerdict, rest: str) -> ReservationAnswer:
    sentence = f"Reservation {answer.reservation} {rest}."
    return msgspec.structs.replace(answer, verdict=verdict, sentence=sentence)


# Where it is


def _end_of(reservation: Reservation) -> str:
    if reservation.status.phase == objects.SUCCEEDED:
        owners = ", ".join(f"{each.namespace}/{each.name}" for each in reservation.status.current_owners)
        return f"is used up by {owners or 'a pod that is gone'}"
    if objects.is_expired(reservation):
        return "has expired: its time is over, or its node is gone"
    return "has failed"


def _ends(reservation: Reservation) -> str:
    try:
        end_s = lifecycle.end_s(reservation)
    except KoordinatorError as error:
        return f"nobody can tell: {error}"
    once = "with its first owner" if objects.is_once(reservation) else ""
    late = f"at {rfc3339(end_s)}" if end_s is not None else ""
    return " or ".join(filter(None, (once, late))) or "when it is deleted"


def _notes(reservation: Reservation) -> list[str]:
    spec, found = reservation.spec, []
    if spec.allocate_policy == "Restricted":
        found.append("Restricted: owners take nothing else of the node of what is reserved here")
    if spec.unschedulable:
        found.append("spec.unschedulable: no new pod may use it")
    if spec.taints:
        taints = ", ".join(f"{each.key}={each.value}" for each in spec.taints)
        found.append(f"pods with a reservation affinity have to tolerate {taints}")
    return found


def _placing(
    engine: Engine, plugin: ReservationPlugin, reservation: Reservation, answer: ReservationAnswer
) -> ReservationAnswer:
    """Return what the next cycle would make of one without a node."""
    pod = plugin.reserve_pod(reservation.metadata.uid)
    if pod is None:
        return _with(answer, PodVerdict.ERROR, "is not known to the scheduler yet")
    try:
        info = PodInfo.of(pod, engine.table.registry)
    except KoordinatorError as error:
        return _with(answer, PodVerdict.ERROR, f"cannot be placed: {error}")
    found = explain(engine, info, PodQuestion())
    name = f"Reservation {answer.reservation}"
    sentence = found.sentence.replace(f"Pod {pod.metadata.namespace}/{pod.metadata.name}", name)
    placing = msgspec.structs.replace(found, pod=name, sentence=sentence)
    return msgspec.structs.replace(answer, verdict=found.verdict, sentence=sentence, placing=placing)


def _available(answer: ReservationAnswer, record: ReservationRecord) -> ReservationAnswer:
    held, used = held_of(record), used_of(record)
    amounts = [
        ReservedAmount(
            resource=name,
            held=amount.text,
            used=used.get(name, quantity.ZERO).text,
            left=max(amount - used.get(name, quantity.ZERO), quantity.ZERO).text,
        )
        for name, amount in sorted(held.items())
    ]
    users = sorted(owner.key for owner in record.owners.values())
    whole = ", ".join(
        readable.lot(name, amount) for name, amount in resource_list.without_zeros(held).items()
    )
    use = f"{users[0] if len(users) == 1 else f'{len(users)} pods'} {'uses' if len(users) == 1 else 'use'} it"
    rest = f"holds {whole or 'nothing'} on {answer.node}; {use if users else 'nobody uses it'}"
    bound = _with(answer, PodVerdict.BOUND, rest)
    return msgspec.structs.replace(bound, amounts=amounts, users=users)


# Whom it is for


def owner_words(owner: ReservationOwner) -> str:
    """Return which pods an entry of `spec.owners` means."""
    parts = []
    if owner.object is not None:
        name = "/".join(filter(None, (owner.object.namespace, owner.object.name)))
        parts.append(f"the pod {name or owner.object.uid or '(any)'}")
    if (controller := owner.controller) is not None:
        where = f" in {controller.namespace}" if controller.namespace else ""
        parts.append(
            f"pods of {controller.kind or 'any owner'} {controller.name or controller.uid}{where}".rstrip()
        )
    if (selector := owner.label_selector) is not None:
        parts.append(f"pods with {_selector_words(selector)}")
    return " that are also ".join(parts) or "every pod"


def _selector_words(selector: LabelSelector) -> str:
    texts = [f"{key}={value}" for key, value in selector.match_labels.items()]
    for each in selector.match_expressions:
        values = f" ({', '.join(each.values)})" if each.values else ""
        texts.append(f"{each.key} {each.operator}{values}")
    return ", ".join(texts) or "any labels"


def _concerned(reservation: Reservation, pods: Sequence[Pod], asked: str) -> Steps[list[Pod]]:
    """Return the pods that run or wait and that it is for, those that wait first; the one asked about before all."""
    if asked:
        return [pod for pod in pods if pod.key == asked]
    owners = ReservationOwners.of(reservation.spec.owners)
    found: list[Pod] = []
    for number, pod in enumerate(pods):
        if number % PODS_PER_SLICE == PODS_PER_SLICE - 1:
            yield
        if not is_terminated(pod) and owners.match(pod):
            found.append(pod)
    return sorted(found, key=lambda pod: (bool(pod.spec.node_name), pod.key))


def _says(engine: Engine, pod: Pod, record: ReservationRecord | None, reservation: Reservation) -> str:
    if pod.spec.node_name:
        here = pod.spec.node_name == reservation.status.node_name
        return f"runs {'there' if here else f'on {pod.spec.node_name}'} without it"
    if record is None:
        return "waits; the reservation has no room to give yet"
    profile = engine.profiles.get(pod.spec.scheduler_name)
    plugin = profile.find(ReservationPlugin) if profile is not None else None
    if plugin is None:
        return f"asks for scheduler {pod.spec.scheduler_name}, which uses no reservations here"
    try:
        return words(plugin, PodInfo.of(pod, engine.table.registry), record)
    except KoordinatorError as error:
        return f"cannot be judged: {error}"
