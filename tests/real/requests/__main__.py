"""Compare as many cases as wanted, and print where we differ.

python -m tests.real.requests --cases 5000
python -m tests.real.requests --seed 4711 --show      # the smallest case that differs as that one does
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.go_programs import Missing
from tests.real.requests import cases, compare, shrink
from tests.real.requests.sides import Json, Sides


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.real.requests", description=__doc__, formatter_class=form
    )
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", default="", choices=("", *cases.NAMES), help="cases about this kind only")
    parser.add_argument(
        "--show", action="store_true", help="print the smallest case that differs as this one does"
    )
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder, Sides.started(Path(folder)) as sides:
            if options.show:
                show(sides, cases.case_of(options.seed, options.kind))
                return 0
            seeds = range(options.seed, options.seed + options.cases)
            return min(1, differing(sides, seeds, options.kind))
    except Missing as error:
        print(error, file=sys.stderr)
        return 1


def differing(sides: Sides, seeds: range, kind: str) -> int:
    """How many cases differ; each is printed."""
    begun_s, count = time.monotonic(), 0
    for seed in seeds:
        if lines := compare.differences(sides, cases.case_of(seed, kind)):
            count += 1
            print(f"{seed}:", *lines, sep="\n    ")
    print(f"{len(seeds)} cases, {count} differ, {time.monotonic() - begun_s:.0f} s", flush=True)
    return count


def show(sides: Sides, steps: list[Json]) -> None:
    lines = compare.differences(sides, steps)
    if lines:
        wanted = lines[0].partition(": ")[2]

        def differs(smaller: list[Json]) -> bool:
            return any(line.partition(": ")[2] == wanted for line in compare.differences(sides, smaller)[:1])

        steps = shrink.smallest(steps, differs)
    for number, step in enumerate(steps):
        print(number, json.dumps(step))
    print(*itertools.islice(compare.differences(sides, steps), 20), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
