"""How fast `koordinator simulate colocation` is: node-hours per second of one strategy, and a week from a dump.

The cluster is the demo's (nodes of 16 to 64 cores, services that request 80 % of them), its load CPU use of generated
machines. The last line runs the command as a user does, in a process of its own, from a dump and a CSV file: reading
included. With a trace as argument the day of 100 nodes with real components is run, too, and compared.
"""

import gzip
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import _object_level as object_level
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.local.nodes import behaviour
from koordinator.simulate import services, summary
from koordinator.simulate.scenario import Scenario, fleet_policy, node_shapes
from koordinator.simulate.whatif import cluster as clusters
from koordinator.simulate.whatif import demand, history, strategy
from koordinator.simulate.whatif.batch_queue import BatchQueue
from koordinator.simulate.whatif.demand import DrawnJobs
from koordinator.simulate.whatif.run import WhatIfRun

Json = dict[str, Any]
STEP_S = 300.0
STEPS_A_DAY = 288
SIZES = ((100, 1.0), (1_000, 1.0), (5_000, 0.25))
WEEK_NODES, WEEK_DAYS = 5_000, 7


def objects(nodes: int) -> tuple[list[Json], list[Json], list[Json]]:
    """Nodes, their service pods and NodeMetrics, as JSON objects."""
    rng = np.random.default_rng(1)
    scenario = Scenario(nodes=nodes)
    shapes = node_shapes(scenario, rng)
    pods = services.pods(shapes, fleet_policy(scenario), rng, scenario.services, follows_trace=True)
    free = np.array([shape.cpu_milli - shape.reserved_milli for shape in shapes], np.float64)
    used: dict[str, list[Json]] = {shape.name: [] for shape in shapes}
    for pod in pods:
        requested = float(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"].removesuffix("m"))
        tried = rng.integers(0, nodes, 8)
        row = int(tried[np.argmax(free[tried])])
        free[row] -= requested
        told = msgspec.json.decode(pod["metadata"]["annotations"][behaviour.ANNOTATION])
        usage = {"cpu": f"{int(told['cpuMilli'])}m", "memory": str(int(told["memoryBytes"]))}
        name = {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]}
        used[shapes[row].name].append({**name, "podUsage": {"resources": usage}})
        pod |= {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}}
        pod["spec"]["nodeName"] = shapes[row].name
    found_nodes, metrics = [], []
    for shape in shapes:
        capacity = {"cpu": f"{shape.cpu_milli}m", "memory": str(shape.memory_bytes), "pods": "110"}
        left = {
            **capacity,
            "cpu": f"{shape.cpu_milli - shape.reserved_milli}m",
            "memory": str(shape.memory_bytes - shape.reserved_bytes),
        }
        meta = {"name": shape.name, "labels": {"node.kubernetes.io/instance-type": shape.instance_type}}
        status: Json = {"capacity": capacity, "allocatable": left}
        found_nodes.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})
        system = {"resources": {"cpu": "150m", "memory": "2560Mi"}}
        report = {
            "updateTime": "2026-01-01T00:00:00Z",
            "nodeMetric": {"nodeUsage": system, "systemUsage": system},
            "podsMetric": used[shape.name],
        }
        meta = {"name": shape.name}
        metrics.append(
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": meta,
                "status": report,
            }
        )
    return found_nodes, pods, metrics


def machines(count: int, steps: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
    """CPU use of machines with nights, peaks and jumps, (machines, steps), 0–1."""
    rng = np.random.default_rng(seed)
    hours = np.arange(steps) / 12
    daily = 1 - 0.6 * np.cos((hours - 3) * 2 * np.pi / 24)
    found = rng.lognormal(-2.4, 0.6, (count, 1)) * daily * rng.lognormal(0, 0.3, (count, steps))
    found += (rng.random((count, steps)) < 0.01) * rng.uniform(0.1, 0.5, (count, steps))
    return np.clip(found, 0.01, 0.95)


def speed(nodes: int, days: float) -> str:
    """Run one strategy over arrays."""
    found_nodes, pods, metrics = objects(nodes)
    seen = clusters.of_objects(
        [from_builtins(each, Node) for each in found_nodes],
        (from_builtins(each, Pod) for each in pods),
        (from_builtins(each, NodeMetric) for each in metrics),
    )
    steps = round(days * STEPS_A_DAY)
    met = history.NodeHistory(seen, machines(nodes, steps), STEP_S, history.system_milli(seen), "")
    wanted = demand.of_ratio(0.42, float(seen.nodes.cpu_milli.sum()) / 1000)
    queue = BatchQueue(DrawnJobs(wanted, 1))
    run = WhatIfRun(seen, met, strategy.of_name("installed"), queue, 1)
    started_s, used_s = time.perf_counter(), time.process_time()
    run.run(steps)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - used_s
    hours = nodes * days * 24
    return (
        f"{nodes:,} nodes, {len(pods):,} service pods, {days * 24:g} h: {hours / wall_s:,.0f} node-hours/s "
        f"({hours / cpu_s:,.0f} per second of CPU)"
    )


def week(nodes: int, days: int, folder: Path) -> str:
    """Run the command on a dump with a week of use, in a process of its own."""
    dump, use = folder / "dump.json.gz", folder / "cpu.csv.gz"
    found = objects(nodes)
    with gzip.open(dump, "wb", compresslevel=1) as file:
        for obj in (each for part in found for each in part):
            file.write(msgspec.json.encode(obj) + b"\n")
    names = [each["metadata"]["name"] for each in found[0]]
    pods = len(found[1])
    del found
    with gzip.open(use, "wt", compresslevel=1) as text:
        for name, row in zip(names, machines(nodes, days * STEPS_A_DAY), strict=True):
            text.write(f"{name},{','.join([f'{100 * each:.1f}' for each in row.tolist()])}\n")
    words = ["simulate", "colocation", "--dump", str(dump), "--history", str(use), "--strategy", "installed"]
    words += ["--batch-demand", "0.42", "-o", "json", "--output-file", str(folder / "answer.json")]
    started_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "koordinator.cli.main", *words], check=True)
    wall_s = time.perf_counter() - started_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    hours = nodes * days * 24
    return (
        f"{nodes:,} nodes, {pods:,} service pods, {days} days from a dump of {dump.stat().st_size >> 20} MiB and "
        f"CSV of {use.stat().st_size >> 20} MiB: {wall_s:.0f} s ({used.ru_utime + used.ru_stime:.0f} s of CPU), "
        f"{used.ru_maxrss / 1024:,.0f} MiB, {hours / wall_s:,.0f} node-hours/s with reading"
    )


def beside_objects(trace: Path, nodes: int = 100, hours: float = 24.0) -> str:
    """Run a day with real components and over arrays, and compare."""
    day = object_level.object_day(
        Scenario(nodes=nodes, hours=hours, trace=trace, closed_loop=False, batch_demand_ratio=0.42), 72
    )
    objects_, arrays = summary.summarise(day.result), object_level.array_day(day).figures
    p99 = objects_.latency_p99_ms / objects_.latency_p99_alone_ms
    return (
        f"{nodes} nodes, {hours:g} h of {trace.name}, real components / arrays: "
        f"CPU used {objects_.cpu_use_ratio:.4f} / {arrays.cpu_use:.4f}, "
        f"cores lent {objects_.batch_allocatable_cores:,.0f} / {arrays.lent_cores:,.0f}, "
        f"p99 over p99 without batch {p99:.4f} / {1 + arrays.p99_growth:.4f}, "
        f"node-time hot {objects_.hot_node_time_ratio:.3f} / {arrays.hot_time:.3f}"
    )


def main() -> None:
    for nodes, days in SIZES:
        print(speed(nodes, days), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(week(WEEK_NODES, WEEK_DAYS, Path(folder)), flush=True)
    for word in sys.argv[1:]:
        print(beside_objects(Path(word)), flush=True)


if __name__ == "__main__":
    main()
