"""What an explanation costs on many nodes, for how long one of a gang holds up the scheduler's loop, and what a replay
adds to the engine that it runs.

The peer of a replay is the bare loop in the same run: pods read from objects, one cycle each, nothing recorded.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.api.sigs import ElasticQuota, PodGroup
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.decide import PodQuestion, explain
from koordinator.scheduler.explain.gang_group import group_of
from koordinator.scheduler.explain.gangs import explain_group
from koordinator.scheduler.plugin.topology_tree import build
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.simulate import replay
from koordinator.simulate.dump import Dump
from koordinator.simulate.replay_config import without_preemption
from koordinator.simulate.replay_csv import TimedPod
from koordinator.simulate.replay_input import ReplayInput

NODES = 5_000
RUNNING_PER_NODE = 10
REPLAY_NODES = 1_500
REPLAY_PODS = 8_000
TEMPLATES = 300
NOW_S = 1_700_000_000.0
TIMES = 5
GANG = "gang.scheduling.koordinator.sh"
MEMBERS = {"pod-group.scheduling.sigs.k8s.io": "job"}


def node(number: int, *, is_tainted: bool = True) -> Node:
    """Two disk types, a third of the nodes tainted unless they all are not."""
    taints = [{"key": "team", "value": str(number % 5), "effect": "NoSchedule"}]
    taints = taints if is_tainted and number % 3 == 0 else []
    name = f"node-{number}"
    labels = {"kubernetes.io/hostname": name, "disk": "ssd" if number % 2 else "hdd"}
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}},
    }
    return from_builtins(body, Node)


def pod(name: str, cpu_milli: int, memory_mib: int, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    requests = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels or {}},
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
    engine = Engine(default_plugins.shipped_config(), FixedClock(NOW_S), plugins=installed_plugins())
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
        full_s = best_s(lambda info=info: explain(engine, info, PodQuestion(nodes=None)), 2)  # type: ignore[misc]
        print(
            f"explain on {NODES:,} nodes, {name:<28} {brief_s * 1e3:>6.0f} ms; with every node in detail "
            f"{full_s * 1e3:>6.0f} ms"
        )


class Gang:
    """A gang on nodes of 32 cores; `full` nodes have no room but that of less important pods. `kinds`: how many kinds
    of members there are."""

    def __init__(
        self, nodes: int, members: int, *, cpu_milli: int = 4_000, kinds: int = 1, full: bool = False
    ) -> None:
        self.nodes, self.members, self.cpu_milli, self.kinds, self.full = (
            nodes,
            members,
            cpu_milli,
            kinds,
            full,
        )

    def engine(self, quota: str = "", together: bool = False, **spec: Any) -> Engine:
        """With the gang pending. `quota`: how many cores its quota has; `together`: it must be in one of 20 spines."""
        shipped = default_plugins.shipped_profile()
        others = [each for each in shipped.plugin_config if each.name != "Coscheduling"]
        aware = PluginConfig(name="Coscheduling", args={"awareNetworkTopology": True})
        settings = SchedulerConfig(
            profiles=[msgspec.structs.replace(shipped, plugin_config=[*others, aware])]
        )
        labels = {f"node-{number}": {"spine": f"spine-{number % 20}"} for number in range(self.nodes)}
        layers = [
            NetworkTopologySpec(topology_layer="SpineLayer", label_key=["spine"]),
            NetworkTopologySpec(topology_layer="NodeTopologyLayer", parent_topology_layer="SpineLayer"),
        ]
        tree = build(layers, list(labels.items()))
        engine = Engine(settings, FixedClock(NOW_S), network=lambda: tree, plugins=installed_plugins())
        for number in range(self.nodes):
            body = node(number, is_tainted=False)
            engine.table.set_node(body)
            hear(engine, body)
            for index in range(4 if self.full else 0):
                running = pod(f"running-{number}-{index}", 8_000, 1_024, priority=1)
                engine.table.assign(PodInfo.of(running, engine.table.registry), f"node-{number}")
        meta: dict[str, Any] = {"name": "job", "namespace": "default"}
        if together:
            rule = {"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]}
            meta["annotations"] = {f"{GANG}/network-topology-spec": json.dumps(rule)}
        hear(engine, from_builtins({"metadata": meta, "spec": {"minMember": self.members}}, PodGroup))
        own = dict(MEMBERS)
        if quota:
            amounts = {"min": {"cpu": "1"}, "max": {"cpu": quota}}
            hear(engine, from_builtins({"metadata": {**meta, "name": "ads"}, "spec": amounts}, ElasticQuota))
            own["quota.scheduling.koordinator.sh/name"] = "ads"
        for number in range(self.members):
            cpu_milli = self.cpu_milli + number % self.kinds
            hear(engine, pod(f"job-{number:05}", cpu_milli, 1_024, priority=10, labels=own, **spec))
        return engine


def hear(engine: Engine, obj: Object) -> None:
    """Plugins hear of an object."""
    for handle in engine.handles:
        for watch in handle.watches:
            if watch.view is type(obj):
                watch.on_add(obj)


def slices_s(engine: Engine) -> tuple[list[float], str]:
    """CPU seconds of each slice, between which the loop goes on, and what is answered."""
    group = group_of(engine, "default/job")
    assert group is not None
    steps, found = explain_group(engine, group, is_live=True), []
    while True:
        began_s = time.process_time()
        try:
            next(steps)
        except StopIteration as end:
            found.append(time.process_time() - began_s)
            fit = end.value.answer.fit
            return found, f"{fit.fitting} of {fit.members} fit" + (
                f", {fit.untried} not tried" if fit.untried else ""
            )
        found.append(time.process_time() - began_s)


def gangs() -> None:
    """How long the loop stands still at most while a gang is explained, and how long all of it takes."""
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": MEMBERS}}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    cases: list[tuple[str, Gang, dict[str, Any]]] = [
        *(
            (f"{members:,} equal members fit", Gang(nodes, members), {})
            for nodes in (1_000, 5_000)
            for members in (100, 1_000, 5_000)
        ),
        ("1,000 of which some do not fit", Gang(100, 1_000), {}),
        ("1,000 fit nowhere", Gang(5_000, 1_000, cpu_milli=33_000), {}),
        ("1,000 beyond their quota", Gang(5_000, 1_000), {"quota": "2000"}),
        ("40 after evictions", Gang(5_000, 40, full=True, cpu_milli=8_000), {}),
        ("1,000 in one spine of 20", Gang(5_000, 1_000, cpu_milli=16_000), {"together": True}),
        ("100 of 10 kinds", Gang(5_000, 100, kinds=10), {}),
        ("1,000 of 10 kinds", Gang(5_000, 1_000, kinds=10), {}),
        ("1,000 of 1,000 kinds", Gang(5_000, 1_000, kinds=1_000), {}),
        ("100 that avoid each other", Gang(5_000, 100), {"affinity": rule}),
    ]
    for name, gang, options in cases:
        engine = gang.engine(**options)
        runs = [slices_s(engine) for _ in range(TIMES)]
        taken, answer = min(runs, key=lambda run: max(run[0]))
        print(
            f"explain gang on {gang.nodes:>5,} nodes, {name:<30} loop blocked at most {max(taken) * 1e3:>5.1f} ms, "
            f"all {sum(taken) * 1e3:>5.0f} ms in {len(taken)} slices: {answer}",
            flush=True,
        )


def replays() -> None:
    """A list of pods from templates, replayed and in the bare loop."""
    rng = random.Random(7)
    shapes = [(rng.randrange(100, 12_000, 50), rng.randrange(128, 32_768, 64)) for _ in range(TEMPLATES)]
    pods = [pod(f"pod-{number}", *rng.choice(shapes)) for number in range(REPLAY_PODS)]
    nodes = [node(number) for number in range(REPLAY_NODES)]
    given = ReplayInput(nodes, [TimedPod(each, float(n), n + 4_000.0) for n, each in enumerate(pods)], Dump())
    config = without_preemption(default_plugins.shipped_config())

    def bare() -> None:
        engine = Engine(config, FixedClock(NOW_S), plugins=installed_plugins())
        [profile] = engine.profiles.values()
        for each in nodes:
            engine.table.set_node(each)
        for one in pods:
            info = PodInfo.of(one, engine.table.registry)
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


PARTS = {"pods": explanations, "gangs": gangs, "replays": replays}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these; may be given again")
    for name in parser.parse_args().part or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
