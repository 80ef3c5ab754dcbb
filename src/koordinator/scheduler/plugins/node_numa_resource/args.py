"""Arguments of NodeNUMAResource. Source: behaviour/numa-cpu 2.5."""

from typing import Literal

import msgspec

from koordinator.scheduler.plugins.node_numa_resource.score import ScoringStrategy


class NodeNUMAResourceArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Defaults as upstream's."""

    default_cpu_bind_policy: Literal["", "FullPCPUs", "SpreadByPCPUs"] = msgspec.field(
        name="defaultCPUBindPolicy", default="FullPCPUs"
    )
    """Of LSE and LSR pods that name none; "" leaves them unbound."""
    scoring_strategy: ScoringStrategy = ScoringStrategy()
    numa_scoring_strategy: ScoringStrategy = ScoringStrategy()
    """Scores NUMA nodes within a node; its type is also the order in which they fill."""
