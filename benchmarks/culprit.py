"""How surely and how soon the agent names the pod that makes a service slow: one antagonist among five innocents.

Real groups and processes, the whole agent with the gate Interference and nothing that protects. The service burns 4.5
ms of CPU per request on each CPU, at 36 % of the machine, and tells its histogram; its objective is three times its
99th percentile when nothing else runs.
Six batch pods have harmless habits; in each run one of them (by the seed) becomes
an antagonist for some seconds. `--surges` runs in which the service itself gets more requests, where nobody is to
blame, follow. `--senses run-queue` leaves the service without an objective.

Printed are verdicts: right, wrong or none, and seconds from the first degraded second to the verdict. Needs root.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks._agent_process import AgentSpec, listed_pod
from benchmarks._culprit_agent import AgentReport
from benchmarks._groups import LineProcess, line_process, make_group
from koordinator.host import cgroups
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import V1_SUBSYSTEMS, Cgroups
from koordinator.host.files import Files, HostRoots
from koordinator.koordlet.interference import latency

GROUP = f"koordinator-bench-{os.getpid()}"
PODS, LS, BE = f"{GROUP}/kubepods", f"{GROUP}/kubepods/burstable", f"{GROUP}/kubepods/besteffort"
AGENT = f"{GROUP}/agent"
SERVICE = "web"
BATCH = tuple(f"batch-{number}" for number in range(6))
PILOT_S = 6.0
TARGET_RATIO = 3.0
START_S_MAX = 60.0
CALM_ROUNDS = 4
"""So many calm seconds before each run."""
CALM_S_MAX = 40.0
WRONG, RIGHT, NONE, CALM = "wrong", "right", "none", "did not suffer"


class CulpritRun(msgspec.Struct, frozen=True):
    """One run."""

    kind: str
    outcome: str
    reaction_s: float | None = None
    resource: str = ""
    level: float = 0.0
    started_s: float | None = None
    """From the antagonist's start to the first degraded second."""


def main() -> None:
    options = _options()
    if os.geteuid() != 0:
        print("skipped: needs root, since real groups are made")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # groups are removed
    runs = measure(options)
    print(
        f"{os.cpu_count()} CPUs, Linux {os.uname().release}, cgroup v{_found().version}, senses {options.senses}, "
        f"seed {options.seed}, antagonists {options.kinds}, {options.seconds:g} s each"
    )
    for kind in sorted({each.kind for each in runs}):
        _print(kind, [each for each in runs if each.kind == kind])
    _print("all antagonists", [each for each in runs if each.kind != "surge"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.culprit", description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--surges", type=int, default=4)
    parser.add_argument("--kinds", default="cpu,memory", help="cpu, memory, disk")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long an antagonist goes on")
    parser.add_argument("--senses", default="latency", help="latency, or run-queue: no objective")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def _print(name: str, runs: list[CulpritRun]) -> None:
    if not runs:
        return
    count = {each: sum(run.outcome == each for run in runs) for each in (RIGHT, WRONG, NONE, CALM)}
    soon = [run.reaction_s for run in runs if run.reaction_s is not None]
    text = f"p50 {statistics.median(soon):.1f}  max {max(soon):.1f} s" if soon else "-"
    counts = ", ".join(f"{number} {each}" for each, number in count.items())
    resources = sorted({run.resource for run in runs if run.resource})
    print(
        f"  {name:16} {len(runs):3} runs: {counts}; verdict after {text}; {' '.join(resources)}", flush=True
    )


def measure(options: argparse.Namespace) -> list[CulpritRun]:
    """All runs with one agent."""
    rng = random.Random(options.seed)
    found = _found()
    with (
        tempfile.TemporaryDirectory(dir=_on_disk()) as directory,
        _groups(found),
        _workers(found, directory) as workers,
    ):
        port = int(workers[SERVICE].line(START_S_MAX))
        target_ms = TARGET_RATIO * _pilot(port)
        pods = [_service(port, target_ms, options.senses), *(listed_pod(name, "BE") for name in BATCH)]
        print(f"objective: p99 of {target_ms:.0f} ms", flush=True)
        with _agent(found, AgentSpec(group=GROUP, pods=pods)) as agent:
            kinds = options.kinds.split(",")
            plan = [(kinds[index % len(kinds)], rng.choice(BATCH)) for index in range(options.runs)]
            plan += [("surge", SERVICE)] * options.surges
            runs = []
            for kind, name in plan:
                runs.append(_run(agent, workers, kind, name, rng, options))
                if options.verbose:
                    print(f"  {kind} by {name}: {runs[-1]}", flush=True)
            return runs


def _run(
    agent: LineProcess,
    workers: dict[str, LineProcess],
    kind: str,
    name: str,
    rng: random.Random,
    options: argparse.Namespace,
) -> CulpritRun:
    _calm(agent)
    time.sleep(rng.random())
    _reports_until(agent, time.monotonic())
    began_s = time.monotonic()
    workers[name].write(kind)
    seconds = _reports_until(agent, began_s + options.seconds)
    workers[name].write("calm")
    seconds += _reports_until(agent, time.monotonic() + 1.0)  # what was measured in the last second
    level = max((each.level for each in seconds), default=0.0)
    degraded_s = next((each.since_s for each in seconds if each.since_s is not None), None)
    if degraded_s is None:
        return CulpritRun(kind, CALM, level=level)
    verdicts = [each for each in seconds if each.culprit]
    started_s = degraded_s - began_s
    if not verdicts:
        return CulpritRun(kind, RIGHT if kind == "surge" else NONE, level=level, started_s=started_s)
    outcome = RIGHT if all(each.culprit == name for each in verdicts) else WRONG
    first = verdicts[0]
    return CulpritRun(kind, outcome, first.named_s - degraded_s, first.resource, level, started_s)


def _reports_until(agent: LineProcess, until_s: float) -> list[AgentReport]:
    return [msgspec.json.decode(line, type=AgentReport) for line in agent.lines_until(until_s)]


def _calm(agent: LineProcess) -> None:
    until_s, calm = time.monotonic() + CALM_S_MAX, 0
    while calm < CALM_ROUNDS and time.monotonic() < until_s:
        for each in _reports_until(agent, time.monotonic() + 1.0):
            calm = calm + 1 if each.since_s is None and each.senses else 0


def _pilot(port: int) -> float:
    """The 99th percentile without antagonist, in ms."""
    time.sleep(1.0)
    before = _scrape(port)
    time.sleep(PILOT_S)
    after = _scrape(port)
    increase = {end: count - before[end] for end, count in after.items()}
    return (latency.percentile_of_buckets(increase, 0.99) or 0.0) * 1000


def _scrape(port: int) -> dict[float, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line for line in text.splitlines() if "_bucket" in line]
    return {float(line.split('"')[1].replace("+Inf", "inf")): float(line.split()[1]) for line in lines}


@contextlib.contextmanager
def _agent(found: Cgroups, spec: AgentSpec) -> Iterator[LineProcess]:
    with line_process([sys.executable, "-m", "benchmarks._culprit_agent"]) as agent:
        found.write(Knob.PROCS, AGENT, str(agent.pid))
        agent.write(msgspec.json.encode(spec).decode())
        until_s = time.monotonic() + START_S_MAX
        while not _reports_until(agent, time.monotonic() + 1.0):
            if time.monotonic() > until_s:
                raise SystemExit("the agent reported nothing")
        yield agent


@contextlib.contextmanager
def _workers(found: Cgroups, directory: str) -> Iterator[dict[str, LineProcess]]:
    with contextlib.ExitStack() as stack:
        workers = {}
        for number, name in enumerate((SERVICE, *BATCH)):
            group = _container(name)
            subsystems = V1_SUBSYSTEMS if found.version == V1 else ("cpu",)
            files = {f"{found.directory(group, each)}/cgroup.procs": None for each in subsystems}
            role = "serve" if name == SERVICE else "batch"
            script = os.path.join(os.path.dirname(__file__), "_culprit_work.py")
            words = [sys.executable, "-S", "-E", script, role, str(number), os.path.abspath(directory)]
            own = [file for file in files if os.path.exists(file)]
            workers[name] = stack.enter_context(line_process([*words, *own]))
        yield workers


@contextlib.contextmanager
def _groups(found: Cgroups) -> Iterator[None]:
    names = [GROUP, AGENT, PODS, LS, BE]
    for name in (SERVICE, *BATCH):
        group = _container(name)
        names += [group.rpartition("/")[0], group]
    try:
        for group in names:
            make_group(found, group)
        found.write(Knob.CPU_SHARES, GROUP, "262144")  # what else runs here must not be the culprit
        found.write(Knob.CPU_SHARES, LS, "1024")
        found.write(Knob.CPU_SHARES, BE, "1536")  # nothing protects the service: batch goes first
        found.write(Knob.CPU_SHARES, AGENT, "4096")  # as a daemon of the node has it, beside two CPUs of pods
        yield
    finally:
        for group in reversed(names):
            for _ in range(100):
                for pid in found.procs(group) or ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
                if found.remove(group) is None:
                    break
                time.sleep(0.02)


def _container(name: str) -> str:
    return f"{LS if name == SERVICE else BE}/pod{name}/{name}-c0"


def _on_disk() -> str:
    """A directory that git ignores, on the disk of the source: what is temporary may be in memory."""
    os.makedirs("build", exist_ok=True)
    return "build"


def _found() -> Cgroups:
    return Cgroups(Files(0), cgroups.detect(Files(0), HostRoots.below("")))


def _service(port: int, target_ms: float, senses: str) -> dict[str, Any]:
    objective = {
        "targetMilliseconds": target_ms,
        "prometheus": {"port": port, "metric": "request_seconds"},
    }
    pod = listed_pod(SERVICE, "LS")
    if senses == "latency":
        pod["metadata"]["annotations"] = {"koordinator.sh/latency-objective": json.dumps(objective)}
    return pod


if __name__ == "__main__":
    main()
