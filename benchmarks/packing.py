"""How much of a GPU cluster is allocated, by score: the published evaluation of fragmentation, replayed.

For each trace and score the mean over seeds of what is allocated when as much GPU has been requested as there is, and
when 130 % has, in percent of all GPU; the published figures of fragmentation gradient descent (one seed; Weng et al.,
Beware of Fragmentation, USENIX ATC 2023) and a bound that no placement exceeds beside it. The argument is a folder with
`openb_node_list_gpu_node.csv.gz` and `openb_pod_list_*.csv.gz`. Options: `--seeds`, `--trace`, `--score`.
"""

import argparse
import statistics
import time
from pathlib import Path

from koordinator.cluster import garbage
from koordinator.simulate import replay, replay_config, replay_input
from koordinator.simulate.gpu_course import GpuReport
from koordinator.simulate.replay_input import ReplayInput
from koordinator.simulate.replay_options import Gpu, GpuScore

NODES = "openb_node_list_gpu_node.csv.gz"
PODS = "openb_pod_list_"
ARRIVALS = 1.3
PUBLISHED = {"default": (95.23, 95.39), "gpuspec33": (87.84, 94.55), "multigpu50": (97.09, 97.18)}
"""At 100 % and at 130 % arrivals."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="TRACE_DIR", nargs="?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trace", action="append", help="only this one; repeatable")
    parser.add_argument("--score", action="append", choices=[each.value for each in GpuScore])
    options = parser.parse_args()
    if options.folder is None:
        print("left out: it needs a folder with traces (python -m benchmarks.packing TRACE_DIR)")
        return
    found = sorted(options.folder.glob(f"{PODS}*.csv*"))
    traces = {path.name.removeprefix(PODS).partition(".")[0]: path for path in found}
    print(f"{'trace':<12} {'score':<22} {'at 100 %':>9} {'at 130 %':>9} {'deviation':>10} {'CPU s':>6}")
    with garbage.collected_rarely():
        for name in options.trace or traces:
            given = replay_input.read([str(options.folder / NODES)], [str(traces[name])], Gpu.SHARE)
            compare(name, given, [GpuScore(each) for each in options.score or GpuScore], options.seeds)


def compare(name: str, given: ReplayInput, scores: list[GpuScore], seeds: int) -> None:
    """Print a line per score, what was published, and the bound."""
    reports: list[GpuReport] = []
    for score in scores:
        started_s = time.process_time()
        reports = [packed(given, score, seed) for seed in range(seeds)]
        at_full = [each.allocated_percent_at_full_arrivals or 0.0 for each in reports]
        at_end = [each.allocated_percent for each in reports]
        print(
            f"{name:<12} {score:<22} {statistics.mean(at_full):>9.2f} {statistics.mean(at_end):>9.2f} "
            f"{statistics.pstdev(at_full):>10.2f} {(time.process_time() - started_s) / seeds:>6.1f}",
            flush=True,
        )
    if name in PUBLISHED:
        at_100, at_130 = PUBLISHED[name]
        print(f"{name:<12} {'published (FGD)':<22} {at_100:>9.2f} {at_130:>9.2f}")
    bounds = [each.bound_percent_at_full_arrivals or 0.0 for each in reports]
    end = statistics.mean(each.bound_percent for each in reports)
    print(f"{name:<12} {'bound':<22} {statistics.mean(bounds):>9.2f} {end:>9.2f}", flush=True)


def packed(given: ReplayInput, score: GpuScore, seed: int) -> GpuReport:
    """Return what came of one replay."""
    config = replay_config.config_of(score)
    result = replay.run(given, config, timer=time.process_time, seed=seed, arrivals=ARRIVALS)
    assert result.gpu is not None, "pods arrived"
    return result.gpu


if __name__ == "__main__":
    main()
