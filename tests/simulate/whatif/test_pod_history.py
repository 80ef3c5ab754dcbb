"""History by pod from CSV: what fits, what is missing, whose pods are gone."""

import io
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from koordinator.api.core import Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.cli import main as cli
from koordinator.simulate import dump as dumps
from koordinator.simulate.whatif import cluster as clusters
from koordinator.simulate.whatif import series
from koordinator.simulate.whatif.cluster import WhatIfCluster, WhatIfError
from koordinator.simulate.whatif.pod_history import PodHistory
from tests.simulate.whatif.world import WhatIfWorld

NAN = float("nan")


def cluster(path: Path) -> WhatIfCluster:
    world = WhatIfWorld()
    world.node("n0")
    world.pods("web", "n0", 3, uses_milli=700)
    dump = dumps.read([str(world.dump(path / "dump.json"))])
    return clusters.of_objects(dump.views(Node), dump.each(Pod), dump.each(NodeMetric))


def history(path: Path, cpu: str, memory: str = "") -> PodHistory:
    (path / "cpu.csv").write_text(cpu)
    (path / "memory.csv").write_text(memory)
    known = series.read(path / "memory.csv") if memory else None
    return PodHistory(cluster(path), series.read(path / "cpu.csv"), known, 300.0)


def test_pods_follow_their_lines_and_the_rest_counts_as_now(tmp_path: Path) -> None:
    found = history(tmp_path, "shop/web-n0-0,1,2\nshop/web-n0-1,,0.5\n")

    assert np.allclose(found.at(0).cpu_milli, [1_000, 700, 700], rtol=1e-4)
    assert np.allclose(found.at(1).cpu_milli, [2_000, 500, 700], rtol=1e-4)
    assert "1 of 3 service pods have no history" in found.notes[0]


def test_pods_that_are_gone_count_for_those_of_their_workload_that_were_not_there(tmp_path: Path) -> None:
    text = "shop/web-n0-0,1,1\nshop/web-n0-1,,1\nshop/web-n0-2,,1\nshop/web-5d4f8c7b9-x2x7q,0.6,\nshop/job-12345,9,9\n"
    found = history(tmp_path, text)

    assert np.allclose(found.at(0).cpu_milli, [1_000, 300, 300], rtol=1e-4)
    assert np.allclose(found.at(1).cpu_milli, [1_000, 1_000, 1_000], rtol=1e-4)
    assert any("1 pods of the history are batch, or gone" in note for note in found.notes)


def test_memory_may_have_longer_steps(tmp_path: Path) -> None:
    cpu = "shop/web-n0-0," + ",".join(["1"] * 24) + "\n"
    found = history(tmp_path, cpu, "shop/web-n0-0,1e9,2e9\n")

    assert [round(float(found.at(step).memory_bytes[0]) / 1e9, 3) for step in (0, 11, 12, 23)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shop/a,1,x\n", "line 1, column 3: 'x' is not a number"),
        ("shop/a,1,2\nshop/b,1\n", "line 2: has 1 values where the lines before have 2"),
        ("shop/a,-1\n", "line 1, column 2: -1 cannot be true"),
        ("shop/a\n", "line 1: has no values"),
        ("shop/a,1\nn0,1\n", "line 2: 'n0' is no pod"),
        ("\n", "is empty"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(WhatIfError, match=words):
        series.read(tmp_path / "bad.csv")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    builder = series.SeriesBuilder()
    builder.add("shop/a", np.array([0.25, NAN, 3.0]))
    builder.add("shop/idle", np.zeros(3))
    out = io.StringIO()
    series.write(out, builder.built())
    (tmp_path / "again.csv").write_text(out.getvalue())

    found = series.read(tmp_path / "again.csv")

    assert found.names == ["shop/a", "shop/idle"]
    assert np.allclose(found.between(0, 3)[:, 0], [0.25, NAN, 3.0], rtol=1e-4, equal_nan=True)
    assert found.between(0, 3)[:, 1].tolist() == [0, 0, 0]


def test_the_command_takes_both_files(tmp_path: Path) -> None:
    cluster(tmp_path)
    (tmp_path / "cpu.csv").write_text("".join(f"shop/web-n0-{i},{','.join(['1'] * 12)}\n" for i in range(3)))
    (tmp_path / "mem.csv").write_text("".join(f"shop/web-n0-{i},1e9\n" for i in range(3)))
    words = [
        "simulate",
        "colocation",
        "--dump",
        str(tmp_path / "dump.json"),
        "--history",
        str(tmp_path / "cpu.csv"),
    ]

    result = CliRunner().invoke(cli.main, [*words, "--memory-history", str(tmp_path / "mem.csv")])

    assert result.exit_code == 0, result.output
    assert "CPU and memory of 3 pods" in result.stdout
