"""Metrics of the operator. The first four have the reference's names. Source: behaviour/yarn 7."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from koordinator.cluster.metrics import ClientMetrics
from koordinator.prometheus import (
    Counter,
    Gauge,
    GaugeReading,
    Histogram,
    Labels,
    MetricsRegistry,
    exponential,
)
from koordinator.yarn import amounts
from koordinator.yarn.amounts import MEBIBYTE, YarnResource
from koordinator.yarn.table import NodeRow

Rows = Callable[[], Iterable[NodeRow]]


class OperatorMetrics:
    """All families, in one registry."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.client = ClientMetrics(self.registry)
        self.calls = Counter(
            "yarn_operator_rm_calls_total", "Calls to ResourceManagers.", ("cluster", "method", "result")
        )
        self.call_seconds = Histogram(
            "yarn_operator_rm_call_seconds",
            "How long calls to ResourceManagers took.",
            exponential(0.001, 2, 14),
            ("cluster", "method"),
        )
        self.active_rm = Gauge(
            "yarn_operator_active_rm", "The ResourceManager that leads (1), by its id.", ("cluster", "rm")
        )
        self.mismatch = Gauge(
            "yarn_operator_node_total_mismatch",
            "Nodes whose total in YARN is not yet the wanted one.",
            ("cluster",),
        )
        self.config_errors = Gauge(
            "yarn_operator_config_error",
            "YARN clusters whose configuration cannot be used (1).",
            ("cluster",),
        )
        self.is_leader = Gauge("yarn_operator_is_leader", "Whether this instance leads (1) or stands by (0).")
        self.is_leader.set(0)
        self.registry.add(
            self.calls, self.call_seconds, self.active_rm, self.mismatch, self.config_errors, self.is_leader
        )

    def called(self, cluster: str, method: str, result: str, seconds: float) -> None:
        """Note that a call ended."""
        self.calls.inc(cluster, method, result)
        self.call_seconds.of(cluster, method).observe(seconds)

    def led_by(self, cluster: str, leader: str) -> None:
        """Note who leads; empty when nobody is known to."""
        for labels in [labels for labels in self.active_rm.values if labels[0] == cluster]:
            del self.active_rm.values[labels]
        if leader:
            self.active_rm.set(1, cluster, leader)

    def forget(self, cluster: str) -> None:
        """Tell no more of a cluster that is not served."""
        self.led_by(cluster, "")
        self.mismatch.values.pop((cluster,), None)

    def show(self, rows: Rows, ages: Callable[[], Mapping[Labels, float]]) -> None:
        """Tell of nodes, and of how old the reports of each cluster are, in seconds, whenever somebody asks."""

        def node(
            of: Callable[[YarnResource], int], which: Callable[[NodeRow], YarnResource | None]
        ) -> GaugeRead:
            return lambda: _sums((row, of(told)) for row in rows() if (told := which(row)) is not None)

        def vcores(amount: YarnResource) -> int:
            return amount.vcores

        def memory_bytes(amount: YarnResource) -> int:
            return amount.memory_mb * MEBIBYTE

        where = ("instance", "cluster")
        total, used = (lambda row: row.total), (lambda row: row.used)
        self.registry.add(
            GaugeReading(
                "yarn_node_cpu_resource", "vcores that YARN may give out.", where, node(vcores, total)
            ),
            GaugeReading(
                "yarn_node_memory_resource", "Bytes that YARN may give out.", where, node(memory_bytes, total)
            ),
            GaugeReading(
                "yarn_node_cpu_allocated_resource",
                "vcores that YARN has given out.",
                where,
                node(vcores, used),
            ),
            GaugeReading(
                "yarn_node_memory_allocated_resource",
                "Bytes that YARN has given out.",
                where,
                node(memory_bytes, used),
            ),
            GaugeReading(
                "yarn_operator_overbooked",
                "What pods and YARN together hold above a node's batch pool (milli-cores, bytes).",
                ("node", "resource"),
                lambda: _overbooked(rows()),
            ),
            GaugeReading(
                "yarn_operator_report_age_seconds", "Age of the last node reports.", ("cluster",), ages
            ),
        )


GaugeRead = Callable[[], Mapping[Labels, float]]


def _sums(found: Iterable[tuple[NodeRow, int]]) -> dict[Labels, float]:
    """Return figures by host: of several NodeManagers on one host their sum."""
    sums: dict[Labels, float] = defaultdict(float)
    for row, figure in found:
        assert row.known.node is not None
        sums[row.known.node.host, row.known.cluster] += figure
    return sums


def _overbooked(rows: Iterable[NodeRow]) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for row in rows:
        used = amounts.to_batch(row.used or YarnResource())
        excess = amounts.overbooked(row.known.pool, row.known.taken, used)
        for resource, amount in (("batch-cpu", excess.cpu_milli), ("batch-memory", excess.memory_bytes)):
            if amount > 0:
                found[row.name, resource] = amount
    return found
