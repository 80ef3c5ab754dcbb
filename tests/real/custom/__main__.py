"""Compare as many cases as wanted, and print where we differ from Kubernetes.

python -m tests.real.custom --cases 20000 expression definition
"""

import argparse
import sys
import time
from pathlib import Path

from tests import go_programs
from tests.go_programs import Ask, Missing
from tests.real.custom import compare

PROGRAM = Path(__file__).parent


def program() -> Path:
    """Kubernetes' own judgement, built where it is missing. Raises: Missing."""
    return go_programs.provide(PROGRAM, "custom", "packages of Kubernetes' API server")


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.real.custom", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(compare.KINDS)}; all without")
    parser.add_argument("--cases", type=int, default=2000, help="for each name")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.cases)
    try:
        path = program()
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    with go_programs.answering(path) as ask:
        return min(1, sum(differing(ask, name, seeds) for name in options.names or compare.KINDS))


def differing(ask: Ask, name: str, seeds: range) -> int:
    """How many cases differ; each is printed."""
    begun_s, count = time.monotonic(), 0
    for seed in seeds:
        if lines := compare.KINDS[name](ask, seed):
            count += 1
            print(f"{name} {seed}:", *lines, sep="\n    ")
    print(f"{name}: {len(seeds)} cases, {count} differ, {time.monotonic() - begun_s:.0f} s", flush=True)
    return count


if __name__ == "__main__":
    sys.exit(main())
