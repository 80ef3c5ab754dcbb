"""Compare as many cases as wanted, and print where we differ.

python -m tests.real.plugins --cases 5000 NodeResourcesFit InterPodAffinity
python -m tests.real.plugins --seed 4711 --show InterPodAffinity      # the smallest case that differs as that one does
"""

import argparse
import json
import sys
import time

from tests.go_programs import Missing
from tests.real.plugins import cases, compare, ours, shrink
from tests.real.plugins.program import Theirs


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.real.plugins", description=__doc__, formatter_class=form
    )
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(cases.NAMES)}; all without")
    parser.add_argument("--cases", type=int, default=1000, help="for each name")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument(
        "--show", action="store_true", help="print the case with this number, and both answers"
    )
    options = parser.parse_args()
    names, seeds = options.names or cases.NAMES, range(options.seed, options.seed + options.cases)
    try:
        with Theirs.started() as theirs:
            if options.show:
                show(theirs, names[0], options.seed)
                return 0
            return min(1, sum(differing(theirs, name, seeds) for name in names))
    except Missing as error:
        print(error, file=sys.stderr)
        return 1


def differing(theirs: Theirs, name: str, seeds: range) -> int:
    """How many cases differ; each is printed."""
    begun_s, count = time.monotonic(), 0
    for seed in seeds:
        if lines := compare.differences(theirs, cases.case_of(name, seed)):
            count += 1
            print(f"{name} {seed}:", *lines, sep="\n    ")
    print(f"{name}: {len(seeds)} cases, {count} differ, {time.monotonic() - begun_s:.0f} s", flush=True)
    return count


def show(theirs: Theirs, name: str, seed: int) -> None:
    case = cases.case_of(name, seed)
    lines = compare.differences(theirs, case)
    if lines:
        case = shrink.smallest(case, lambda smaller: compare.differences(theirs, smaller)[:1] == lines[:1])
    for title, part in (("case", case), ("theirs", theirs.answer(case)), ("ours", ours.answer(case))):
        print(f"# {title}", json.dumps(part, indent=1), sep="\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
