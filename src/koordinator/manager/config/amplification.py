"""Resource amplification: selling more of a resource than nodes have (behaviour/manager 9.1).

Pure: what a node's annotation `resource-amplification-ratio` should say. `node_status`, where the kubelet's reports
pass by, decides what it does to the node's allocatable.
"""

import logging
from collections.abc import Mapping

from koordinator.api import node_labels, quantity, resources, slo_config
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList
from koordinator.api.slo_config import ResourceAmplificationConfig
from koordinator.manager.config import node_entries
from koordinator.manager.config.node_entries import RatioSync, first_match

log = logging.getLogger(__name__)

REASON_UNREADABLE = "ResourceAmplificationCfgUnmarshalFailed"
RATIO_MIN = 1.0

DEFAULT_CONFIG = ResourceAmplificationConfig(enable=False)

_NATIVE = (resources.CPU, resources.MEMORY)
_KEY = slo_config.RESOURCE_AMPLIFICATION.key


def sync(
    old: ResourceAmplificationConfig, data: Mapping[str, str] | None
) -> RatioSync[ResourceAmplificationConfig]:
    """Return the next configuration from the ConfigMap's data (None: there is no ConfigMap)."""
    return node_entries.sync(slo_config.RESOURCE_AMPLIFICATION, DEFAULT_CONFIG, old, data)


def node_ratios(
    config: ResourceAmplificationConfig,
    node: str,
    node_labels_: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, float]:
    """Ratio per resource of a node, {} for none: the configured ones, cpu times the normalization ratio.

    The normalization ratio is that in `annotations`: give those that the node will have, and a change of it
    needs no second round to get here.

    Raises: ProtocolError for a ratio that is no factor or a malformed normalization annotation; the node must then
    have no amplification annotation.
    """
    strategy = first_match(config.node_configs, node_labels_) or config
    obj = f"Node {node}"
    ratios = dict(strategy.resource_amplification_ratio) if strategy.enable else {}
    normalization = node_labels.cpu_normalization_ratio(annotations, obj)
    if normalization != node_labels.NO_RATIO:
        configured = ratios.get(resources.CPU, 0.0)
        cpu = normalization * (configured if configured > 0 else 1.0)
        if cpu > RATIO_MIN:
            ratios[resources.CPU] = cpu
    for name, ratio in sorted(ratios.items()):
        if not RATIO_MIN <= ratio <= node_annotations.FACTOR_MAX:
            side = f"below {RATIO_MIN:g}" if ratio < RATIO_MIN else f"above {node_annotations.FACTOR_MAX:g}"
            raise ProtocolError(obj, _KEY, f"ratio {ratio:g} of {name} is {side}")
    return ratios


def raw_allocatable(node: Node) -> ResourceList:
    """cpu and memory that the kubelet of an amplified node reports; {} when nobody can tell."""
    annotations = node.metadata.annotations
    try:
        raw = node_annotations.RAW_ALLOCATABLE.read(annotations, f"Node {node.key}") or {}
        return {name: raw[name] for name in _NATIVE if name in raw and quantity.of(raw[name]).nanos >= 0}
    except (ProtocolError, quantity.QuantityError) as error:
        log.warning("amplified allocatable used unchanged", extra={"node": node.key, "error": str(error)})
        return {}


def annotation_text(ratios: Mapping[str, float]) -> str | None:
    """Return the annotation's text, None when the node must not have it."""
    return node_annotations.encode_amplification_ratios(ratios) if ratios else None


def needs_sync(old: str | None, new: str | None) -> bool:
    """Return whether the annotation must be written: texts are compared as they are, empty is absent."""
    return (old or "") != (new or "")
