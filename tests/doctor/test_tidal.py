"""Tidal pools that nobody looks at, that wait for a descheduler, that are stuck, and marks that were left."""

from typing import Any

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.groups import Lease
from koordinator.api.tidal_pool import TidalPool
from tests.doctor.builders import decoded, findings, healthy, lease, snapshot

READY = {"type": "Ready", "status": "True", "reason": "AsWanted", "message": ""}


def pool(*conditions: dict[str, Any], **spec: Any) -> TidalPool:
    body = {"spec": {"nodeSelector": {}, **spec}, "status": {"conditions": list(conditions)}}
    return decoded(TidalPool, body, name="night")


def problems(found: TidalPool | None, *, descheduler: bool = True) -> list[str]:
    objects = healthy()
    objects[TidalPool] = [] if found is None else [found]
    if descheduler:
        objects[Lease] = [*objects[Lease], lease("koord-descheduler", "us")]
    return [each.problem for each in findings("tidal-pools", snapshot(objects))]


def test_a_pool_that_works_is_no_trouble() -> None:
    assert problems(pool(READY)) == []
    assert problems(None, descheduler=False) == []


def test_a_pool_without_controller_or_descheduler_lends_nothing() -> None:
    assert problems(pool(), descheduler=False) == ["no controller has looked at them", "no descheduler leads"]


def test_what_keeps_a_pool_from_lending_is_told() -> None:
    blocked = READY | {"status": "False", "reason": "Blocked", "message": "n1: no room"}
    drains = READY | {"type": "DrainBlocked", "message": "n2: web-1 did not leave"}
    assert problems(pool(blocked, drains)) == ["n1: no room", "n2: web-1 did not leave"]
    assert problems(pool(READY, leadTime="soon"))[0].startswith("spec.leadTime:")


def test_marks_of_a_pool_that_is_gone_are_told() -> None:
    objects = healthy()
    left = decoded(Node, {"metadata": {"labels": {labels.TIDAL_POOL: "gone"}}}, name="left")
    objects[Node] = [*objects[Node], left]
    objects[TidalPool] = []
    told = [each.problem for each in findings("tidal-pools", snapshot(objects))]
    assert told == ["bear marks of a TidalPool that does not exist"]
