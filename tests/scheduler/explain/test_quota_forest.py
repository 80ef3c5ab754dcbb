"""Trees of quotas from their objects, whole or broken."""

import json
from typing import Any

import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.sigs import ElasticQuota
from koordinator.scheduler.explain.quota_forest import Forest, forest, is_unreached, to_json
from tests.scheduler import world

Q = "quota.scheduling.koordinator.sh"
UNIT = 10**9


def quota(name: str, parent: str = "", *, low: str = "0", high: str = "100", **parts: Any) -> ElasticQuota:
    """`parts`: used, runtime, request (of CPU), labels, annotations, namespace, is_parent."""
    labels = {f"{Q}/{key}": text for key, text in parts.get("labels", {}).items()}
    if parent:
        labels[f"{Q}/parent"] = parent
    if parts.get("is_parent"):
        labels[f"{Q}/is-parent"] = "true"
    annotations = dict(parts.get("annotations", {}))
    for key in ("runtime", "request"):
        if key in parts:
            annotations[f"{Q}/{key}"] = json.dumps({"cpu": parts[key]})
    body = {
        "metadata": {
            "name": name,
            "namespace": parts.get("namespace", "quotas"),
            "labels": labels,
            "annotations": annotations,
            "creationTimestamp": parts.get("created", "2026-01-01T00:00:00Z"),
        },
        "spec": {"min": {"cpu": low}, "max": {"cpu": high}},
        "status": {"used": {"cpu": parts.get("used", "0")}},
    }
    return from_builtins(body, ElasticQuota)


def nodes(*cpus: str) -> list[Node]:
    return [from_builtins(world.node(f"n-{n}", cpu=cpu), Node) for n, cpu in enumerate(cpus)]


def strays(found: Forest) -> dict[str, str]:
    return {each.name: each.reason for each in found.strays}


STORY = [
    quota("ads", low="100", high="140", used="120", runtime="120", request="124"),
    quota("search", low="40", high="100", used="20", runtime="20", request="20"),
]


def test_loans_between_siblings_follow_from_their_annotations() -> None:
    found = forest(STORY, nodes("70", "70"))

    ads, search = found.find("ads"), found.find("search")
    assert ads is not None and search is not None
    assert ads.figures["cpu"].loan.lenders == {"search": 20 * UNIT}
    assert ads.figures["cpu"].waiting == 4 * UNIT
    assert search.figures["cpu"].loan.lent == 20 * UNIT


def test_an_idle_quota_has_a_runtime_of_zero_where_a_scheduler_writes_runtimes() -> None:
    idle, alone = forest([*STORY, quota("idle")]).find("idle"), forest([quota("idle")]).find("idle")

    assert idle is not None and alone is not None
    assert (idle.figures["cpu"].runtime, idle.notes) == (0, [])
    assert (alone.figures["cpu"].runtime, alone.notes) == (None, ["no scheduler has written a runtime yet"])
    sure = forest([quota("sure", low="1", annotations={f"{Q}/guaranteed": '{"cpu":"1"}'})]).find("sure")
    assert sure is not None and sure.figures["cpu"].runtime == 0


def test_the_root_of_a_cluster_without_quotas_has_what_the_nodes_have() -> None:
    [tree] = forest([quota("koordinator-default-quota")], nodes("70")).trees

    assert tree.tops[0].figures["cpu"].runtime == 70 * UNIT


@pytest.mark.parametrize(
    ("ceiling", "is_none"),
    [
        pytest.param("1844674407370955161", True, id="that of the default quota"),
        pytest.param("4611686018427387", True, id="that of a tree's root"),
        pytest.param("5Pi", False, id="memory of a large cluster"),
    ],
)
def test_a_max_that_nothing_reaches_is_none(ceiling: str, is_none: bool) -> None:
    found = forest([quota("all", high=ceiling)]).find("all")

    assert found is not None and found.figures["cpu"].max is not None
    assert is_unreached(found.figures["cpu"].max) == is_none


def test_the_root_has_what_the_nodes_have_less_what_system_and_default_pods_use() -> None:
    system = quota("koordinator-system-quota", high="1844674407370955161", used="10")

    [tree] = forest([*STORY, system], nodes("70", "70")).trees

    [root] = tree.tops
    assert (root.name, root.figures["cpu"].runtime) == ("koordinator-root-quota", 130 * UNIT)
    assert root.figures["cpu"].used == 150 * UNIT
    assert (tree.total["cpu"], tree.source) == (140 * UNIT, "2 nodes")


def test_without_nodes_it_is_not_known_what_the_default_tree_has() -> None:
    [tree] = forest(STORY).trees

    assert (tree.total, tree.tops[0].figures["cpu"].runtime) == ({}, None)


def test_another_tree_has_what_its_root_quota_says_and_leaves_the_default_tree() -> None:
    gpu = quota(
        "gpu",
        low="30",
        is_parent=True,
        labels={"tree-id": "t1", "is-root": "true"},
        annotations={f"{Q}/total-resource": '{"cpu":"30"}'},
    )
    train = quota("train", "gpu", labels={"tree-id": "t1"})

    default, other = forest([*STORY, gpu, train], nodes("70", "70")).trees

    assert (other.tree_id, other.total) == ("t1", {"cpu": 30 * UNIT})
    assert [node.name for top in other.tops for node in top.walk()] == ["gpu", "train"]
    assert default.total["cpu"] == 110 * UNIT
    assert default.source == "2 nodes less other trees"


def test_quotas_without_a_way_to_the_root_are_reported_with_the_reason() -> None:
    found = forest(
        [
            quota("orphan", "nobody"),
            quota("below", "orphan"),
            quota("a", "b"),
            quota("b", "a"),
            quota("ads"),
            quota("ads", namespace="elsewhere", created="2026-02-01T00:00:00Z"),
        ]
    )

    assert strays(found) == {
        "orphan": "the parent is missing: nobody",
        "below": "the parent of orphan above it is missing: nobody",
        "a": "its parents go round in a circle: a → b → a",
        "b": "its parents go round in a circle: b → a → b",
        "ads": "the name is taken by quotas/ads, which is older",
    }


def test_what_is_wrong_with_a_quota_is_noted_at_it_and_the_rest_is_shown() -> None:
    broken = quota("broken", used="much", annotations={f"{Q}/runtime": "{"})
    team = quota("team", runtime="5")

    found = forest([broken, team, quota("child", "team", labels={"tree-id": "t2"})])

    shown = found.find("broken")
    assert shown is not None
    assert any(note.startswith("status.used: 'much' is not a quantity") for note in shown.notes)
    assert any(f"{Q}/runtime" in note for note in shown.notes)
    parent, child = found.find("team"), found.find("child")
    assert parent is not None and child is not None
    assert parent.notes == [f"has children, but not the label {Q}/is-parent=true"]
    assert child.notes[-1] == "tree id 't2' differs from '' of its parent team"


def test_a_deep_branch_is_no_deeper_than_it_is() -> None:
    chain = [quota("q0"), *(quota(f"q{n}", f"q{n - 1}") for n in range(1, 1_200))]

    found = forest(chain)

    last = found.find("q1199")
    assert last is not None and len(last.path) == 1_200


def test_tools_get_amounts_as_quantities() -> None:
    body = to_json(forest(STORY, nodes("70", "70")))

    [ads] = [each for each in body["trees"][0]["quotas"] if each["name"] == "ads"]
    assert ads["resources"]["cpu"] == {
        "used": "120",
        "runtime": "120",
        "request": "124",
        "min": "100",
        "max": "140",
        "borrowed": "20",
        "lent": "0",
        "lenders": {"search": "20"},
    }
