"""`koordinator simulate scheduling` with the Reservations of a dump."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from koordinator.cli import main as cli
from tests.cli.test_explain import dumped, node
from tests.cli.test_explain_reservation import available, owned, reservation

Json = dict[str, Any]


def simulated(folder: Path, *objects: Json, more: tuple[str, ...] = ()) -> Result:
    (folder / "dump.json").write_text(dumped(node("n-0", cpu="4"), *objects))
    file = str(folder / "dump.json")
    return CliRunner().invoke(cli.main, ["simulate", "scheduling", "--nodes", file, "--pods", file, *more])


def report(folder: Path, *objects: Json, more: tuple[str, ...] = ()) -> Json:
    result = simulated(folder, *objects, more=("-o", "json", *more))
    assert result.exit_code == 0, result.output
    found: Json = json.loads(result.stdout)
    return found


def test_room_that_is_held_goes_to_its_owner_and_to_nobody_else(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        available(cpu="3", allocateOnce=False),
        owned("stranger", "api", cpu="2"),
        owned("web", cpu="3"),
    )
    assert (found["placed"], found["unplaced"]) == (1, 1)
    assert found["leftOver"][0]["examples"] == ["default/stranger"]
    assert found["reservations"] == {"held": 1, "placed": 0, "unplaced": {}, "podsInside": 1}


def test_those_that_wait_are_placed_before_the_pods(tmp_path: Path) -> None:
    found = report(
        tmp_path, reservation(cpu="3"), reservation("more", cpu="3"), owned("stranger", "api", cpu="2")
    )
    assert found["placed"] == 0
    told = found["reservations"]
    assert (told["held"], told["placed"], list(told["unplaced"])) == (0, 1, ["more"])
    assert "Insufficient cpu" in told["unplaced"]["more"]


def test_one_for_a_single_owner_gives_back_what_that_leaves(tmp_path: Path) -> None:
    pods = (owned("web", cpu="1"), owned("stranger", "api", cpu="3"))
    once = report(tmp_path, available(cpu="3"), *pods)
    assert (once["placed"], once["reservations"]["podsInside"]) == (2, 1)
    many = report(tmp_path, available(cpu="3", allocateOnce=False), *pods)
    assert many["placed"] == 1


def test_pods_are_replayed_as_if_they_had_used_none_yet(tmp_path: Path) -> None:
    used = owned("web", of="room", nodeName="n-0", cpu="3")
    found = report(tmp_path, available("room", "web", cpu="3"), used)
    assert (found["placed"], found["reservations"]["podsInside"]) == (1, 1)


def test_a_time_line_counts_them_too(tmp_path: Path) -> None:
    pods = [owned("web", cpu="3"), owned("stranger", "api", cpu="3")]
    for number, each in enumerate(pods):
        each["metadata"]["creationTimestamp"] = f"2026-01-01T00:0{number}:00Z"
    pods[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:05:00Z"
    found = report(tmp_path, available(cpu="3"), *pods, more=("--timeline",))
    assert (found["placed"], found["reservations"]["podsInside"]) == (2, 1)
    assert found["waiting"]["maxS"] == 240.0


def test_the_report_says_what_became_of_them(tmp_path: Path) -> None:
    text = simulated(tmp_path, available(cpu="3"), reservation("late", cpu="3"), owned("web", cpu="3")).output
    assert "Reservations: 1 held room already, 0 found a node, 1 did not; 1 pods were placed in them." in text
    assert "late: 0/1 nodes are available" in text
    assert "Reservations" not in simulated(tmp_path, owned("web", cpu="3")).output
