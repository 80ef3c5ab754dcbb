"""`koordinator simulate scheduling` as a user runs it."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koordinator.cli import main as cli
from tests.scheduler import world

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn-0,4000,8192,0,\nn-1,8000,8192,1,T4\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,creation_time,deletion_time\n"
    "a,6000,1024,0,0,50\nb,4000,1024,0,5,60\nc,9000,1024,0,6,\ng,1000,1024,1,7,\n"
)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv.gz").write_bytes(gzip.compress(PODS.encode()))
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv.gz")]


def simulated(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["simulate", "scheduling", *args])


def test_the_report_fits_one_screen(files: list[str]) -> None:
    result = simulated(*files)

    assert result.exit_code == 0, result.output
    assert "2 of 3 pods placed on 2 of 2 nodes." in result.output
    assert "1 pods that ask for GPUs are left out" in result.output
    assert "Insufficient cpu" in result.output
    assert len(result.output.splitlines()) < 50


def test_json_has_every_figure(files: list[str]) -> None:
    found = json.loads(simulated(*files, "-o", "json").stdout)

    assert (found["placed"], found["unplaced"], found["gpuPodsLeftOut"]) == (2, 1, 1)
    assert found["leftOver"] == [{"reasons": ["Insufficient cpu"], "pods": 1, "examples": ["replay/c"]}]


def test_a_time_line_is_replayed(files: list[str]) -> None:
    result = simulated(*files, "--timeline")

    assert "2 of 3 pods were placed" in result.output
    assert "Waiting: 2 pods placed at once" in result.output


def test_a_page_is_written(files: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    result = simulated(*files, "--timeline", "-o", "html", "--output-file", str(page))

    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "Scheduling 3 pods on 2 nodes" in text and "Over time" in text and "http://" not in text[:2_000]


def test_dumps_of_kubectl_are_replayed_as_if_nobody_had_placed_the_pods(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", **world.node("n-0")}
    bound = {"apiVersion": "v1", "kind": "Pod", **world.pod("web", nodeName="gone")}
    ended = {"apiVersion": "v1", "kind": "Pod", **world.pod("job"), "status": {"phase": "Succeeded"}}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, bound, ended]}))

    result = simulated("--nodes", str(path), "--pods", str(path))

    assert "1 of 1 pods placed" in result.output
    assert "1 pods of the files had ended already" in result.output


def test_no_nodes_are_an_error_that_says_why(tmp_path: Path, files: list[str]) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu\nn,1,1,2\n")

    result = simulated("--nodes", str(path), *files[2:], "--gpu", "cpu-only")

    assert result.exit_code == 1
    assert "there are no nodes" in result.output and "--gpu cpu-only" in result.output


def test_a_broken_table_is_an_error_with_its_place(tmp_path: Path, files: list[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("sn,cpu_milli,memory_mib\nn,x,1\n")

    result = simulated("--nodes", str(path), *files[2:])

    assert result.exit_code == 1
    assert f"{path}: row 2, column cpu_milli: 'x' is no whole number" in result.output


def test_a_missing_file_is_an_error(files: list[str]) -> None:
    result = simulated("--nodes", "nowhere.csv", *files[2:])

    assert result.exit_code == 1
    assert "nowhere.csv" in result.output


def test_a_time_line_has_an_order_of_its_own(files: list[str]) -> None:
    assert simulated(*files, "--timeline", "--order", "priority").exit_code == 2
