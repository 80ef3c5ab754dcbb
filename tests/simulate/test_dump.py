"""Dumps as kubectl prints them, and the engine that is rebuilt from one."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.user_files import FileError
from koordinator.scheduler.config import default_plugins
from koordinator.simulate import dump as dumps
from koordinator.simulate.dump import DumpError
from tests.scheduler import world

Json = dict[str, Any]


def typed(kind: str, body: Json) -> Json:
    return {"apiVersion": "v1", "kind": kind, **body}


def listed(*items: Json, kind: str = "List") -> Json:
    return {"apiVersion": "v1", "kind": kind, "items": list(items)}


NODE = typed("Node", world.node("n-0"))
POD = typed("Pod", world.pod("web"))


def names(text: str) -> list[str]:
    dump = dumps.Dump()
    for place, document in dumps.documents("f", io.BytesIO(text.encode())):
        dump.add("f", document, place)
    return [each.metadata.name for view in (Node, Pod) for each in dump.views(view)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps(listed(NODE, POD)), id="kubectl get -o json"),
        pytest.param(json.dumps([NODE, POD]), id="a plain JSON list"),
        pytest.param("---\n" + json.dumps(NODE) + "\n---\n" + json.dumps(POD) + "\n", id="YAML documents"),
        pytest.param(
            json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": [world.node("n-0")]}, indent=2)
            + "\n"
            + json.dumps(listed(world.pod("web"), kind="PodList"))
            + "\n==== START logs for container main of pod default/web ====\n{ not json\n"
            + "==== END logs for container main of pod default/web ====\n",
            id="kubectl cluster-info dump, with logs",
        ),
        pytest.param(
            "apiVersion: v1\nkind: List\nitems:\n"
            "- kind: Node\n  metadata: {name: n-0, creationTimestamp: 2026-01-02T03:04:05Z}\n"
            "- kind: Pod\n  metadata: {name: web, namespace: default}\n",
            id="kubectl get -o yaml, times without quotes",
        ),
    ],
)
def test_all_forms_of_dumps_are_read(text: str) -> None:
    assert names(text) == ["n-0", "web"]


def test_the_last_file_wins(tmp_path: Path) -> None:
    for number, cpu in enumerate(("1", "2")):
        (tmp_path / f"{number}.json").write_text(json.dumps(typed("Node", world.node("n-0", cpu=cpu))))

    [node] = dumps.read([str(tmp_path / "0.json"), str(tmp_path / "1.json")]).views(Node)

    assert node.status.allocatable["cpu"] == "2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"kind": "Node"', "line 1, column 16: ends too early", id="cut off"),
        pytest.param('{"kind": "Node", "a": [1', "no JSON: Expecting ',' delimiter", id="cut off in a value"),
        pytest.param('{"a": ' + "[" * 100_000, "nested too deeply", id="too deep"),
        pytest.param("[" * 500 + "]" * 500, "lists nested more than 20 deep", id="lists in lists"),
        pytest.param("- " * 5_000, "exceeded max depth", id="YAML that is too deep"),
        pytest.param("a: [1", "no YAML", id="no YAML"),
        pytest.param("just words", "$: expected a Kubernetes object", id="no object"),
        pytest.param(
            '{"kind": "Pod", "metadata": {}}', "$.metadata.name: a Pod without a name", id="no name"
        ),
        pytest.param(
            '{"kind": "List", "items": [{"a": 1}]}', "$.items[0]: expected a Kubernetes object", id="no kind"
        ),
    ],
)
def test_broken_dumps_say_where(text: str, message: str) -> None:
    with pytest.raises((DumpError, FileError)) as caught:
        names(text)

    assert message in str(caught.value)


def test_an_object_that_does_not_fit_is_named() -> None:
    with pytest.raises(DumpError, match=r"f: Node n-0: .*labels"):
        names(json.dumps({"kind": "Node", "metadata": {"name": "n-0", "labels": 3}}))


def test_a_dump_without_nodes_says_what_it_has() -> None:
    dump = dumps.Dump()
    dump.add("f", POD)

    with pytest.raises(DumpError, match=r"no Nodes in it \(found: 1 Pod\)"):
        dumps.snapshot(dump, default_plugins.shipped_config())


def test_the_engine_counts_running_pods_and_knows_nominations() -> None:
    running = typed("Pod", world.pod("running", nodeName="n-0"))
    ended = typed("Pod", {**world.pod("ended", nodeName="n-0"), "status": {"phase": "Succeeded"}})
    nominated = typed("Pod", {**world.pod("next"), "status": {"nominatedNodeName": "n-0"}})
    dump = dumps.Dump()
    dump.add("f", listed(NODE, running, ended, nominated))

    found = dumps.snapshot(dump, default_plugins.shipped_config())

    table = found.engine.table
    assert [place.pod.key for place in table.places()] == ["default/running"]
    assert len(found.engine.nominations) == 1


def test_time_stands_where_the_newest_report_was_made() -> None:
    metric = {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": "n-0"},
        "status": {"updateTime": "2026-05-01T00:00:10Z"},
    }
    dump = dumps.Dump()
    dump.add("f", listed(NODE, metric))

    found = dumps.snapshot(dump, default_plugins.shipped_config())

    assert found.now_s == 1_777_593_610.0
