"""Batch resources of NUMA nodes: what is withdrawn."""

from koordinator.api.decode import from_builtins
from koordinator.api.node_topology import Zone
from koordinator.manager.noderesource import rows

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def zone(name: str, *names: str) -> Zone:
    amounts = [{"name": each, "capacity": "4", "allocatable": "4", "available": "4"} for each in names]
    return from_builtins({"name": name, "type": "Node", "resources": amounts}, Zone)


def test_batch_resources_are_withdrawn_from_the_zones_that_have_some() -> None:
    found = rows.withdrawn_zones(
        [zone("node-0", "cpu", "memory"), zone("node-1", "cpu", BATCH_CPU), zone("node-2")]
    )
    assert found == {"node-1": {BATCH_CPU: None, BATCH_MEMORY: None}}
