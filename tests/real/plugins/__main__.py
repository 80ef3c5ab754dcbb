"""Compare as many cases as wanted, and print where we differ.

python -m tests.real.plugins --cases 5000 NodeResourcesFit InterPodAffinity
python -m tests.real.plugins --seed 4711 --show InterPodAffinity      # the smallest case that differs as that one does
"""

import json
import sys

from tests.go_programs import Missing
from tests.real import many_cases
from tests.real.plugins import cases, compare, ours, shrink
from tests.real.plugins.program import Theirs


def main() -> int:
    parser = many_cases.options_of("tests.real.plugins", __doc__, cases=1000)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(cases.NAMES)}; all without")
    parser.add_argument(
        "--show", action="store_true", help="print the case with this number, and both answers"
    )
    options = parser.parse_args()
    names = options.names or cases.NAMES
    try:
        with Theirs.started() as theirs:
            if options.show:
                show(theirs, names[0], options.seed)
                return 0
            return min(1, sum(differing(theirs, name, many_cases.seeds_of(options)) for name in names))
    except Missing as error:
        print(error, file=sys.stderr)
        return 1


def differing(theirs: Theirs, name: str, seeds: range) -> int:
    return many_cases.differing(
        name, seeds, lambda seed: compare.differences(theirs, cases.case_of(name, seed))
    )


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
