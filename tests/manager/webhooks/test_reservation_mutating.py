"""Profiles on Reservations: what goes on the object, what into its template, and what stays."""

import copy
from typing import Any

from koordinator.api import labels
from koordinator.api.decode import from_builtins
from koordinator.api.groups import ClusterColocationProfile, PriorityClass
from koordinator.manager.profiles.profile_matching import CompiledProfile, compile_profile
from koordinator.manager.webhooks import pod_mutating

CLASSES = {"koord-batch": from_builtins({"metadata": {"name": "koord-batch"}, "value": 5_000}, PriorityClass)}


def compiled(**spec: Any) -> CompiledProfile:
    return compile_profile(from_builtins({"metadata": {"name": "p"}, "spec": spec}, ClusterColocationProfile))


def reservation() -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": {"own": "yes"}}, "spec": {"containers": [container]}}
    return {"metadata": {"name": "r"}, "spec": {"ttl": "1h", "template": template}}


def mutate(body: dict[str, Any], *profiles: CompiledProfile) -> dict[str, Any]:
    return pod_mutating.mutate_reservation(body, profiles, priority_class=CLASSES.get, draw=lambda: 0)


def test_labels_go_on_the_reservation_and_scheduling_into_its_template() -> None:
    body = reservation()
    before = copy.deepcopy(body)

    found = mutate(body, compiled(qosClass="BE", priorityClassName="koord-batch", schedulerName="s"))

    assert body == before
    assert found["metadata"]["labels"] == {labels.QOS_CLASS: "BE"}
    template = found["spec"]["template"]
    assert template["metadata"] == {"labels": {"own": "yes"}}
    assert (template["spec"]["schedulerName"], template["spec"]["priority"]) == ("s", 5_000)
    assert template["spec"]["containers"] == before["spec"]["template"]["spec"]["containers"], "amounts stay"


def test_containers_of_the_template_are_patched_by_name() -> None:
    patch = {
        "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "y"}, {"name": "side"}]}}}
    }

    found = mutate(reservation(), compiled(patch=patch))

    containers = {each["name"]: each for each in found["spec"]["template"]["spec"]["containers"]}
    assert containers["main"]["image"] == "y" and containers["main"]["resources"] == {
        "requests": {"cpu": "1"}
    }
    assert containers.keys() == {"main", "side"}


def test_a_reservation_without_a_template_gets_labels_only() -> None:
    body = {"metadata": {"name": "r"}, "spec": {"ttl": "1h"}}

    found = mutate(body, compiled(qosClass="BE", priorityClassName="koord-batch"))

    assert found["spec"] == {"ttl": "1h"} and found["metadata"]["labels"] == {labels.QOS_CLASS: "BE"}


def test_a_reservation_without_a_spec_gets_labels_only() -> None:
    for body in ({"metadata": {"name": "r"}}, {"metadata": {"name": "r"}, "spec": None}):
        found = mutate(body, compiled(qosClass="BE"))
        assert found == {**body, "metadata": {"name": "r", "labels": {labels.QOS_CLASS: "BE"}}}


def test_an_empty_template_takes_the_scheduler() -> None:
    body = {"metadata": {"name": "r"}, "spec": {"template": {"metadata": {"name": "t"}}}}
    template = mutate(body, compiled(schedulerName="s"))["spec"]["template"]
    assert template == {"metadata": {"name": "t"}, "spec": {"schedulerName": "s"}}


def test_a_share_of_reservations_is_drawn_exactly() -> None:
    half = compiled(probability="50%", qosClass="BE")

    drawn = [
        "labels"
        in pod_mutating.mutate_reservation(
            reservation(), [half], priority_class=CLASSES.get, draw=lambda number=number: number
        )["metadata"]
        for number in range(100)
    ]

    assert sum(drawn) == 50
