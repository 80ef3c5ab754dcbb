"""GPU pods that arrive until cards have been requested so many times: a small trace, counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordinator.cli import main as cli
from koordinator.scheduler.plugins.fragmentation.demand import PodDemand, Shape
from koordinator.simulate import gpu_course

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,8192,2,T4\nb,8000,8192,2,A10\n"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def simulated(folder: Path, pods: str, *args: str) -> dict[str, Any]:
    (folder / "nodes.csv").write_text(NODES)
    (folder / "pods.csv").write_text(HEADER + pods)
    files = ["--nodes", str(folder / "nodes.csv"), "--pods", str(folder / "pods.csv")]
    result = CliRunner().invoke(
        cli.main, ["simulate", "scheduling", *files, "--gpu", "share", "-o", "json", *args]
    )
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_pods_are_drawn_again_until_enough_was_requested(tmp_path: Path) -> None:
    found = simulated(tmp_path, "p,1000,1024,1,600,\n", "--arrivals", "1.5")["gpu"]

    # 4 cards, each takes one pod of 0.6: 10 pods request 150 %, and 7 are there at the first 100 %.
    assert found["arrivedPods"] == 10 and found["placedPods"] == 4
    assert found["arrivedPercent"] == pytest.approx(150)
    assert found["allocatedPercentAtFullArrivals"] == pytest.approx(60)
    assert found["allocatedPercent"] == pytest.approx(60)
    assert found["boundPercent"] == pytest.approx(60)  # a pod of 0.6 costs a card
    assert found["course"][-1]["left"]["tooSmall"] == pytest.approx(40)


@pytest.mark.parametrize("score", ["FragmentationGradient", "MostAllocated", "LeastAllocated"])
def test_models_are_honoured_and_what_is_left_has_a_cause(tmp_path: Path, score: str) -> None:
    found = simulated(tmp_path, "p,1000,1024,1,1000,T4\n", "--arrivals", "1.3", "--score", score)["gpu"]

    assert found["allocatedPercent"] == found["boundPercent"] == pytest.approx(50)
    assert found["course"][-1]["left"] == {
        "wrongModel": pytest.approx(50), "noCpu": 0, "noMemory": 0, "tooSmall": 0, "usable": 0,
    }  # fmt: skip


def test_a_node_without_cpu_strands_its_cards(tmp_path: Path) -> None:
    found = simulated(tmp_path, "p,8000,1024,1,1000,\n", "--arrivals", "1")["gpu"]

    assert found["allocatedPercent"] == pytest.approx(50)
    assert found["course"][-1]["left"]["noCpu"] == pytest.approx(50)


def test_equal_seeds_give_equal_runs_and_others_other_orders(tmp_path: Path) -> None:
    pods = "".join(f"p{n},1000,512,1,{100 + 90 * n},\n" for n in range(9))
    runs = [simulated(tmp_path, pods, "--arrivals", "1.3", "--seed", seed)["gpu"] for seed in "112"]

    assert runs[0] == runs[1]
    assert runs[0]["course"] != runs[2]["course"]


def test_the_gradient_puts_parts_together_that_fill_a_card(tmp_path: Path) -> None:
    pods = "".join(f"p{n},1000,512,1,{milli},\n" for n, milli in enumerate([700, 300, 500, 500]))

    gradient = simulated(tmp_path, pods, "--arrivals", "1", "--score", "FragmentationGradient")["gpu"]
    spread = simulated(tmp_path, pods, "--arrivals", "1", "--score", "LeastAllocated")["gpu"]

    assert gradient["allocatedPercent"] > spread["allocatedPercent"]


def test_the_bound_counts_what_each_set_of_models_can_take() -> None:
    arrived = {
        PodDemand(Shape(1, 1, 1, 100), ("T4",)): 6,
        PodDemand(Shape(1, 1, 1, 100)): 1,
        PodDemand(Shape(1, 1, 0, 0)): 9,
    }

    assert gpu_course.bound(arrived, {"T4": 2, "A10": 2}) == pytest.approx(75)
    assert gpu_course.bound({PodDemand(Shape(1, 1, 1, 60)): 9}, {"": 4}) == pytest.approx(60)


def test_arrivals_need_cards(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(HEADER + "p,1000,1024,0,0,\n")
    files = ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]
    result = CliRunner().invoke(
        cli.main, ["simulate", "scheduling", *files, "--gpu", "share", "--arrivals", "1"]
    )

    assert result.exit_code != 0
    assert "--arrivals needs nodes with GPUs" in result.output
