"""CPU suppression of all nodes: what `koordlet.qos.cpu_suppress` decides for each, round by round."""

import numpy as np

from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.host.cgroup_units import CFS_PERIOD_US, UNLIMITED
from koordinator.koordlet.qos import cpu_suppress
from koordinator.koordlet.qos.cpu_suppress import Integers, Mode
from koordinator.local.nodes.usage import F64


class Suppression:
    """The CPUs of best-effort pods on each node, (nodes,): CPUs, and a quota per 100 ms.

    Pods of the fleet own no CPUs, so all of a machine are usable.
    """

    def __init__(
        self, strategy: ResourceThresholdStrategy, capacity_milli: Integers, reserved_milli: Integers
    ) -> None:
        self.mode = cpu_suppress.mode_of(strategy, has_be_manager=False)
        self.machine_cpus = np.maximum(capacity_milli // 1000, 1)
        self.cpus = self.machine_cpus.copy()
        self.quota_us = np.full(capacity_milli.size, UNLIMITED, np.int64)
        self._strategy = strategy
        self._capacity_milli = capacity_milli
        self._reserved_milli = reserved_milli

    def run(self, services_milli: F64, system_milli: F64, rounds: int) -> None:
        """Carry out so many rounds, in which services and the system of each node use so much, both (nodes,).

        Best-effort pods lose CPU at once and gain it slowly; rounds that change nothing any more are left out.
        """
        if self.mode not in (Mode.CPUSET, Mode.QUOTA):
            return
        be_milli = self.be_milli(services_milli, system_milli)
        for _ in range(rounds):
            cpus, quota_us = self.cpus, self.quota_us
            if self.mode is Mode.CPUSET:
                self.cpus = cpu_suppress.cpu_counts(be_milli, cpus, self.machine_cpus, self.machine_cpus)
            else:
                decided = cpu_suppress.decide_quotas(be_milli, self._capacity_milli, quota_us)
                self.quota_us = decided.quota_us
            if np.array_equal(self.cpus, cpus) and np.array_equal(self.quota_us, quota_us):
                return

    def be_milli(self, services_milli: F64, system_milli: F64) -> Integers:
        """Return what services leave best-effort pods, (nodes,)."""
        strategy = self._strategy
        threshold = strategy.cpu_suppress_threshold_percent
        assert threshold is not None, "defaults are laid under every strategy"
        return cpu_suppress.left_milli(
            self._capacity_milli,
            services_milli.astype(np.int64),
            system_milli.astype(np.int64),
            self._reserved_milli,
            threshold,
            strategy.cpu_suppress_min_percent,
        )

    def limit_milli(self) -> F64:
        """Return how much best-effort pods together can get at most, (nodes,): by their CPUs and by their quota."""
        by_cpus = self.cpus * 1000.0
        by_quota = np.where(self.quota_us == UNLIMITED, np.inf, self.quota_us * (1000 / CFS_PERIOD_US))
        return np.minimum(by_cpus, by_quota)
