"""How many node-hours the demo simulates per second, and how that grows with the number of nodes.

Three parts: the fleet alone (usage, contention, latency: arrays only); the whole cluster with API, scheduler and
manager, one process, the run with co-location (the expensive one); both runs side by side, as `koordinator demo` has
them. Seconds of the clock, and of CPU, which other work on the machine disturbs less.
"""

import os
import time

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.local.nodes import pod_shape
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.service_latency import service_latency
from koordinator.simulate import services
from koordinator.simulate.run import simulate
from koordinator.simulate.scenario import TICK_S, Scenario, fleet_policy, node_shapes
from koordinator.simulate.summary import compare

NODES = (25, 50, 100, 200)
FLEET_NODES = (100, 1_000, 5_000)
HOURS = 3.0


def fleet_alone(nodes: int) -> float:
    """Node-hours per second of a fleet with its services, stepped and measured like in the demo."""
    scenario = Scenario(nodes=nodes)
    shapes = node_shapes(scenario, np.random.default_rng(1))
    policy = fleet_policy(scenario)
    fleet = HollowFleet(shapes, policy)
    pods = services.pods(shapes, policy, np.random.default_rng(2), scenario.services)
    for i, body in enumerate(pods):
        shape, _ = pod_shape.read(msgspec.convert(body, Pod))
        fleet.start(fleet.add(shape, i % nodes))
    steps = 120
    started_s = time.perf_counter()
    for step in range(steps):
        fleet.step(step * TICK_S, TICK_S)
        service_latency(fleet)
    return nodes * steps * TICK_S / 3_600 / (time.perf_counter() - started_s)


def whole_cluster(nodes: int) -> tuple[float, float, int]:
    """Node-hours per second of the clock and of CPU, warm-up included, and finished tasks."""
    scenario = Scenario(nodes=nodes, hours=HOURS)
    started_s, used_s = time.perf_counter(), time.process_time()
    result = simulate(scenario, colocation=True)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - used_s
    simulated = nodes * scenario.end_s / 3_600
    return simulated / wall_s, simulated / cpu_s, result.tasks_finished


def both_runs(nodes: int) -> tuple[float, float]:
    """Node-hours per second of the clock and of CPU, processes of both runs and their imports included."""
    scenario = Scenario(nodes=nodes, hours=HOURS)
    started_s, before = time.perf_counter(), os.times()
    compare(scenario)
    wall_s, after = time.perf_counter() - started_s, os.times()
    cpu_s = sum(after[:4]) - sum(before[:4])
    simulated = 2 * nodes * scenario.end_s / 3_600
    return simulated / wall_s, simulated / cpu_s


def main() -> None:
    print("demo: simulated node-hours per second")
    for nodes in FLEET_NODES:
        print(f"  fleet alone     {nodes:6,} nodes  {fleet_alone(nodes):10,.0f}")
    for nodes in NODES:
        rate, per_cpu_s, tasks = whole_cluster(nodes)
        print(
            f"  whole cluster   {nodes:6,} nodes  {rate:10,.0f}   {per_cpu_s:6,.0f} per CPU second   "
            f"({tasks:,} batch tasks finished)"
        )
    rate, per_cpu_s = both_runs(max(NODES))
    print(f"  both runs       {max(NODES):6,} nodes  {rate:10,.0f}   {per_cpu_s:6,.0f} per CPU second")


if __name__ == "__main__":
    main()
