"""Objects about nodes that are gone."""

from collections.abc import Iterator

from koordinator.api.core import Node
from koordinator.api.device import Device
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.slo import NodeSLO
from koordinator.doctor.finding import Finding, Severity, of_many
from koordinator.doctor.snapshot import Snapshot

GRACE_S = 300.0
"""An agent that starts may write its objects before its node is seen."""
_BY_MANAGER = (NodeMetric, NodeSLO)
_BY_AGENT = (Device, NodeResourceTopology)


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """The manager removes its own within seconds; nobody removes those of the node agent."""
    nodes = {each.metadata.name for each in snapshot.of(Node)}
    views: tuple[type[Object], ...] = (*_BY_MANAGER, *_BY_AGENT)
    for view in views:
        names = [
            each.metadata.name
            for each in snapshot.of(view)
            if each.metadata.name not in nodes and snapshot.age_s(each) > GRACE_S
        ]
        if not names:
            continue
        delete = f"kubectl delete {view.resource.plural} {' '.join(sorted(names)[:5])}"
        if view in _BY_MANAGER:
            yield of_many(
                Severity.WARNING,
                view.resource.kind,
                names,
                "its node is gone",
                why="the manager removes these: it does not work, or may not",
                do=("koordinator doctor --check leases --check access", delete),
            )
        else:
            yield of_many(
                Severity.WARNING,
                view.resource.kind,
                names,
                "its node is gone",
                why="a new node of that name would start with the old one's devices and CPUs",
                do=(delete,),
            )
