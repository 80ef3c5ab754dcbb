"""Areas of the descheduler about the steps of migration jobs."""

from typing import Any

import msgspec

from koordinator.api import duration, labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import ObjectReference
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.descheduler.config.migration import RESERVATION_FIRST
from koordinator.descheduler.migration import reservation_template, state
from koordinator.descheduler.migration.jobs import JobStep
from tests.vectors.adapters.descheduler_small import ORIGIN_S, pods_of, with_times
from tests.vectors.compare import exact


def job_of(raw: dict[str, Any]) -> PodMigrationJob:
    body = with_times(raw)
    return from_builtins({**body, "spec": spec_of(body["spec"])}, PodMigrationJob)


def spec_of(raw: dict[str, Any]) -> dict[str, Any]:
    spec = with_ttl(raw)
    options = spec.get("reservationOptions") or {}
    given = options.get("template") or {}
    if given.get("spec"):
        template = {**given, "spec": with_ttl(given["spec"])}
        spec["reservationOptions"] = {**options, "template": template}
    return spec


def with_ttl(raw: dict[str, Any]) -> dict[str, Any]:
    spec = dict(raw)
    if "ttlSeconds" in spec:
        spec["ttl"] = f"{spec.pop('ttlSeconds')}s"
    return spec


def steps(case: dict[str, Any]) -> Any:
    job = job_of(case["job"])
    mode = case["args"].get("defaultJobMode") or RESERVATION_FIRST
    answer = []
    for one in case["steps"]:
        if "set_spec" in one:
            spec = {**msgspec.to_builtins(job.spec), **spec_of(one["set_spec"])}
            job = from_builtins({**msgspec.to_builtins(job), "spec": spec}, PodMigrationJob)
        step, actions = look(job, one["world"], case["reconciler_uid"], mode, ORIGIN_S + one["now"])
        job = step.job
        answer.append(shown(step, actions))
    return {"steps": answer}


def look(
    job: PodMigrationJob, world: dict[str, Any], uid: str, mode: str, now_s: float
) -> tuple[JobStep, list[str]]:
    pods = {(p.metadata.namespace, p.metadata.name): p for p in pods_of(world.get("pods", []))}
    reservation = None
    if world.get("reservation") is not None:
        reservation = from_builtins(with_times(world["reservation"]), Reservation)

    def pod_of(namespace: str, name: str) -> Pod | None:
        return pods.get((namespace, name))

    seen = state.JobState(pod_of, reservation, bool(world.get("limiter_blocked")))
    actions: list[str] = []
    todo = state.reconcile(job, seen, uid, mode, now_s)
    reply: state.Reply | None = None
    while True:
        try:
            action = next(todo) if reply is None else todo.send(reply)
        except StopIteration as end:
            step: JobStep = end.value
            return step, actions
        text, reply = perform(action, job, world)
        actions.append(text)


def perform(action: state.Action, job: PodMigrationJob, world: dict[str, Any]) -> tuple[str, state.Reply]:
    match action:
        case state.CreateReservation():
            name = job.metadata.uid
            reply = state.Reply(
                world.get("create_reservation_error") or "", ObjectReference(kind="Reservation", name=name)
            )
            return f"create-reservation:{name}", reply
        case state.DeleteReservation():
            return f"delete-reservation:{action.name}", state.Reply()
        case state.SetReservationOrder():
            return f"set-reservation-order:{action.name}", state.Reply(
                world.get("reservation_order_error") or ""
            )
        case state.EvictPod():
            return f"evict:{action.pod.key}", state.Reply(world.get("eviction_error") or "")


def shown(step: JobStep, actions: list[str]) -> dict[str, Any]:
    status = step.job.status
    return {
        "phase": status.phase,
        "status": status.status,
        "reason": status.reason,
        "message": status.message,
        "node_name": status.node_name,
        "new_pod": status.pod_ref.name if status.pod_ref is not None else "",
        "conditions": {one.type: {"status": one.status, "reason": one.reason} for one in status.conditions},
        "actions": actions,
        "events": [f"{event.type}:{event.reason}" for event in step.events],
        "requeue_after_s": step.requeue_after_s,
        "error": bool(step.error),
    }


def template(case: dict[str, Any]) -> Any:
    made = reservation_template.reservation(
        job_of(case["job"]), case["pod"], ORIGIN_S, case["disable_pvc_reservation"]
    )
    del made["metadata"]["labels"][labels.RESERVATION_ORDER]
    return {"reservation": made}


def same_reservation(expected: Any, actual: Any) -> bool:
    return exact(with_ttl_s(expected), with_ttl_s(actual))


def with_ttl_s(answer: dict[str, Any]) -> dict[str, Any]:
    """Cases tell a ttl in seconds, the wire as text."""
    spec = dict(answer["reservation"]["spec"])
    if "ttl" in spec:
        spec["ttlSeconds"] = duration.parse(spec.pop("ttl"))
    return {"reservation": {**answer["reservation"], "spec": spec}}


ADAPTERS = {"descheduler-migration-state": steps, "descheduler-reservation-template": template}

COMPARE = {"descheduler-reservation-template": same_reservation}
