"""Tables of nodes and pods: what they mean, and what is said about broken ones."""

import functools
import gzip
from pathlib import Path

import pytest

from koordinator.api import labels
from koordinator.simulate import replay_csv
from koordinator.simulate.replay_csv import TableError
from koordinator.simulate.replay_options import Gpu

packed = functools.partial(gzip.compress, mtime=0)
"""Without the time: workers of one test run must name cases alike."""

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn-0,4000,8192,0,\nn-1,64000,65536,2,T4\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "a,1000,2048,0,0,,LS,Running,0,100,0\n"
    "b,500,512,1,460,T4|P100,BE,Pending,10,,\n"
    "c,500,512,2,1000,,Burstable,Running,20,30,21\n"
)


def table(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_nodes_have_their_cpus_memory_and_pods(tmp_path: Path) -> None:
    nodes = replay_csv.read_nodes(table(tmp_path, NODES), Gpu.IGNORE, 50)

    assert [node.metadata.name for node in nodes] == ["n-0", "n-1"]
    assert nodes[0].status.allocatable == {"cpu": "4000m", "memory": "8192Mi", "pods": "50"}


def test_a_gzipped_table_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv.gz"
    path.write_bytes(packed(NODES.encode()))

    assert replay_csv.read_nodes(path, Gpu.WHOLE, 50) == replay_csv.read_nodes(
        table(tmp_path, NODES), Gpu.WHOLE, 50
    )


@pytest.mark.parametrize(
    ("gpu", "nodes", "pods", "left_out"),
    [
        pytest.param(Gpu.SKIP_PODS, 2, ["a"], 2, id="skip-pods leaves pods with GPUs out"),
        pytest.param(Gpu.CPU_ONLY, 1, ["a"], 2, id="cpu-only leaves nodes with GPUs out, too"),
        pytest.param(Gpu.IGNORE, 2, ["a", "b", "c"], 0, id="ignore takes all"),
        pytest.param(Gpu.WHOLE, 2, ["a", "b", "c"], 0, id="whole takes all"),
    ],
)
def test_gpu_rules(tmp_path: Path, gpu: Gpu, nodes: int, pods: list[str], left_out: int) -> None:
    found, without = replay_csv.read_pods(table(tmp_path, PODS), gpu)

    assert [each.pod.metadata.name for each in found] == pods
    assert without == left_out
    assert len(replay_csv.read_nodes(table(tmp_path, NODES), gpu, 50)) == nodes


def test_whole_gpus_round_shares_up_and_keep_the_model(tmp_path: Path) -> None:
    node = replay_csv.read_nodes(table(tmp_path, NODES), Gpu.WHOLE, 50)[1]
    pods, _ = replay_csv.read_pods(table(tmp_path, PODS), Gpu.WHOLE)

    assert node.status.allocatable["nvidia.com/gpu"] == "2"
    assert node.metadata.labels[labels.GPU_MODEL] == "T4"
    requests = [each.pod.spec.containers[0].resources.requests.get("nvidia.com/gpu") for each in pods]
    assert requests == [None, "1", "2"]
    affinity = pods[1].pod.spec.affinity
    assert affinity is not None and affinity.node_affinity is not None


def test_times_and_qos_are_taken_over(tmp_path: Path) -> None:
    pods, _ = replay_csv.read_pods(table(tmp_path, PODS), Gpu.IGNORE)

    assert [(each.arrives_s, each.departs_s) for each in pods] == [(0.0, 100.0), (10.0, None), (20.0, 30.0)]
    assert [each.pod.metadata.labels.get(labels.QOS_CLASS) for each in pods] == ["LS", "BE", None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "empty", id="an empty file"),
        pytest.param("name,cpu_milli\n", "row 1, column memory_mib: missing", id="a missing column"),
        pytest.param(
            "name,cpu_milli,memory_mib,disk\n", "row 1, column disk: unknown column", id="an unknown column"
        ),
        pytest.param(
            "name,name,cpu_milli,memory_mib\n", "row 1, column name: stands twice", id="a column twice"
        ),
        pytest.param(
            "name,cpu_milli,memory_mib\na,many,1\n", "row 2, column cpu_milli: 'many' is no", id="no number"
        ),
        pytest.param(
            "name,cpu_milli,memory_mib\na,1,1\nb,-5,1\n", "row 3, column cpu_milli: -5 is not", id="negative"
        ),
        pytest.param("name,cpu_milli,memory_mib\na,1\n", "row 2: 2 values, but", id="a short row"),
        pytest.param(
            "name,cpu_milli,memory_mib\na,1,1\na,1,1\n", "row 3, column name: 'a' stands in row 2", id="twice"
        ),
        pytest.param("name,cpu_milli,memory_mib\n,1,1\n", "row 2, column name: empty", id="no name"),
        pytest.param(
            "name,cpu_milli,memory_mib,creation_time,deletion_time\na,1,1,9,3\n",
            "row 2, column deletion_time: 3 is before creation_time 9",
            id="gone before it came",
        ),
    ],
)
def test_broken_tables_say_where_and_why(tmp_path: Path, text: str, message: str) -> None:
    path = table(tmp_path, text)

    with pytest.raises(TableError) as caught:
        replay_csv.read_pods(path, Gpu.IGNORE)

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_file_that_is_not_gzip_is_no_table(tmp_path: Path) -> None:
    path = table(tmp_path, NODES, "nodes.csv.gz")

    with pytest.raises(TableError, match=r"is called \.gz, but is not gzipped"):
        replay_csv.read_nodes(path, Gpu.IGNORE, 50)
