"""Plugin `ResourceAmplification`: the annotation by which a node is sold larger than it is (behaviour/manager 9.1)."""

from collections.abc import Callable, Mapping, Sequence

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import ResourceAmplificationConfig
from koordinator.manager.config import amplification
from koordinator.manager.config.node_entries import first_match
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget, Note

FAILED = "ResourceAmplificationFailed"

_KEY = labels.NODE_RESOURCE_AMPLIFICATION_RATIO
_NORMALIZATION = labels.NODE_CPU_NORMALIZATION_RATIO


class ResourceAmplification:
    """A node without co-location, or whose ratios cannot be told, must not have the annotation, nor what it did."""

    name = "ResourceAmplification"

    def __init__(self, config: Callable[[], ResourceAmplificationConfig]) -> None:
        self._config = config

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        config = self._config()
        failures = 0
        for row, target in zip(rows, targets, strict=True):
            assert row.node is not None
            text = None
            if row.is_enabled:
                annotations = _annotations(row.node.metadata.annotations, target)
                try:
                    strategy = first_match(config.node_configs, row.node.metadata.labels) or config
                    text = amplification.annotation_text(
                        amplification.ratios_of(strategy, row.name, annotations)
                    )
                except ProtocolError as error:
                    failures += 1
                    target.notes.append(Note(FAILED, str(error)))
            if amplification.needs_sync(row.node.metadata.annotations.get(_KEY), text):
                target.annotations[_KEY] = text
                if text is None:
                    _put_back(row.node, target)
        return failures


def _put_back(node: Node, target: NodeTarget) -> None:
    """A node that is no longer amplified has at once what its kubelet reports, not from its next report on."""
    annotations = node.metadata.annotations
    if labels.NODE_RAW_ALLOCATABLE not in annotations:
        return
    target.annotations[labels.NODE_RAW_ALLOCATABLE] = None
    target.native.update(amplification.raw_allocatable(node))


def _annotations(own: Mapping[str, str], target: NodeTarget) -> Mapping[str, str]:
    """Return the annotations that the node will have, so that a new normalization ratio counts in the same round."""
    written = target.annotations.get(_NORMALIZATION)
    return own if written is None else {**own, _NORMALIZATION: written}
