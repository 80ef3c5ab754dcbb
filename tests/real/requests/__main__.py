"""Compare as many cases as wanted, and print where we differ.

python -m tests.real.requests --cases 5000
python -m tests.real.requests --seed 4711 --show      # the smallest case that differs as that one does
"""

import itertools
import json
import sys
import tempfile
from pathlib import Path

from tests.go_programs import Missing
from tests.real import many_cases
from tests.real.requests import cases, compare, shrink
from tests.real.requests.sides import Json, Sides


def main() -> int:
    parser = many_cases.options_of("tests.real.requests", __doc__, cases=300)
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
            return min(1, differing(sides, many_cases.seeds_of(options), options.kind))
    except Missing as error:
        print(error, file=sys.stderr)
        return 1


def differing(sides: Sides, seeds: range, kind: str) -> int:
    return many_cases.differing(
        kind or "requests", seeds, lambda seed: compare.differences(sides, cases.case_of(seed, kind))
    )


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
