"""PodDisruptionBudgets, and which pods they cover."""

from collections.abc import Iterable

from koordinator.api.policy import PodDisruptionBudget
from koordinator.scheduler.plugins.preemption.victims import DisruptionBudget
from koordinator.scheduler.table.pod_info import PodInfo

ANSWERS_MAX = 65_536
"""Answers kept: one per set of labels, of which a cluster has about one per workload."""


class Budgets:
    """All budgets by key. The labels that one selects are remembered until a selector changes: budgets are updated
    whenever a pod of theirs comes or goes, selectors hardly ever.
    """

    def __init__(self) -> None:
        self._budgets: dict[str, DisruptionBudget] = {}
        self._of_namespace: dict[str, list[str]] = {}
        self._selecting: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, ...]] = {}

    def set(self, budget: PodDisruptionBudget) -> None:
        found = DisruptionBudget.of(budget)
        if found is None:
            self.remove(budget)
            return
        if budget.key not in self._budgets:
            self._of_namespace.setdefault(found.namespace, []).append(budget.key)
        old = self._budgets.get(budget.key)
        self._budgets[budget.key] = found
        if old is None or old.selector != found.selector:
            self._selecting.clear()

    def remove(self, budget: PodDisruptionBudget) -> None:
        found = self._budgets.pop(budget.key, None)
        if found is not None:
            self._of_namespace[found.namespace].remove(budget.key)
            self._selecting.clear()

    def all(self) -> tuple[DisruptionBudget, ...]:
        return tuple(self._budgets.values())

    def allowed(self, key: str) -> int:
        """Return pods of the budget that may still go."""
        return self._budgets[key].allowed

    def covering(self, pod: PodInfo) -> tuple[str, ...]:
        """Keys of the budgets that cover a pod."""
        meta = pod.pod.metadata
        if meta.namespace not in self._of_namespace or not meta.labels:
            return ()
        question = (meta.namespace, tuple(sorted(meta.labels.items())))
        found = self._selecting.get(question)
        if found is None:
            if len(self._selecting) >= ANSWERS_MAX:
                self._selecting.clear()
            keys = self._of_namespace[meta.namespace]
            found = tuple(key for key in keys if self._budgets[key].selects(meta.labels))
            self._selecting[question] = found
        return tuple(key for key in found if meta.name not in self._budgets[key].disrupted)

    def violating(self, pods: Iterable[tuple[str, ...]]) -> list[bool]:
        """Return whether each pod's going would violate a budget; given the keys of the budgets that cover each of
        the pods of one node, which use the budgets up in this order.
        """
        left: dict[str, int] = {}
        verdicts = []
        for keys in pods:
            is_violating = False
            for key in keys:
                left[key] = left.get(key, self.allowed(key)) - 1
                is_violating = is_violating or left[key] < 0
            verdicts.append(is_violating)
        return verdicts
