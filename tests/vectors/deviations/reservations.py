"""What the reference answers about reservations, worked out from what we answer."""

from typing import Any
from unittest import mock

from koordinator.api import duration
from koordinator.api.decode import from_builtins
from koordinator.api.reservation import Reservation
from koordinator.api.resource_list import sum_of
from koordinator.api.resources import PODS
from koordinator.clock import parse_rfc3339
from koordinator.scheduler.plugins.reservation import fit, objects, preallocation
from tests.vectors.deviations.question import Ask, Case


def not_looked_at_in_the_last_moment(case: Case, ask: Ask) -> Any:
    """Nobody looks again at a reservation of which exactly no time is left, and so it never ends."""
    if case["op"] != "sync":
        return None
    ours = ask(case)
    is_over = ours["phase"] in ("Failed", "Succeeded")
    if is_over or parse_rfc3339(case["now"]) != _end_s(case["reservation"]):
        return None
    return {**ours, "requeueAfterSeconds": 0}


def collected_for_known_ends_only(case: Case, ask: Ask) -> Any:
    """What failed for a reason of somebody else's stays for ever."""
    if case["op"] != "gc" or case["reservation"]["status"].get("phase") != "Failed":
        return None
    is_known = objects.is_expired(from_builtins(case["reservation"], Reservation))
    return None if is_known else {"delete": False}


def with_api_versions_of_pods(case: Case, ask: Ask) -> Any:
    """An owner's `apiVersion` is compared with what the pod itself says, mostly nothing."""
    found, own = dict(case), case.get("pod", {}).get("apiVersion", "")
    if case["op"] == "owners":
        found["owners"] = [_of_version(each, own) for each in case["owners"]]
    elif case["op"] == "outcome":
        spec = case["reservation"]["spec"]
        owners = [_of_version(each, own) for each in spec.get("owners") or ()]
        found["reservation"] = {**case["reservation"], "spec": {**spec, "owners": owners}}
    return ask(found) if found != case else None


def _of_version(owner: Case, own: str) -> Case:
    """The owner as one that matches by version exactly when the pod says the same."""
    wanted = (owner.get("object") or {}).get("apiVersion", "")
    if not wanted:
        return owner
    return {**owner, "object": {**owner["object"], "apiVersion": "v1" if wanted == own else "none"}}


def with_all_native_resources(case: Case, ask: Ask) -> Any:
    """Cpu, memory and ephemeral storage are compared also where a pod asks for none of them, and what it asks 0 of."""
    if case["op"] not in ("filter", "preAllocate"):
        return None

    def short(
        request: fit.Ints, node: fit.ReservationNodeView, given_back: Any, ignored: fit.Ignored
    ) -> list[str]:
        given_back = tuple(given_back)
        found, back = short_on_node(request, node, given_back, ignored), sum_of(given_back)
        others = [name for name in request if name != PODS and name not in fit.NATIVE]
        is_asking = bool(others) or any(request.get(name) for name in fit.NATIVE)
        for name in (*fit.NATIVE, *others) if is_asking else ():
            free = node.allocatable.get(name, 0) - node.requested.get(name, 0) + back.get(name, 0)
            if free < 0 and not request.get(name):
                found.append(name)
        return found

    short_on_node = fit.short_on_node
    with (
        mock.patch.object(fit, "short_on_node", short),
        mock.patch.object(preallocation, "short_on_node", short),
    ):
        return ask(case)


def _end_s(reservation: Case) -> float | None:
    """`expires`, else the creation and the ttl; None: never."""
    spec = reservation["spec"]
    if spec.get("expires"):
        return parse_rfc3339(spec["expires"])
    ttl_s = duration.parse(spec["ttl"]) if spec.get("ttl") else 0.0
    return parse_rfc3339(reservation["metadata"]["creationTimestamp"]) + ttl_s if ttl_s else None
