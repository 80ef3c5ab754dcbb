"""The feature gates of the node agent: the reference's, and those that policies of ours declare in their own file."""

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.koordlet.collect import runtime_usage
from koordinator.koordlet.hooks import all as hooks
from koordinator.koordlet.interference import all as interference
from koordinator.koordlet.isolation import probe as isolation
from koordinator.koordlet.predict import hour_trainer
from koordinator.koordlet.qos import evictions
from koordinator.koordlet.report import image_reporter


def of(flag: str = "") -> FeatureGates:
    """Return all gates, changed by the text of the flag. Raises: FeatureGateError."""
    own = {hook.name: hook.new_gate for hook in hooks.HOOKS if hook.new_gate is not None}
    for strategy in evictions.STRATEGIES:
        own.update(strategy.new_gates)
    own.update(interference.NEW_GATES)
    own[hour_trainer.GATE] = hour_trainer.NEW_GATE
    own.update(isolation.NEW_GATES)
    own.update(runtime_usage.NEW_GATES)
    own.update(image_reporter.NEW_GATES)
    return FeatureGates.of(Component.KOORDLET, flag, own)
