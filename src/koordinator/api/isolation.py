"""Read and write what a node's agent proved of the kernel mechanisms that isolation rests on, as the Node says it
(docs/isolation-probe.md)."""

from koordinator.api import labels
from koordinator.api.annotations.codec import Annotation, Payload

WORKS, BROKEN, UNKNOWN = "works", "broken", "unknown"
KINDS = ("cpu", "memory", "io", "cache")
"""Kinds of isolation that a pod may require."""
CONDITION = "IsolationProven"
"""Condition of the Node: False while a mechanism is broken."""


class MechanismState(Payload, frozen=True, kw_only=True):
    """One mechanism: `works`, `broken` or `unknown`, and what that was found by."""

    state: str = UNKNOWN
    why: str = ""


class NodeIsolation(Payload, frozen=True, kw_only=True):
    """The annotation `node.koordinator.sh/isolation`."""

    probed: str = ""
    mechanisms: dict[str, MechanismState] = {}


NODE_ISOLATION = Annotation(labels.NODE_ISOLATION, NodeIsolation)


def label_of(kind: str) -> str:
    """Return the label of the Node that says whether a kind of isolation works."""
    return f"{labels.NODE_ISOLATION_PREFIX}{kind}"
