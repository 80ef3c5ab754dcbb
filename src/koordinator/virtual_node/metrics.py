"""Metrics of virtual nodes."""

from koordinator.cluster.metrics import ClientMetrics
from koordinator.prometheus import Counter, Gauge, MetricsRegistry


class VirtualNodeMetrics:
    """All families, in one registry."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.client = ClientMetrics(self.registry)
        self.offered = Gauge(
            "virtual_node_offered", "What a virtual node has, lent or not.", ("node", "resource")
        )
        self.largest_free = Gauge(
            "virtual_node_largest_free", "The most that one pod can have of it now.", ("node", "resource")
        )
        self.idle_nodes = Gauge("virtual_node_idle_nodes", "Nodes of the lender that are offered.")
        self.lent_pods = Gauge("virtual_node_lent_pods", "Borrowed pods in the lender.")
        self.reclaimed = Counter(
            "virtual_node_reclaimed_total",
            "Borrowed pods that were evicted for the lender's sake.",
            ("reason",),
        )
        self.refused = Counter(
            "virtual_node_refused_total", "Pods of the borrower that ended without having run.", ("reason",)
        )
        self.core_seconds = Counter(
            "virtual_node_lent_core_seconds_total",
            "Requested cores of borrowed pods, times seconds.",
            ("source", "namespace"),
        )
        self.is_leader = Gauge("virtual_node_is_leader", "Whether this instance leads (1) or stands by (0).")
        self.is_leader.set(0)
        self.registry.add(
            self.offered,
            self.largest_free,
            self.idle_nodes,
            self.lent_pods,
            self.reclaimed,
            self.refused,
            self.core_seconds,
            self.is_leader,
        )
