"""Plugin `CPUNormalization`: the annotation that says how fast a node's CPUs are (behaviour/manager 8)."""

from collections.abc import Callable, Sequence
from functools import partial

from koordinator.api import labels, node_labels
from koordinator.api.annotations.topology import CPUBasicInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import CPUNormalizationConfig
from koordinator.manager.config import cpu_normalization
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget, Note

FAILED = "CPUNormalizationFailed"

_KEY = labels.NODE_CPU_NORMALIZATION_RATIO


class CPUNormalization:
    """Nodes without co-location, and those whose ratio cannot be told, keep what they have."""

    name = "CPUNormalization"

    def __init__(self, config: Callable[[], CPUNormalizationConfig]) -> None:
        self._config = config

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        config = self._config()
        failures = 0
        for row, target in zip(rows, targets, strict=True):
            if not row.is_enabled:
                continue
            assert row.node is not None
            try:
                own = row.node.metadata.labels
                ratio = cpu_normalization.node_ratio(config, row.name, own, partial(_cpu, row))
            except ProtocolError as error:
                failures += 1
                # A new node's agent takes its time to tell about CPUs.
                target.notes.append(Note(FAILED, str(error), is_patient=row.cpu is None))
                continue
            text = node_labels.cpu_normalization_ratio_text(ratio)
            target.normalization = float(text)  # as everybody else will read it
            old = row.node.metadata.annotations.get(_KEY)
            if old != text and cpu_normalization.needs_sync(old, text):
                target.annotations[_KEY] = text
        return failures


def _cpu(row: NodeRow) -> CPUBasicInfo:
    """Return what the node agent tells. Raises: ProtocolError when it does not (yet), or nobody can read it."""
    if row.cpu is None:
        reason = (
            "the node agent has not reported it (yet)" if row.topology else "the object does not exist (yet)"
        )
        raise ProtocolError(f"NodeResourceTopology {row.name}", labels.NODE_CPU_BASIC_INFO, reason)
    if isinstance(row.cpu, ProtocolError):
        raise row.cpu
    return row.cpu
