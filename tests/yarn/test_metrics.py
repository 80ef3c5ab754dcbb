"""What the operator tells about nodes as metrics."""

from koordinator.yarn.amounts import BatchAmount, YarnResource
from koordinator.yarn.metrics import OperatorMetrics
from koordinator.yarn.node_sync import NodeFacts, NodeId
from koordinator.yarn.table import NodeRow

GIBIBYTE = 1 << 30


def told(*rows: NodeRow) -> str:
    metrics = OperatorMetrics()
    metrics.show(lambda: rows, dict)
    return metrics.registry.text()


def row(name: str, host: str, used: YarnResource) -> NodeRow:
    pool, taken = BatchAmount(4_000, 4 * GIBIBYTE), BatchAmount(3_000, GIBIBYTE)
    known = NodeFacts(cluster="c", node=NodeId(host, 8041), pool=pool, taken=taken)
    return NodeRow(name, known=known, used=used, total=YarnResource(1, 3072))


def test_only_what_is_booked_twice_is_told_as_overbooked() -> None:
    text = told(row("n1", "a", YarnResource(3, 1024)), row("n2", "b", YarnResource(1, 1024)))
    lines = [line for line in text.splitlines() if line.startswith("yarn_operator_overbooked{")]
    assert lines == ['yarn_operator_overbooked{node="n1",resource="batch-cpu"} 2000']


def test_two_node_managers_on_one_host_are_summed() -> None:
    text = told(row("n1", "a", YarnResource(1, 1024)), row("n2", "a", YarnResource(2, 1024)))
    assert 'yarn_node_cpu_allocated_resource{instance="a",cluster="c"} 3' in text
    assert f'yarn_node_memory_allocated_resource{{instance="a",cluster="c"}} {2 * GIBIBYTE}' in text
