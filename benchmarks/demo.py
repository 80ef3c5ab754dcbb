"""How many node-hours the demo simulates per second, and how that grows with the number of nodes.

One process, the run with co-location (the expensive one). Two parts: the fleet alone (usage, contention,
latency: arrays only), and the whole cluster with API, scheduler and manager.
"""

import time

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.local.nodes import pod_shape
from koordinator.local.nodes.contention import service_latency
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.simulate import services
from koordinator.simulate.run import simulate
from koordinator.simulate.scenario import TICK_S, Scenario, fleet_policy, node_shapes

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


def whole_cluster(nodes: int) -> tuple[float, int]:
    """Node-hours per second of wall time and finished tasks, warm-up included."""
    scenario = Scenario(nodes=nodes, hours=HOURS)
    started_s = time.perf_counter()
    result = simulate(scenario, colocation=True)
    return nodes * scenario.end_s / 3_600 / (time.perf_counter() - started_s), result.tasks_finished


def main() -> None:
    print("demo: simulated node-hours per second, one process")
    for nodes in FLEET_NODES:
        print(f"  fleet alone     {nodes:6,} nodes  {fleet_alone(nodes):10,.0f}")
    for nodes in NODES:
        rate, tasks = whole_cluster(nodes)
        print(f"  whole cluster   {nodes:6,} nodes  {rate:10,.0f}   ({tasks:,} batch tasks finished)")


if __name__ == "__main__":
    main()
