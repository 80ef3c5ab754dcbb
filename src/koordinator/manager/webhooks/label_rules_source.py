"""The ConfigMap with the label rules of pods, followed (behaviour/manager 14.6 f)."""

import asyncio
import logging

from koordinator.api.core import ConfigMap
from koordinator.cluster.errors import ApiError, NotFound
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks import pod_label_rules
from koordinator.manager.webhooks.pod_label_rules import LabelRules

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
"""For reading the ConfigMap while a pod waits."""

REASON = "LabelRulesNotUsed"


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
        """The rules, read again when that is due; those known so far when nobody answers."""
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
            self.rules = pod_label_rules.sync(self.rules, None).rules

    def _sync(self, found: ConfigMap) -> None:
        if found.metadata.name != self._name:
            return
        outcome = pod_label_rules.sync(self.rules, found.data)
        self.rules = outcome.rules
        if outcome.problem and outcome.problem != self._problem:
            log.warning("label rules not used", extra={"problem": outcome.problem})
            self._events.warning(found, REASON, outcome.problem)
        self._problem = outcome.problem
