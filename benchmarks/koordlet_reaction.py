"""How soon batch work loses CPU when a service jumps: real groups and processes, the whole agent at its 1 s loop.

A service in a burstable pod (processes that are stopped and continued) goes from idle to `--cores` at random moments,
while batch hogs run in the best-effort tree. Told are the times from the jump to the first write that takes CPU away,
and to the write after which only what the service really leaves remains. `--plain` measures an agent as the reference's
beside it: rounds by a clock of their own, nothing between them.

What the rest of the machine does is kept out by a reservation that covers it. Needs root; on machines with two CPUs
only the quota, since suppression by CPUs always leaves two.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec

from benchmarks._agent_process import listed_pod
from benchmarks._groups import LineProcess, line_process, make_group
from benchmarks._reaction_agent import ReactionSpec
from koordinator.host import cgroups
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files, HostRoots

GROUP = f"koordinator-bench-{os.getpid()}"
PODS, LS, BE = f"{GROUP}/kubepods", f"{GROUP}/kubepods/burstable", f"{GROUP}/kubepods/besteffort"
CPU_COUNT_MIN = 2
SPIN = "while True: pass"
START_S_MAX = 60.0
BUSY_S = 2.5
"""How long a jump lasts: long enough for the last write that belongs to it."""
CALM_S = (3.0, 4.0)
CALM_TRIES = 20
"""Seconds that are waited at most for batch to get its CPU back."""
NEAR_CORES = 0.1
"""So near to the least that was left counts as all being taken."""
NEVER_S = float("inf")
"""Nothing was taken while the jump lasted."""
PERIOD_US = 100_000


class Jump(msgspec.Struct, frozen=True):
    """Seconds from a jump to the first write that takes CPU, and until all was taken."""

    first_s: float
    all_s: float


def main() -> None:
    options = _options()
    if os.geteuid() != 0:
        print("skipped: needs root, since real groups are made")
        return
    cpu_count = os.cpu_count() or 1
    print(
        f"{cpu_count} CPUs, Linux {os.uname().release}, service jumps from 0 to {options.cores} cores; "
        f"seconds from the jump to the write"
    )
    print(f"{'policy':10} {'agent':10} {'jumps':>5}   {'first write':>24}   {'all taken':>24}")
    for policy in options.policies.split(","):
        if policy == "cpuset" and cpu_count <= CPU_COUNT_MIN:
            print(f"{policy:10} skipped: two CPUs are always left to batch, and this machine has {cpu_count}")
            continue
        for is_plain in (False, True) if options.plain else (False,):
            jumps = measure(policy, options, is_plain=is_plain)
            firsts, wholes = [each.first_s for each in jumps], [each.all_s for each in jumps]
            name = "reference" if is_plain else "ours"
            print(f"{policy:10} {name:10} {len(jumps):5}   {_line(firsts)}   {_line(wholes)}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.koordlet_reaction", description=__doc__)
    parser.add_argument("--jumps", type=int, default=60)
    parser.add_argument("--cores", type=int, default=1, help="how many the service uses after a jump")
    parser.add_argument("--hogs", type=int, default=1, help="batch processes that want a CPU each")
    parser.add_argument("--policies", default="cfsQuota,cpuset")
    parser.add_argument("--plain", action="store_true", help="also as the reference does it")
    parser.add_argument("--verbose", action="store_true", help="tell all writes after each jump")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _line(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    return f"p50 {statistics.median(ordered):.2f}  p99 {p99:.2f}  max {ordered[-1]:.2f}"


def measure(policy: str, options: argparse.Namespace, *, is_plain: bool) -> list[Jump]:
    """All jumps of one agent."""
    found = Cgroups(Files(0), cgroups.detect(Files(0), HostRoots.below("")))
    rng = random.Random(options.seed)
    with _groups(found), _service(found, options.cores) as service, _hogs(found, options.hogs):
        # By quota only numbers matter: CPUs beyond the machine's make room for what others do on it meanwhile.
        machine_milli = 1000 * (os.cpu_count() or 1)
        more_milli = 2000 if policy == "cfsQuota" else 0
        reserved_milli = machine_milli if policy == "cfsQuota" else 0
        spec = ReactionSpec(
            group=GROUP,
            pods=[listed_pod("web", "LS"), listed_pod("batch", "BE")],
            policy=policy,
            capacity_milli=machine_milli + more_milli,
            reserved_milli=reserved_milli,
            is_plain=is_plain,
        )
        with _agent(spec) as agent:
            return _jumps(agent, service, policy, options.jumps, rng, is_verbose=options.verbose)


def _jumps(
    agent: LineProcess, service: list[int], policy: str, count: int, rng: random.Random, *, is_verbose: bool
) -> list[Jump]:
    jumps: list[Jump] = []
    before, most = float("inf"), 0.0
    for _, text in _writes_until(agent, time.monotonic() + CALM_S[1]):
        before = _cores(text, policy)
    while len(jumps) < count:
        for wait_s in (rng.uniform(*CALM_S), *[1.0] * CALM_TRIES):
            for _, text in _writes_until(agent, time.monotonic() + wait_s):
                before = _cores(text, policy)
            if before >= most - NEAR_CORES:
                break  # batch has back what the jump before took
        most = max(most, before) if before < float("inf") else most
        jumped_s = time.monotonic()
        for pid in service:
            os.kill(pid, signal.SIGCONT)
        writes = _writes_until(agent, jumped_s + BUSY_S)
        for pid in service:
            os.kill(pid, signal.SIGSTOP)
        taken = [(at_s, _cores(text, policy)) for at_s, text in writes]
        least = min((cores for _, cores in taken), default=float("inf"))
        first_s = next((at_s for at_s, cores in taken if cores < before), NEVER_S)
        all_s = next((at_s for at_s, cores in taken if cores <= least + NEAR_CORES), NEVER_S)
        jumps.append(Jump(first_s - jumped_s, all_s - jumped_s if first_s < NEVER_S else NEVER_S))
        if is_verbose:
            course = " ".join(f"{at_s - jumped_s:+.2f}:{cores:.2f}" for at_s, cores in taken)
            print(f"  from {before:.2f}: {course}", flush=True)
        before = taken[-1][1] if taken else before
    return jumps


def _cores(text: str, policy: str) -> float:
    if policy == "cfsQuota":
        word = text.split()[0]
        return float("inf") if word in ("max", "-1") else int(word) / PERIOD_US
    spans = [part.split("-") for part in text.split(",") if part]
    return float(sum(int(span[-1]) - int(span[0]) + 1 for span in spans))


def _writes_until(agent: LineProcess, until_s: float) -> list[tuple[float, str]]:
    """Times and texts of writes."""
    words = (line.partition(" ") for line in agent.lines_until(until_s))
    return [(float(at), text) for at, _, text in words if text]


@contextlib.contextmanager
def _agent(spec: ReactionSpec) -> Iterator[LineProcess]:
    with line_process([sys.executable, "-m", "benchmarks._reaction_agent"]) as agent:
        agent.write(msgspec.json.encode(spec).decode())
        agent.line(START_S_MAX)  # it has started
        yield agent


@contextlib.contextmanager
def _groups(found: Cgroups) -> Iterator[None]:
    names = [GROUP, PODS, LS, BE]
    for directory, uid in ((LS, "web"), (BE, "batch")):
        names += [f"{directory}/pod{uid}", f"{directory}/pod{uid}/{uid}-c0"]
    try:
        for name in names:
            make_group(found, name)
        found.write(
            Knob.CPU_SHARES, GROUP, "16384"
        )  # what else runs here must not keep the service from jumping
        found.write(Knob.CPU_SHARES, LS, "4096")
        found.write(Knob.CPU_SHARES, BE, "2")  # as the kubelet sets it
        yield
    finally:
        for name in reversed(names):
            for _ in range(50):
                if found.remove(name) is None:
                    break
                time.sleep(0.02)


@contextlib.contextmanager
def _service(found: Cgroups, cores: int) -> Iterator[list[int]]:
    """Processes that want a CPU each whenever they are continued."""
    with _processes(found, f"{LS}/podweb/web-c0", cores, is_stopped=True) as pids:
        yield pids


@contextlib.contextmanager
def _hogs(found: Cgroups, count: int) -> Iterator[None]:
    with _processes(found, f"{BE}/podbatch/batch-c0", count, is_stopped=False):
        yield


@contextlib.contextmanager
def _processes(found: Cgroups, group: str, count: int, *, is_stopped: bool) -> Iterator[list[int]]:
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-E", "-c", SPIN])
            started.append(process)
            if (problem := found.move(process.pid, group)) is not None:
                raise SystemExit(f"a process cannot enter its group: {problem}")
            if is_stopped:
                process.send_signal(signal.SIGSTOP)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
