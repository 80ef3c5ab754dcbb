"""Remember of a class of pods what they ask for, and what trials said about it so far."""

from collections.abc import Hashable
from typing import Any

from koordinator.scheduler.plugin.percent import ScoredRequest
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.plugins.node_numa_resource.admission import NUMAPlacement
from koordinator.scheduler.plugins.node_numa_resource.bulk import FIRST_OWN_CODE, NUMAReason, NUMARequest
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHintProvider
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import PodHolding
from koordinator.scheduler.plugins.node_numa_resource.node_view import NUMAPodTerms
from koordinator.scheduler.plugins.node_numa_resource.policy import PodPlan
from koordinator.scheduler.table.pod_info import PodInfo

OWN_CODES_MAX = 40_000
"""Texts that a class of pods tells apart; codes have two bytes."""

Provider = tuple[NUMATopologyHintProvider[Any], Any]
"""A plugin that takes part in the choice of NUMA nodes, with its state for a pod."""


class NUMAState:
    """The requests of a class of pods, and what trials said about it so far."""

    def __init__(
        self, pod: PodInfo, plan: PodPlan, chosen: PodHolding | None, providers: tuple[Provider, ...]
    ) -> None:
        self.pod = pod
        self.chosen = chosen
        """What was chosen for the pod before it came here (`designated`)."""
        self.providers = providers
        self.plan = plan
        self.demand: NUMARequest | None = None
        self.demand_width = -1
        self.scored: ScoredRequest | None = None
        """(column, amount, weight) of what counts where only requests do."""
        self.terms: dict[Hashable, NUMAPodTerms] = {}
        self.trials: dict[Hashable, NUMAPlacement] = {}
        self.verdicts: dict[Hashable, Status] = {}
        self.statuses: list[Status] = []
        self._codes: dict[Status, int] = {}

    @property
    def needs_trial(self) -> bool:
        """Return whether only a trial on each node tells, wherever the plugin has a say at all."""
        return self.chosen is not None or bool(self.providers)

    def code_of(self, status: Status) -> int:
        """Return a number for a refusal; 0 for success."""
        if status.is_success:
            return 0
        code = self._codes.get(status)
        if code is None:
            if len(self.statuses) == OWN_CODES_MAX:
                return NUMAReason.UNALIGNED
            code = self._codes[status] = FIRST_OWN_CODE + len(self.statuses)
            self.statuses.append(status)
        return code
