"""`koordinator explain reservation` on a dump: where it is, who may use it, who does, who does not."""

import json
from typing import Any

from click.testing import CliRunner, Result

from koordinator.cli import main as cli
from tests.cli.test_explain import dumped, node, pod
from tests.scheduler.reservation import test_plugin

Json = dict[str, Any]


def reservation(name: str = "room", *, status: Json | None = None, **spec: Any) -> Json:
    body = test_plugin.reservation(name, cpu=spec.pop("cpu", "2"), **spec)
    body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        **body,
        "status": status or {},
    }


def available(name: str = "room", *owners: str, **spec: Any) -> Json:
    status = {
        "phase": "Available",
        "nodeName": "n-0",
        "allocatable": {"cpu": spec.get("cpu", "2"), "memory": "1Gi"},
        "currentOwners": [{"namespace": "default", "name": each, "uid": f"uid-{each}"} for each in owners],
    }
    return reservation(name, status=status, **spec)


def owned(name: str, app: str = "web", *, of: str = "", **parts: Any) -> Json:
    body = pod(name, **parts)
    body["metadata"] |= {"labels": {"app": app}, "uid": f"uid-{name}"}
    if of:
        allocated = json.dumps({"name": of, "uid": f"uid-{of}"})
        body["metadata"]["annotations"] = {test_plugin.ALLOCATED: allocated}
    return body


def explained(*objects: Json, ask: tuple[str, ...] = ("reservation", "room")) -> Result:
    dump = dumped(node("n-0", cpu="4"), *objects)
    return CliRunner().invoke(cli.main, ["explain", *ask, "--dump", "-"], input=dump)


def words(result: Result) -> str:
    return " ".join(result.output.split())


def test_one_that_holds_room_tells_whose_it_is_and_who_has_it() -> None:
    user = owned("web-0", of="room", nodeName="n-0", cpu="1500m")
    result = explained(available("room", "web-0", allocateOnce=False), user)

    assert result.exit_code == 0, result.output
    text = words(result)
    assert "Reservation room holds 2 cores, 1 GiB of memory on n-0; default/web-0 uses it." in text
    assert "may be used by pods with app=web" in text
    assert "ends at 2026-01-01T01:00:00Z" in text
    assert "cpu 2 1.5 0.5" in text


def test_pods_that_do_not_use_it_are_told_why() -> None:
    text = words(explained(available(), owned("big", cpu="5"), owned("late", nodeName="n-0", cpu="1")))
    assert "default/big is for the pod, but too small" in text
    assert "default/late runs there without it" in text

    once = explained(available("room", "a"), owned("a", of="room", nodeName="n-0"), owned("b", cpu="1"))
    assert "default/b is for one owner only, and used by default/a" in words(once)

    stranger = explained(
        available(), owned("other", "api", cpu="3"), ask=("reservation", "room", "--pod", "default/other")
    )
    assert "default/other is for other owners" in words(stranger)


def test_one_without_a_node_is_explained_as_a_pod_is() -> None:
    result = explained(reservation(cpu="8"))
    assert result.exit_code == 3
    text = words(result)
    assert "Reservation room is pending: none of 1 nodes takes it: Insufficient cpu (1)." in text
    assert "lower the cpu request from 8 to at most 4" in text

    fits = explained(reservation())
    assert fits.exit_code == 0
    assert "Reservation room fits 1 of 1 nodes; the next cycle would choose n-0." in words(fits)


def test_one_that_is_over_says_how_it_ended() -> None:
    done = explained(
        reservation(status={"phase": "Succeeded", "currentOwners": [{"namespace": "x", "name": "p"}]})
    )
    assert (done.exit_code, "is used up by x/p" in done.output) == (0, True)
    expired = {"type": "Ready", "status": "False", "reason": "Expired"}
    assert "has expired" in explained(reservation(status={"phase": "Failed", "conditions": [expired]})).output


def test_an_unknown_name_is_answered_with_those_that_it_may_mean() -> None:
    result = explained(available("rooms"))
    assert result.exit_code == 1
    assert "no reservation is called room; there are rooms" in words(result)
    assert "no pod is called default/nope" in words(
        explained(available(), ask=("reservation", "room", "--pod", "nope"))
    )


def test_a_pod_is_told_which_reservations_keep_the_room_that_it_lacks() -> None:
    stranger = explained(available(cpu="3"), owned("other", "api", cpu="2"), ask=("pod", "other"))
    assert stranger.exit_code == 3
    assert "reservation room keeps 3 cores, 1 GiB of memory free on n-0 for its owners" in words(stranger)

    owner = explained(available(cpu="3"), owned("big", cpu="5"), ask=("pod", "big"))
    assert "reservation room on n-0 is for the pod, but too small" in words(owner)
    fits = explained(available(cpu="3"), owned("web", cpu="3"), ask=("pod", "web"))
    assert fits.exit_code == 0, fits.output


def test_the_answer_is_the_same_as_json() -> None:
    result = explained(available(), ask=("reservation", "room", "-o", "json"))
    found = json.loads(result.output)
    assert (found["verdict"], found["node"], found["owners"]) == ("Bound", "n-0", ["pods with app=web"])
