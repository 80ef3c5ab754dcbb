"""Do the kernel mechanisms work on which isolation rests? What node agents with the gate IsolationProbe found."""

from collections.abc import Iterator

from koordinator.api import isolation
from koordinator.api.errors import ProtocolError
from koordinator.doctor.finding import Finding
from koordinator.doctor.snapshot import ClusterSnapshot


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Mechanisms that have no effect, by node."""
    broken: dict[tuple[str, str], list[str]] = {}
    for node in snapshot.nodes:
        try:
            found = isolation.NODE_ISOLATION.read(node.metadata.annotations, f"Node {node.metadata.name}")
        except ProtocolError:
            continue  # only the agent writes it, and does so again
        for name, each in (found.mechanisms if found is not None else {}).items():
            if each.state == isolation.BROKEN:
                broken.setdefault((name, each.why), []).append(node.metadata.name)
    for (name, why), nodes in broken.items():
        yield Finding.error(
            ("Node", nodes),
            f"{name} has no effect: {why}",
            why="strategies that rest on it protect nobody there",
            do=(
                "look for other mounts over the group's files, and for groups above with tighter limits",
                "kubectl describe node shows events IsolationBroken with the strategies (docs/isolation-probe.md)",
            ),
        )
