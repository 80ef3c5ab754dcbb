"""Labels that an administrator requires of pods (behaviour/manager 14.6 f, gate EnablePodEnhancedValidator)."""

from collections.abc import Mapping

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.codec import Annotation, Empty, Payload
from koordinator.api.errors import ProtocolError

CONFIG_NAMESPACE = "koordinator-system"
CONFIG_NAME = "pod-enhanced-validator-config"

_ENABLE = "enable"


class LabelRule(Payload, frozen=True, kw_only=True):
    """Label keys that pods must have, outside of some namespaces; any value will do."""

    name: str = ""
    required_labels: list[str] = []
    namespace_whitelist: list[str] = []


_RULES = Annotation("rules", list[LabelRule], empty=Empty.ABSENT)


class LabelRules(msgspec.Struct, frozen=True):
    """The rules in force; none while they are switched off."""

    rules: tuple[LabelRule, ...] = ()


class PodLabelSync(msgspec.Struct, frozen=True):
    """The rules after the ConfigMap was read; `problem` is empty when they were understood."""

    rules: LabelRules
    problem: str = ""


def sync(old: LabelRules, data: Mapping[str, str] | None) -> PodLabelSync:
    """The next rules from the ConfigMap's data (None: there is none); those not understood keep the old."""
    if data is None or data.get(_ENABLE, "").strip().lower() != "true":
        return PodLabelSync(LabelRules())
    try:
        found = _RULES.decode(data.get(_RULES.key, ""), f"ConfigMap {CONFIG_NAMESPACE}/{CONFIG_NAME}")
    except ProtocolError as error:
        return PodLabelSync(old, str(error))
    return PodLabelSync(LabelRules(tuple(found)))


def violation(rules: LabelRules, namespace: str, pod_labels: Mapping[str, str]) -> str:
    """Return what a pod lacks by the first rule that it breaks, in words; empty when it may exist."""
    if pod_labels.get(labels.POD_SKIP_ENHANCED_VALIDATION) == "true":
        return ""
    for rule in rules.rules:
        missing = [key for key in rule.required_labels if key not in pod_labels]
        if missing and namespace not in rule.namespace_whitelist:
            return f"{_words(missing)} (rule '{rule.name}')"
    return ""


def _words(missing: list[str]) -> str:
    if len(missing) == 1:
        return f"required label '{missing[0]}' is missing"
    return f"required labels are missing: [{' '.join(missing)}]"
