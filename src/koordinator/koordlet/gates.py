"""The feature gates of the node agent: the reference's, and those that policies of ours declare in their own file."""

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.koordlet.qos import evictions


def of(flag: str = "") -> FeatureGates:
    """Return all gates, changed by the text of the flag. Raises: FeatureGateError."""
    own = {name: gate for strategy in evictions.STRATEGIES for name, gate in strategy.new_gates.items()}
    return FeatureGates.of(Component.KOORDLET, flag, own)
