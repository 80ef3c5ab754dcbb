"""`python -m tests.reference [AREA …]`: random questions to Koordinator's own functions (Go, built once) and to ours.

Questions are made from the cases of `tests/vectors/cases`; first these themselves are asked.
"""

import logging
import sys
from collections.abc import Sequence

from tests.go_programs import Missing
from tests.real.many_cases import differing, options_of, seeds_of
from tests.reference import original
from tests.reference.compare import AreaComparison, Questions, kept_areas
from tests.vectors.runner import find_adapters


def main(arguments: Sequence[str]) -> int:
    """Compare all areas, or those that are named; 1 where an answer differs."""
    parser = options_of("tests.reference", __doc__ or "", 1000)
    parser.add_argument("areas", nargs="*", help="all of them unless named")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # what decisions say of odd questions
    kept, adapters, count = kept_areas(), find_adapters(), 0
    for group in original.GROUPS:
        names = [name for name in original.areas_of(group) if not options.areas or name in options.areas]
        if not names:
            continue
        try:
            with original.answering(group) as ask:
                for name in names:
                    compared = AreaComparison(ask, kept[name], adapters, Questions.of(group))
                    if unlike := compared.unlike_kept():
                        count += len(unlike)
                        print(f"{name}: the original answers otherwise than these cases say: {unlike}")
                    count += differing(name, seeds_of(options), lambda seed, by=compared: _lines(by, seed))
                    print(f"    {dict(compared.counts)}", flush=True)
        except Missing as missing:
            print(missing, file=sys.stderr)
            return 2
    return int(count > 0)


def _lines(compared: AreaComparison, seed: int) -> list[str]:
    return compared.difference(seed).splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
