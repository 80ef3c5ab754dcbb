"""What looking ahead is worth: evictions and thrown-away work on days with a rhythm, without and with
`lendAheadMinutes`.

Services fill a good part of their nodes at their peak; agents evict batch that starves (BECPUEvict). The first day,
on which no hour is known, is in the figures. `--hours`, `--nodes` and `--seeds` say how much.
"""

import argparse

import msgspec

from koordinator.koordlet.qos.cpu_evict import BE_CPU
from koordinator.koordlet.qos.memory_evict import BE_MEMORY
from koordinator.local.nodes.fleet import INSTALLED_STRATEGY, FleetPolicy
from koordinator.simulate.batch_jobs import KINDS
from koordinator.simulate.run import RunResult, simulate
from koordinator.simulate.scenario import Scenario
from koordinator.simulate.services import ServiceMix

STRATEGY = msgspec.structs.replace(
    INSTALLED_STRATEGY,
    cpu_evict_be_satisfaction_lower_percent=60,
    cpu_evict_be_satisfaction_upper_percent=80,
    cpu_evict_be_usage_threshold_percent=80,
    cpu_evict_time_window_seconds=120,
)
LONG = msgspec.structs.replace(
    KINDS[2], name="long", share_of_work=0.6, tasks=(2, 8), task_minutes=360, cpu_milli=4_000
)
SHORT = msgspec.structs.replace(KINDS[0], share_of_work=0.4)
BUSY = ServiceMix(cpu_used_ratio=0.33, utilisation_max=0.9, utilisation_sigma=0.4, pressed_node_ratio=0.0)


def scenario(nodes: int, hours: float, seed: int, minutes: int) -> Scenario:
    """Return days whose services have a rhythm, and agents that evict starved batch."""
    agents = FleetPolicy(evictions=frozenset((BE_MEMORY, BE_CPU)), strategy=STRATEGY)
    return Scenario(
        nodes=nodes,
        hours=hours,
        seed=seed,
        services=BUSY,
        jobs=(SHORT, LONG),
        agents=agents,
        lend_ahead_minutes=minutes,
        closed_loop=False,
        batch_demand_ratio=0.42,
    )


def _print(minutes: int, seed: int, found: RunResult) -> None:
    done = found.means["batch_core_hours"] - found.lost_core_hours
    print(
        f"seed {seed}  ahead {minutes:4d} min  evictions {found.evictions:5d}  "
        f"thrown away {found.lost_core_hours:8.1f} core-hours  done {done:9.1f} core-hours  "
        f"jobs {found.jobs_finished:4d} of {found.jobs_arrived}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--hours", type=float, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ahead", type=int, action="append", help="minutes, again for more (0, 60, 180)")
    asked = parser.parse_args()
    for seed in range(1, asked.seeds + 1):
        for minutes in asked.ahead or (0, 60, 180):
            _print(
                minutes, seed, simulate(scenario(asked.nodes, asked.hours, seed, minutes), colocation=True)
            )


if __name__ == "__main__":
    main()
