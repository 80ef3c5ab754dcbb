"""Define what the demo simulates: the cluster, its load and the batch stream, in figures with their reasons."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from koordinator.koordlet.interference.control import ControlConfig
from koordinator.koordlet.qos.cpu_evict import BE_CPU
from koordinator.koordlet.qos.cpu_suppress import CFS_QUOTA_POLICY
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.fleet import INSTALLED_STRATEGY, FleetPolicy, NodeShape
from koordinator.local.nodes.hollow import HollowConfig
from koordinator.simulate.batch_jobs import KINDS, JobKind
from koordinator.simulate.services import ServiceMix

GIB = 2**30
NODES_MAX = 20_000  # host and pod addresses of hollow nodes are drawn from blocks of this order
HOURS_MAX = 24 * 31


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison: the same services and the same batch stream, without and with co-location.

    `hours` counts from the end of the warm-up, in which services are placed and usage is first reported.
    """

    nodes: int = 100
    hours: float = 24.0
    seed: int = 1
    trace: Path | None = None
    colocation: bool = True
    load_aware: bool = True
    protection: Protection = Protection.SUPPRESS
    closed_loop: bool = True
    """Whether the node agents follow what services feel, with the settings that go with it (`CLOSED_LOOP`, …)."""
    evictions: bool = True
    # The batch stream wants this share of all CPUs on average: more than co-location can lend at noon.
    batch_demand_ratio: float = 0.80
    services: ServiceMix = ServiceMix()
    jobs: tuple[JobKind, ...] = KINDS
    lend_ahead_minutes: int = 0
    """Time ahead for which Batch yields to what agents predict by hour of the day; 0: not at all, and
    nothing is predicted."""
    agents: FleetPolicy = FleetPolicy()
    """Their other settings; protection and sampling are the demo's."""

    @property
    def warm_up_s(self) -> float:
        return 1_800.0

    @property
    def end_s(self) -> float:
        """Seconds from the start of the simulation to its end."""
        return self.warm_up_s + self.hours * 3_600


PARTS: Mapping[str, Mapping[str, Any]] = {
    "suppression": {"protection": Protection.SHARES},  # with it the closed loop has nothing to act by
    "closed-loop": {"closed_loop": False},
    "eviction": {"evictions": False},
    "load-aware": {"load_aware": False},
    "shares": {"protection": Protection.NONE},
}
"""Parts of the protection, and what a scenario is without each."""


def switched_off(scenario: Scenario, parts: Iterable[str]) -> Scenario:
    """Return the scenario without these parts of the protection."""
    for part in parts:
        scenario = msgspec.structs.replace(scenario, **PARTS[part])
    return scenario


# How fine simulated time is cut. A real node agent reports every 60 s and a kubelet renews its lease every
# 10 s; the demo asks for reports every 300 s (the manager's policy, so every loop still follows its own
# rules) and for leases every 10 minutes with a matching duration: no node fails here.
TICK_S = 30.0
REPORT_POLICY = {
    "metricReportIntervalSeconds": 300,
    "metricAggregatePolicy": {"durations": ["5m"]},  # nothing in the demo reads longer windows
}
LEASE_INTERVAL_S = 600.0
SAMPLE_S = 300.0
# Batch pods of one kind that wait for a node at a time; the rest of the queue stays with the platform, as with
# any batch queue in front of Kubernetes. The scheduler looks at every one of them whenever a node changes.
PENDING_PODS_MAX = 2
# Share of all CPUs that nobody may request for long: rollouts start new pods before old ones stop, and the pods
# of a failed node need a place. Ordinary batch pods must stay out of it (a quota); best-effort pods need not,
# they give way at once.
HEADROOM_RATIO = 0.10

# The shipped thresholds are 0 (filter off).
USAGE_PERCENT = 55
"""Ten points below where the shipped agent suppresses batch: what is placed now shall still run when services wake."""
LOAD_AWARE_ARGS: dict[str, Any] = {
    "filterExpiredNodeMetrics": True,
    "nodeMetricExpirationSeconds": 600,
    "resourceWeights": {"cpu": 1, "memory": 1},
    "usageThresholds": {"cpu": USAGE_PERCENT, "memory": 75},
    "estimatedScalingFactors": {"cpu": 85, "memory": 70},
}


def hollow_config() -> HollowConfig:
    """Kubelets of the demo."""
    return HollowConfig(
        tick_s=TICK_S,
        lease_interval_s=LEASE_INTERVAL_S,
        lease_duration_s=int(4 * LEASE_INTERVAL_S),
        status_interval_s=3_600.0,
        start_s_min=2.0,
        start_s_max=20.0,
    )


def fleet_policy(scenario: Scenario) -> FleetPolicy:
    """Node agents of the demo."""
    agents = scenario.agents
    if scenario.closed_loop:
        agents = msgspec.structs.replace(
            agents,
            strategy=CLOSED_LOOP_STRATEGY,
            closed_loop=CLOSED_LOOP,
            evictions=agents.evictions | {BE_CPU},
        )
    return msgspec.structs.replace(
        agents,
        protection=scenario.protection,
        evictions=agents.evictions if scenario.evictions else frozenset(),
        sample_s=TICK_S,
        reports_hours=scenario.lend_ahead_minutes > 0,
    )


CLOSED_LOOP = ControlConfig()
# A quota takes from batch what a CPU set cannot: the last two CPUs, which a pressed service on a small node feels.
# Batch that gets next to nothing for ten minutes is evicted: it starts over where there is room.
CLOSED_LOOP_STRATEGY = msgspec.structs.replace(
    INSTALLED_STRATEGY,
    cpu_suppress_policy=CFS_QUOTA_POLICY,
    cpu_evict_be_satisfaction_lower_percent=10,
    cpu_evict_be_satisfaction_upper_percent=30,
    cpu_evict_time_window_seconds=600,
)
# What the manager lends and where the scheduler stops follow from that: up to the ceiling of the closed loop, less a
# margin for what has been placed and does not run yet. Without it, the shipped values.
CLOSED_LOOP_COLOCATION = {"cpuReclaimThresholdPercent": 90, "memoryReclaimThresholdPercent": 70}
CLOSED_LOOP_USAGE_PERCENT = 80


# Sizes of nodes and how common they are: general-purpose machines with 4 GiB per core.
SIZES = ((16, 0.3), (32, 0.5), (64, 0.2))


def node_shapes(scenario: Scenario, rng: np.random.Generator) -> list[NodeShape]:
    """Return the nodes, of mixed sizes over three zones."""
    cores = rng.choice([size for size, _ in SIZES], size=scenario.nodes, p=[share for _, share in SIZES])
    width = len(str(scenario.nodes - 1))
    return [
        NodeShape(
            name=f"node-{i:0{width}d}",
            cpu_milli=int(size) * 1000,
            memory_bytes=int(size) * 4 * GIB,
            reserved_milli=200 + int(size) * 10,
            reserved_bytes=GIB + int(size) * GIB // 32,
            zone=f"zone-{'abc'[i % 3]}",
            instance_type=f"hollow-{int(size)}c",
        )
        for i, size in enumerate(cores)
    ]
