"""What an explanation costs on many nodes, and what a replay adds to the engine that it runs.

The peer of a replay is the bare loop in the same run: pods read from objects, one cycle each, nothing recorded.
"""

import random
import time
from collections.abc import Callable
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler import default_plugins
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.explain.decide import Question, explain
from koordinator.scheduler.pod_info import PodInfo
from koordinator.simulate import replay
from koordinator.simulate.dump import Dump
from koordinator.simulate.replay_csv import TimedPod
from koordinator.simulate.replay_input import ReplayInput

NODES = 5_000
RUNNING_PER_NODE = 10
REPLAY_NODES = 1_500
REPLAY_PODS = 8_000
TEMPLATES = 300
NOW_S = 1_700_000_000.0
TIMES = 5


def node(number: int) -> Node:
    """Two disk types, a third of the nodes tainted."""
    taints = [{"key": "team", "value": str(number % 5), "effect": "NoSchedule"}] if number % 3 == 0 else []
    name = f"node-{number}"
    labels = {"kubernetes.io/hostname": name, "disk": "ssd" if number % 2 else "hdd"}
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}},
    }
    return from_builtins(body, Node)


def pod(name: str, cpu_milli: int, memory_mib: int, **spec: Any) -> Pod:
    requests = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            **spec,
        },
    }
    return from_builtins(body, Pod)


def best_s(run: Callable[[], object], times: int = TIMES) -> float:
    """The shortest of several runs, in CPU seconds."""
    found = []
    for _ in range(times):
        started_s = time.process_time()
        run()
        found.append(time.process_time() - started_s)
    return min(found)


def explanations() -> None:
    """Pods with an easy, a hard and a hopeless question."""
    engine = Engine(default_plugins.shipped_config(), FixedClock(NOW_S))
    registry = engine.table.registry
    for number in range(NODES):
        engine.table.set_node(node(number))
        for index in range(RUNNING_PER_NODE):
            running = pod(f"running-{number}-{index}", 3_000, 12_288, priority=index % 3)
            engine.table.assign(PodInfo.of(running, registry), f"node-{number}")
    cases = {
        "fits": pod("fits", 1_000, 1_024),
        "fits nowhere": pod("big", 16_000, 65_536),
        "fits nowhere, wrong labels": pod("odd", 16_000, 65_536, nodeSelector={"disk": "tape"}),
        "fits after preemption": pod("urgent", 16_000, 65_536, priority=100),
    }
    for name, asked in cases.items():
        info = PodInfo.of(asked, registry)
        brief_s = best_s(lambda info=info: explain(engine, info))  # type: ignore[misc]
        full_s = best_s(lambda info=info: explain(engine, info, Question(nodes=None)), 2)  # type: ignore[misc]
        print(
            f"explain on {NODES:,} nodes, {name:<28} {brief_s * 1e3:>6.0f} ms; with every node in detail "
            f"{full_s * 1e3:>6.0f} ms"
        )


def replays() -> None:
    """A list of pods from templates, replayed and in the bare loop."""
    rng = random.Random(7)
    shapes = [(rng.randrange(100, 12_000, 50), rng.randrange(128, 32_768, 64)) for _ in range(TEMPLATES)]
    pods = [pod(f"pod-{number}", *rng.choice(shapes)) for number in range(REPLAY_PODS)]
    nodes = [node(number) for number in range(REPLAY_NODES)]
    given = ReplayInput(nodes, [TimedPod(each, float(n), n + 4_000.0) for n, each in enumerate(pods)], Dump())
    config = replay.without_preemption(default_plugins.shipped_config())

    def bare() -> None:
        engine = Engine(config, FixedClock(NOW_S))
        [profile] = engine.profiles.values()
        for each in nodes:
            engine.table.set_node(each)
        for each in pods:
            info = PodInfo.of(each, engine.table.registry)
            engine.cycle.run(profile, info, profile.class_key(info), 1, NOW_S)

    timer = time.perf_counter
    times: list[tuple[float, float, float]] = []
    for _ in range(TIMES):  # in turn: what else runs on the machine slows all of them
        times.append(
            (
                best_s(bare, 1),
                best_s(lambda: replay.run(given, config, timer=timer), 1),
                best_s(lambda: replay.run(given, config, timer=timer, timeline=True), 1),
            )
        )
    bare_s, static_s, timed_s = (min(column) for column in zip(*times, strict=True))
    print(
        f"{REPLAY_PODS:,} pods on {REPLAY_NODES:,} nodes: bare loop {bare_s:.2f} s, replay {static_s:.2f} s "
        f"(× {static_s / bare_s:.2f}), along a time line {timed_s:.2f} s with as many departures"
    )


def main() -> None:
    explanations()
    replays()
