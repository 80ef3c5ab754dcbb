"""`koordinator quota tree` as a user runs it, on dumps and against an API."""

import json
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from koordinator.cli import main as cli
from koordinator.cli.quota_run import PLAIN, TreeDrawing, tree_lines
from koordinator.scheduler.explain.quota_forest import QuotaResource, forest
from tests.scheduler import world
from tests.scheduler.explain.test_quota_forest import STORY, nodes, quota

Json = dict[str, Any]


def dumped(*quotas: Any, cpus: tuple[str, ...] = ("70", "70")) -> str:
    items: list[Json] = [
        {"apiVersion": "v1", "kind": "Node", **world.node(f"n-{n}", cpu=cpu)} for n, cpu in enumerate(cpus)
    ]
    for each in quotas:
        body = msgspec.to_builtins(each)
        items.append({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", **body})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def shown(*args: str, dump: str | None = None) -> Result:
    text = dumped(*STORY) if dump is None else dump
    return CliRunner().invoke(cli.main, ["quota", "tree", *args, "--dump", "-"], input=text)


def test_the_tree_shows_bars_amounts_and_loans() -> None:
    result = shown()

    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "Default tree: cpu 140 (2 nodes)",
        "quota                                               used  runtime  min  max  note",
        "koordinator-root-quota  [████████████████████████]   140      140  140  140",
        "├─ ads                  [█████████████████│██····]   120      120  100  140  "
        "borrows 20 from search, 4 waiting",
        "└─ search               [████·····│··············]    20       20   40  100  lends 20",
    ]


def test_tools_get_json_of_the_part_that_is_asked_for() -> None:
    result = shown("ads", "-o", "json")

    [tree] = json.loads(result.output)["trees"]
    assert [each["name"] for each in tree["quotas"]] == ["ads"]


def test_yaml_says_what_json_says() -> None:
    assert yaml.safe_load(shown("-o", "yaml").output) == json.loads(shown("-o", "json").output)


@pytest.mark.parametrize(
    ("figures", "is_settled"),
    [
        pytest.param(
            QuotaResource(used=2, runtime=3, request=2, max=4), True, id="figures that belong together"
        ),
        pytest.param(
            QuotaResource(used=2, runtime=5, request=2, max=4),
            False,
            id="a runtime of before max was lowered",
        ),
        pytest.param(
            QuotaResource(used=3, runtime=3, request=2, max=4), False, id="a request of before pods came"
        ),
        pytest.param(QuotaResource(used=0, max=4), False, id="no runtime yet"),
    ],
)
def test_figures_of_different_moments_are_not_settled(figures: QuotaResource, is_settled: bool) -> None:
    assert figures.is_settled is is_settled


def test_rows_that_are_not_settled_are_marked() -> None:
    early = quota("ads", low="100", high="140", used="120", request="110", runtime="120")

    assert "not settled yet" in shown(dump=dumped(early)).output


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100])
def test_no_line_is_wider_than_the_terminal_where_the_names_fit(width: int) -> None:
    found = forest([*STORY, quota("broken", used="?", runtime="1")], nodes("70"))

    lines = tree_lines(found, found.trees, TreeDrawing(width=width, glyphs=PLAIN))

    assert any("broken" in line.plain for line in lines)
    assert any("borrows" in line.plain for line in lines)
    if width >= 40:
        assert max(len(line.plain) for line in lines) <= max(width, len(lines[0].plain))
    assert all(line.plain.isascii() for line in lines)


def test_depth_says_how_much_is_below() -> None:
    output = shown("--depth", "1", dump=dumped(quota("team", is_parent=True), quota("web", "team"))).output

    assert "web" not in output
    assert "1 quota below" in output


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        pytest.param(["serch"], 1, "no quota is called serch; there are search", id="no such quota"),
        pytest.param(["--tree", "x"], 1, "there is no tree 'x'; there are ''", id="no such tree"),
        pytest.param(["--watch"], 2, "--watch follows a cluster", id="watching a dump"),
    ],
)
def test_mistakes_are_reported_in_one_line(args: list[str], status: int, message: str) -> None:
    result = shown(*args)

    assert (result.exit_code, message in result.output) == (status, True), result.output


def test_broken_quotas_are_told_below_the_tree() -> None:
    dump = dumped(*STORY, quota("a", "b"), quota("b", "a"), quota("lost", "nobody"))

    output = shown(dump=dump).output

    assert "Quotas in no tree" in output
    assert "quotas/a: its parents go round in a circle: a → b → a" in output
    assert "quotas/lost: the parent is missing: nobody" in output
    assert "quota lost is in no tree: the parent is missing" in shown("lost", dump=dump).output


def test_help_teaches_the_signs_and_commands_to_try() -> None:
    output = CliRunner().invoke(cli.main, ["quota", "tree", "--help"]).output

    assert "koordinator quota tree ads --resource cpu --watch" in output
    assert "░ may be used now" in output
