"""A simulated day of 200,000 pods coming and going on 1,000 nodes: is the node table exact, memory flat?

`python -m benchmarks.churn [--nodes N] [--pods N] [--hours H] [--seed N]`; it takes several minutes.
"""

import argparse
import sys
import time

from tests.churn import scenario as churn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = churn.ChurnScenario()
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--pods", type=int, default=defaults.pods)
    parser.add_argument("--hours", type=float, default=defaults.hours)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    options = parser.parse_args()
    scenario = churn.ChurnScenario(
        nodes=options.nodes, pods=options.pods, hours=options.hours, seed=options.seed
    )
    started_s = time.perf_counter()

    def progress(share: float) -> None:
        print(f"\r{share:4.0%} after {time.perf_counter() - started_s:,.0f} s", end="", file=sys.stderr)

    result = churn.run(scenario, progress if sys.stderr.isatty() else None)
    took_s = time.perf_counter() - started_s
    print(*churn.summary(result, scenario, took_s), *result.differences, sep="\n")
    print("memory per hour, MiB:", *(f"{value:,.0f}" for value in result.memory_mib))


if __name__ == "__main__":
    main()
