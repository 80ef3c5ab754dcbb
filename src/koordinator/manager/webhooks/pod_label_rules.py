"""Labels that an administrator requires of pods, and the ConfigMap that names them, followed.

Source: behaviour/manager 14.6 f, gate EnablePodEnhancedValidator.
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.codec import Annotation, Empty, Payload
from koordinator.api.core import ConfigMap
from koordinator.api.errors import ProtocolError
from koordinator.cluster.errors import ApiError, NotFound
from koordinator.manager.parts import ManagerContext

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
"""For reading the ConfigMap while a pod waits."""

REASON = "LabelRulesNotUsed"


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
    """Return the next rules from the ConfigMap's data (None: there is none); those not understood keep the old."""
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


class LabelRulesSource:
    """The rules in force. The watch tells a change at once; besides, the ConfigMap is read every interval,
    when a pod comes, so that a watch that went silent cannot keep old rules for ever.
    """

    def __init__(self, shared: ManagerContext) -> None:
        options = shared.options.enhanced_validator
        self.rules = LabelRules()
        self._cluster, self._events = shared.cluster, shared.events
        self._namespace, self._name = options.config_namespace, options.config_name
        self._interval_s = options.reconcile_interval_s
        self._read_s: float | None = None
        self._problem = ""
        self._reading = asyncio.Lock()
        maps = shared.factory.informer(
            ConfigMap, self._namespace, field_selector=f"metadata.name={self._name}"
        )
        maps.add_handler(self._sync, lambda _, found: self._sync(found), self._gone)

    async def fresh(self) -> LabelRules:
        """Return the rules, read again when that is due; those known so far when nobody answers."""
        if self._is_due() and not self._reading.locked():
            async with self._reading:
                self._read_s = self._cluster.clock.now()
                await self._read()
        return self.rules

    def _is_due(self) -> bool:
        since_s = None if self._read_s is None else self._cluster.clock.now() - self._read_s
        return since_s is None or not 0 <= since_s < self._interval_s

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._cluster.get(ConfigMap, self._name, self._namespace)
        except NotFound:
            self._gone(None)
        except (ApiError, TimeoutError) as error:
            facts = {"config_map": f"{self._namespace}/{self._name}", "error": str(error)}
            log.warning("label rules not read, the last ones stay", extra=facts)
        else:
            self._sync(found)

    def _gone(self, found: ConfigMap | None) -> None:
        if found is None or found.metadata.name == self._name:
            self._problem = ""
            self.rules = sync(self.rules, None).rules

    def _sync(self, found: ConfigMap) -> None:
        if found.metadata.name != self._name:
            return
        outcome = sync(self.rules, found.data)
        self.rules = outcome.rules
        if outcome.problem and outcome.problem != self._problem:
            log.warning("label rules not used", extra={"problem": outcome.problem})
            self._events.warning(found, REASON, outcome.problem)
        self._problem = outcome.problem
